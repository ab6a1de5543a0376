"""Checkpoints: one safetensors file with weights, optimiser, random state and iteration; no pickles.

Written to a temporary name, synced, then renamed, so a kill at any moment leaves a whole file behind.
"""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from selfmark.errors import InputError
from selfmark.train.engine import TrainState


def write_tensors(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write tensors as safetensors, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    temporary.touch()
    usual = temporary.stat().st_mode  # safetensors makes files that nobody but their owner can read
    save_file({name: _on_its_own(value) for name, value in tensors.items()}, temporary, metadata)
    temporary.chmod(usual)
    with open(temporary, "rb") as handle:
        os.fsync(handle.fileno())
    os.replace(temporary, path)


def _on_its_own(value: Tensor) -> Tensor:
    """On the CPU, in memory that no other tensor shares, as safetensors demands."""
    value = value.detach().cpu().contiguous()
    return value if value.nbytes == value.untyped_storage().nbytes() else value.clone()


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
    squares = state.optimiser.squares(state.network)
    tensors |= {f"optimiser.{name}": value for name, value in squares.items()}
    write_tensors(tensors, {"iteration": str(state.iteration)}, path)


def load_state(state: TrainState, path: Path) -> None:
    """Put a freshly made state where the checkpoint left off."""
    tensors, metadata = read_tensors(path)
    try:
        state.network.load_state_dict(_under("network.", tensors))
        for name, square in state.optimiser.squares(state.network).items():
            square.copy_(tensors[f"optimiser.{name}"])
        state.optimiser.refresh()
        state.generator.set_state(tensors["generator"])
        state.iteration = int(metadata["iteration"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} does not belong to this run: {str(error).splitlines()[0]}") from error


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
