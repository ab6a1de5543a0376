"""Checkpoints: one safetensors file with weights, optimiser, random state and iteration; no pickles.

Written to a temporary name, synced, then renamed, so a kill at any moment leaves a whole file behind.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from selfmark.errors import InputError
from selfmark.train.engine import TrainState


def write_tensors(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write tensors as safetensors, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()}, temporary, metadata
    )
    with open(temporary, "rb") as handle:
        os.fsync(handle.fileno())
    os.replace(temporary, path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; a damaged one is refused by name."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in list(file.keys())}, dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is missing or damaged and cannot be read: {error}") from error


def save_state(state: TrainState, path: Path) -> None:
    tensors: dict[str, Tensor] = {"generator": state.generator.get_state()}
    tensors |= {f"network.{name}": value for name, value in state.network.state_dict().items()}
    for index, entries in state.optimiser.state_dict()["state"].items():
        tensors |= {
            f"optimiser.{index}.{name}": torch.as_tensor(value)
            for name, value in entries.items()
            if value is not None
        }
    write_tensors(tensors, {"iteration": str(state.iteration)}, path)


def load_state(state: TrainState, path: Path) -> None:
    """Put a freshly made state where the checkpoint left off."""
    tensors, metadata = read_tensors(path)
    try:
        state.network.load_state_dict(_under("network.", tensors))
        entries: dict[int, dict[str, Any]] = {}
        for name, value in _under("optimiser.", tensors).items():
            index, key = name.split(".", 1)
            entries.setdefault(int(index), {})[key] = value
        groups = state.optimiser.state_dict()["param_groups"]
        state.optimiser.load_state_dict({"state": entries, "param_groups": groups})
        state.generator.set_state(tensors["generator"])
        state.iteration = int(metadata["iteration"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} does not belong to this run: {str(error).splitlines()[0]}") from error


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
