"""How much memory there is, and how many images it is enough for."""

from __future__ import annotations

import pytest
import torch

from selfmark.config import preset
from selfmark.detector import Detector, ModelCard
from selfmark.devices import GPU_PASS, HOST_PASS, free_memory, images_per_pass
from selfmark.model.network import Psi


def _pretend(monkeypatch: pytest.MonkeyPatch, free: int, reserved: int, allocated: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10 * free))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)


def test_what_torch_keeps_for_later_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, free=1_000, reserved=700, allocated=200)
    assert free_memory(torch.device("cuda")) == 1_500


@pytest.mark.parametrize(("wanted", "expected"), [(3, 3), (7, 7), (8, 7), (1_000, 7)])
def test_no_more_images_than_there_is_memory_for(
    wanted: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, free=round(700 / GPU_PASS), reserved=0, allocated=0)
    assert images_per_pass(wanted, 100, torch.device("cuda")) == expected


def test_one_image_is_always_tried() -> None:
    assert images_per_pass(64, 2 * HOST_PASS, torch.device("cpu")) == 1


def test_a_detector_finds_the_same_landmarks_in_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = preset("tiny")
    card = ModelCard(("a", "b"), (1, 0), (), config.images, config.network, "parabola", True, {})
    torch.manual_seed(0)
    detector = Detector(Psi(config.network, 2), card)
    pixels = torch.randint(256, (5, 3, 128, 128), dtype=torch.uint8)
    together = detector.locate(pixels)
    monkeypatch.setattr(detector, "_at_once", 2)
    apart = detector.locate(pixels)
    assert apart.xy.shape == (5, 2, 2)
    torch.testing.assert_close(apart.xy, together.xy, atol=1e-2, rtol=0)
    torch.testing.assert_close(apart.score, together.score)
