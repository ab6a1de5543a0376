"""Test the choice of a device, its free memory, and the number of images per forward pass."""

from __future__ import annotations

import pytest
import torch

from selfmark.config import preset
from selfmark.detector import Detector
from selfmark.errors import InputError, TrainingError
from selfmark.model.card import ModelCard
from selfmark.model.network import Psi
from selfmark.run.devices import (
    CPU_PASS_BYTES,
    GPU_PASS_FRACTION,
    images_per_pass,
    measure_free_memory,
    pad_batch,
    padded_count,
    select_device,
)


def _fake_memory(monkeypatch: pytest.MonkeyPatch, free: int, reserved: int, allocated: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10 * free))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)


def test_memory_reserved_by_torch_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_memory(monkeypatch, free=1_000, reserved=700, allocated=200)
    assert measure_free_memory(torch.device("cuda")) == 1_500


@pytest.mark.parametrize(("max_images", "expected"), [(3, 3), (7, 7), (8, 7), (1_000, 7)])
def test_the_number_of_images_is_limited_by_memory(
    max_images: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_memory(monkeypatch, free=round(700 / GPU_PASS_FRACTION), reserved=0, allocated=0)
    assert images_per_pass(max_images, 100, torch.device("cuda")) == expected


def test_the_number_of_images_is_at_least_one() -> None:
    assert images_per_pass(64, 2 * CPU_PASS_BYTES, torch.device("cpu")) == 1


@pytest.mark.parametrize("max_images", [1, 5, 64, 100])
def test_padded_passes_have_few_sizes(max_images: int) -> None:
    pass_sizes = set()
    for count in range(1, 300):
        padded = padded_count(count, max_images)
        assert count <= padded < count + max(8, max_images)
        if count <= 16:
            assert padded <= max(2 * count, 8)
        sizes = {min(max_images, padded - start) for start in range(0, padded, max_images)}
        assert len(sizes) == 1  # All passes have the same size.
        pass_sizes |= sizes
    assert len(pass_sizes) <= 3
    assert max(pass_sizes) == max_images


def test_images_are_padded_on_a_gpu_only() -> None:
    images = torch.ones(3, 3, 4, 4)
    assert pad_batch(images, 64) is images
    assert pad_batch(images.to("meta"), 64).shape == (8, 3, 4, 4)


def _build_detector() -> tuple[Detector, torch.Tensor]:
    """Return an untrained detector and five images."""
    config = preset("tiny")
    card = ModelCard(("a", "b"), (1, 0), (), config.images, config.network, "parabola", True, {})
    torch.manual_seed(0)
    detector = Detector(Psi(config.network, 2), card)
    return detector, torch.randint(256, (5, 3, 128, 128), dtype=torch.uint8)


def test_several_forward_passes_give_the_same_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, pixels = _build_detector()
    at_once = detector.locate(pixels)
    monkeypatch.setattr(detector, "_max_images", 2)
    in_parts = detector.locate(pixels)
    assert in_parts.xy.shape == (5, 2, 2)
    torch.testing.assert_close(in_parts.xy, at_once.xy, atol=1e-2, rtol=0)
    torch.testing.assert_close(in_parts.score, at_once.score)


def _limit_memory(max_batch: int, detector: Detector, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the network fail for batches above `max_batch`; return a list that records all batch sizes."""
    forward_pass, sizes = detector.psi.forward, []

    def forward(pixels: torch.Tensor) -> torch.Tensor:
        sizes.append(len(pixels))
        if len(pixels) > max_batch:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward_pass(pixels)

    monkeypatch.setattr(detector.psi, "forward", forward)
    return sizes


def test_a_detector_that_runs_out_of_memory_uses_smaller_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, pixels = _build_detector()
    at_once = detector.locate(pixels)
    sizes = _limit_memory(4, detector, monkeypatch)
    in_parts = detector.locate(pixels)
    # Each image is passed with its mirror image. After the failure, a pass has half of the five images,
    # rounded down.
    assert sizes == [10, 4, 4, 2]
    torch.testing.assert_close(in_parts.xy, at_once.xy, atol=1e-2, rtol=0)
    detector.locate(pixels)
    assert sizes[4:] == [4, 4, 2]  # The detector remembers the smaller size.


def test_too_little_memory_for_one_image_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, pixels = _build_detector()
    sizes = _limit_memory(1, detector, monkeypatch)
    with pytest.raises(TrainingError, match="too little memory for one image of 128 px"):
        detector.locate(pixels)
    assert sizes == [10, 4, 2]


@pytest.mark.parametrize("name", ["mps", "meta", "gpu", "cuda:x"])
def test_devices_that_selfmark_cannot_use_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"unknown device '{name}': use auto, cpu or cuda"):
        select_device(name)


@pytest.mark.parametrize(("count", "devices"), [(1, "cuda:0"), (4, "cuda:0 to cuda:3")])
def test_a_gpu_that_the_machine_does_not_have_is_refused(
    count: int, devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for name in ("cuda", f"cuda:{count - 1}"):
        assert select_device(name) == torch.device(name)
    with pytest.raises(InputError, match=f"this machine has no device 'cuda:{count}': use {devices}$"):
        select_device(f"cuda:{count}")


def test_selecting_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(InputError, match="this machine has no CUDA device: use --device cpu"):
            select_device(name)
