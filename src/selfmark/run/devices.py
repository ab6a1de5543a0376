"""Which device to work on, and how much of it there is."""

from __future__ import annotations

import torch

from selfmark.errors import InputError


def select_device(name: str) -> torch.device:
    """The device called `name`; `auto` is CUDA where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"there is no device '{name}': use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here: use --device cpu")
    return device


HOST_PASS = 128 << 20  # bytes one pass of a network may take on the CPU, where larger ones are slower
GPU_PASS = 0.5  # the same on a GPU, as a share of the memory free there


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a GPU; what torch keeps for later among them."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def images_per_pass(wanted: int, bytes_each: int, device: torch.device) -> int:
    """As many of the images wanted as one pass of a network has memory for, at least one.

    >>> images_per_pass(64, HOST_PASS // 10, torch.device("cpu"))
    10
    """
    room = HOST_PASS if device.type == "cpu" else int(GPU_PASS * free_memory(device))
    return max(1, min(wanted, room // bytes_each))
