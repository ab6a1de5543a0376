"""What a training needs to go on: the network with its norms, and how many phases it has been through."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from selfmark.errors import InputError
from training.keypoints.settings import Settings

FILE = "state.safetensors"


def save(network: nn.Module, phases: int, scores: dict[str, Any], folder: Path, settings: Settings) -> None:
    """Keep the network after `phases` phases; a run that is cut off leaves the old file or the new one."""
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    about = {"phases": str(phases), "scores": json.dumps(scores), "settings": _text(settings)}
    part = folder / f"{FILE}.part"
    save_file(tensors, part, metadata=about)
    os.replace(part, folder / FILE)


def load(network: nn.Module, folder: Path, settings: Settings) -> tuple[int, dict[str, Any]]:
    """Fill the network; returns the number of phases done and the scores so far."""
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"there is nothing to resume in {folder}: no phase of a training was finished there")
    with safe_open(path, "pt") as content:
        about = content.metadata()
    if about["settings"] != _text(settings):
        raise InputError(f"the training in {folder} was started with other settings; resume it with the same")
    network.load_state_dict(load_file(path))
    return int(about["phases"]), json.loads(about["scores"])


def _text(settings: Settings) -> str:
    return json.dumps(dataclasses.asdict(settings), sort_keys=True)
