"""Which device to work on."""

from __future__ import annotations

import torch

from selfmark.errors import InputError


def pick(name: str) -> torch.device:
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
