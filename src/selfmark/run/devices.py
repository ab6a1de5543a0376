"""Select a device for computations, measure its free memory, and choose the precision of networks."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch.nn import functional

from selfmark.config import Runtime
from selfmark.errors import InputError

_DEVICE_TYPES = ("cpu", "cuda")  # `select_device` refuses other types, and uses `meta` for unknown names


def select_device(name: torch.device | str) -> torch.device:
    """Return the device with this name.

    Args:
        name: `auto` for CUDA if available, otherwise the CPU; or a torch device such as `cpu` or `cuda:1`.

    Raises:
        InputError: If the name is unknown, or the machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in _DEVICE_TYPES:
        raise InputError(f"unknown device '{name}': use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("this machine has no CUDA device: use --device cpu")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        known_devices = f"cuda:0 to cuda:{last}" if last else "cuda:0"
        raise InputError(f"this machine has no device '{name}': use {known_devices}")
    return device


_SMALL_PASSES = (8, 16)  # a single small pass on a GPU is padded to one of these numbers of images
CPU_PASS_BYTES = 128 << 20  # memory for one forward pass on the CPU, where larger passes are slower
GPU_PASS_FRACTION = 0.5  # fraction of the free GPU memory for one forward pass


def measure_free_memory(device: torch.device) -> int:
    """Return the free memory of a GPU in bytes, including memory that torch has reserved but does not use."""
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + reserved


def images_per_pass(max_images: int, image_bytes: int, device: torch.device) -> int:
    """Return how many images fit into memory in one forward pass.

    >>> images_per_pass(64, CPU_PASS_BYTES // 10, torch.device("cpu"))
    10

    Args:
        max_images: upper limit.
        image_bytes: memory that one image takes.
        device: device of the network.

    Returns:
        A number from 1 to `max_images`.
    """
    available = (
        CPU_PASS_BYTES if device.type == "cpu" else int(GPU_PASS_FRACTION * measure_free_memory(device))
    )
    return max(1, min(max_images, available // image_bytes))


def pad_batch(images: torch.Tensor, max_images: int) -> torch.Tensor:
    """Append black images on a GPU, so that forward passes have only a few different numbers of images.

    cuDNN plans every convolution separately for each number of images. Planning a whole network takes up to
    two seconds, much longer than a forward pass.

    Args:
        images: [B, C, H, W].
        max_images: maximum number of images of a pass.

    Returns:
        [P, C, H, W], where P is B on a CPU, and otherwise `padded_count` of B.
    """
    if images.device.type == "cpu":
        return images
    num_missing = padded_count(len(images), max_images) - len(images)
    return functional.pad(images, (0, 0, 0, 0, 0, 0, 0, num_missing)) if num_missing else images


def padded_count(count: int, max_images: int) -> int:
    """Return the number of images after `pad_batch` on a GPU.

    Every pass has `max_images` images. If there is only one pass, of at most 16 images, it is filled up to
    only 8 or 16 images, to save memory.

    >>> [padded_count(count, 64) for count in (0, 3, 10, 60, 64, 65, 100)]
    [0, 8, 16, 64, 64, 128, 128]
    """
    if 0 < count <= max_images:
        return min(next((size for size in _SMALL_PASSES if count <= size), max_images), max_images)
    return math.ceil(count / max_images) * max_images


def uses_bf16(runtime: Runtime, device: torch.device) -> bool:
    """Return True if networks compute in bf16 on this device."""
    return runtime.precision == "bf16" or (runtime.precision == "auto" and device.type == "cuda")


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the host memory that is still available, in bytes; None if the system does not report it.

    Args:
        meminfo: the file in which Linux reports the memory.
    """
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
