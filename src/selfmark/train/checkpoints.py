"""Save checkpoints: network weights, optimizer state, random state and iteration in one tensor file."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from selfmark.errors import InputError
from selfmark.run.tensor_files import read_tensors, require_finite, write_tensors
from selfmark.train.engine import TrainState
from selfmark.train.standstill import Movements

_OLD_PREFIX = "optimiser."  # prefix of the optimizer state in checkpoints of selfmark 0.1


def save_checkpoint(state: TrainState, path: Path, previous: Path | None = None) -> None:
    """Write a checkpoint; if `previous` is not None, move the old file at `path` to that path."""
    tensors: dict[str, Tensor] = {"generator": state.generator.get_state()}
    tensors |= {f"network.{name}": value for name, value in state.network.state_dict().items()}
    moments = state.optimizer.state_tensors(state.network)
    tensors |= {f"optimizer.{name}": value for name, value in moments.items()}
    tensors |= {f"movements.{name}": value for name, value in state.movements.to_tensors().items()}
    write_tensors(tensors, {"iteration": str(state.iteration)}, path, previous)


def load_checkpoint(state: TrainState, path: Path) -> int:
    """Load a checkpoint into a new training state and return its iteration.

    Raises:
        InputError: if the file is damaged or was written for another network.
    """
    tensors, metadata = read_tensors(path)
    require_finite(_strip_prefix("network.", tensors), path)
    try:
        state.network.load_state_dict(_strip_prefix("network.", tensors))
        moments = _strip_prefix("optimizer.", tensors) or _strip_prefix(_OLD_PREFIX, tensors)
        for name, moment in state.optimizer.state_tensors(state.network).items():
            moment.copy_(moments[name])
        state.optimizer.update_copies()
        state.generator.set_state(tensors["generator"])
        state.iteration = int(metadata["iteration"])
        movements = _strip_prefix("movements.", tensors)
        state.movements = Movements.from_tensors(movements, state.generator.device)
    except (KeyError, ValueError, RuntimeError, TypeError, OverflowError) as error:
        raise InputError(f"{path} does not belong to this run: {str(error).splitlines()[0]}") from error
    return state.iteration


def _strip_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, without the prefix."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
