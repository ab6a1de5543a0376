"""Save and load the state from which training resumes: the network and the number of finished phases."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import nn

from selfmark.errors import InputError
from selfmark.run.files import atomic_write
from training.keypoints.settings import Settings

FILE = "state.safetensors"


def save(network: nn.Module, phases: int, scores: dict[str, Any], folder: Path, settings: Settings) -> None:
    """Save the network after `phases` finished phases. If this is interrupted, the old file stays intact."""
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    header = {"phases": str(phases), "scores": json.dumps(scores), "settings": _to_text(settings)}
    with atomic_write(folder / FILE) as temporary:
        # `save_file` replaces the file, which `atomic_write` would blame on another process.
        temporary.write_bytes(serialize(tensors, header))


def load(network: nn.Module, folder: Path, settings: Settings) -> tuple[int, dict[str, Any]]:
    """Load the network and return the number of finished phases and their scores."""
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"nothing to resume in {folder}: no phase of a training has finished there")
    with safe_open(path, "pt") as content:
        header = content.metadata()
    if header["settings"] != _to_text(settings):
        raise InputError(
            f"the training in {folder} was started with other settings; resume with the same ones"
        )
    network.load_state_dict(load_file(path))
    return int(header["phases"]), json.loads(header["scores"])


def _to_text(settings: Settings) -> str:
    return json.dumps(dataclasses.asdict(settings), sort_keys=True)
