"""How much memory there is, and how many images it is enough for."""

from __future__ import annotations

import pytest
import torch

from selfmark.config import preset
from selfmark.detector import Detector
from selfmark.errors import TrainingError
from selfmark.model.card import ModelCard
from selfmark.model.network import Psi
from selfmark.run.devices import CPU_PASS_BYTES, GPU_PASS_FRACTION, free_memory, images_per_pass


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
    _pretend(monkeypatch, free=round(700 / GPU_PASS_FRACTION), reserved=0, allocated=0)
    assert images_per_pass(wanted, 100, torch.device("cuda")) == expected


def test_one_image_is_always_tried() -> None:
    assert images_per_pass(64, 2 * CPU_PASS_BYTES, torch.device("cpu")) == 1


def _detector() -> tuple[Detector, torch.Tensor]:
    """An untrained one, and five images."""
    config = preset("tiny")
    card = ModelCard(("a", "b"), (1, 0), (), config.images, config.network, "parabola", True, {})
    torch.manual_seed(0)
    detector = Detector(Psi(config.network, 2), card)
    return detector, torch.randint(256, (5, 3, 128, 128), dtype=torch.uint8)


def test_a_detector_finds_the_same_landmarks_in_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, pixels = _detector()
    together = detector.locate(pixels)
    monkeypatch.setattr(detector, "_max_images", 2)
    apart = detector.locate(pixels)
    assert apart.xy.shape == (5, 2, 2)
    torch.testing.assert_close(apart.xy, together.xy, atol=1e-2, rtol=0)
    torch.testing.assert_close(apart.score, together.score)


def _with_memory_for(images: int, detector: Detector, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The network refuses more images than that, mirror images counted; returns how many were tried."""
    real, tried = detector.psi.forward, []

    def forward(pixels: torch.Tensor) -> torch.Tensor:
        tried.append(len(pixels))
        if len(pixels) > images:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(pixels)

    monkeypatch.setattr(detector.psi, "forward", forward)
    return tried


def test_a_detector_that_runs_out_of_memory_takes_fewer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, pixels = _detector()
    together = detector.locate(pixels)
    tried = _with_memory_for(4, detector, monkeypatch)
    apart = detector.locate(pixels)
    assert tried == [10, 4, 4, 2]  # every image with its mirror image; the half of five is two
    torch.testing.assert_close(apart.xy, together.xy, atol=1e-2, rtol=0)
    detector.locate(pixels)
    assert tried[4:] == [4, 4, 2]  # it is not tried in vain again


def test_memory_for_not_even_one_image_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, pixels = _detector()
    tried = _with_memory_for(1, detector, monkeypatch)
    with pytest.raises(TrainingError, match="too little memory for one image of 128 px"):
        detector.locate(pixels)
    assert tried == [10, 4, 2]
