"""Start training from the weights of another detector (`discover --start-from`).

A run keeps a copy of the other detector in its folder `start`, so that the run can be resumed on any machine.
The weights of all layers are copied except for the last layer, which computes the heatmaps of the other
detector's landmarks.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from selfmark.config import Config, Features, Network, Student
from selfmark.errors import InputError
from selfmark.model.card import ModelCard
from selfmark.model.feature_network import FeaturePsi
from selfmark.model.network import Phi
from selfmark.run.folder import START_FOLDER
from selfmark.run.tensor_files import read_tensors, require_finite


def check_start(card: ModelCard, config: Config, name: str) -> None:
    """Raise if a run cannot start from the weights of another detector.

    Args:
        card: model card of the other detector.
        config: settings of the run.
        name: name of the other detector, for messages.
    """
    if config.method != "self-training":
        raise InputError(f"--start-from needs the method self-training, not {config.method}")
    if config.uses_features:
        wanted_network = _describe_head(config.features, config.student)
        is_suitable = (
            card.architecture == "encoder" and _describe_head(card.features, card.student) == wanted_network
        )
    else:
        wanted_network = _describe_hourglass(config.network)
        is_suitable = card.architecture == "hourglass" and card.network == config.network
    if is_suitable:
        return
    if card.architecture in ("soft-argmax", "embedding"):
        raise InputError(
            f"this run cannot start from {name}, which is a network of another method: choose a detector "
            "that was trained with the method self-training"
        )
    found_network = "a network without trained weights"
    if card.architecture == "encoder":
        found_network = _describe_head(card.features, card.student)
    elif card.architecture == "hourglass":
        found_network = _describe_hourglass(card.network)
    raise InputError(
        f"this run trains {wanted_network}, but {name} has {found_network}: choose another detector, or "
        "select the same network with --features, --preset or --set"
    )


def _describe_head(features: Features, student: Student) -> str:
    return f"a head of width {student.width} and depth {student.depth} on {features.name}"


def _describe_hourglass(network: Network) -> str:
    return (
        f"an hourglass without features ({network.channels} channels, depth {network.depth}, descriptors of "
        f"length {network.descriptor}, {network.norm_groups} normalization groups)"
    )


def start_student(psi: FeaturePsi, run_folder: Path) -> int:
    """Copy the weights of the detector in RUN/start into a new network; return the number of tensors copied.

    If the folder does not exist, nothing is copied.
    """
    stored = {name.removeprefix("psi."): value for name, value in _read_start(run_folder).items()}
    last = f"head.{len(psi.head) - 1}."
    return _copy({name: value for name, value in stored.items() if not name.startswith(last)}, psi)


def start_phi(phi: Phi, run_folder: Path) -> int:
    """Copy backbone and head of the detector in RUN/start into Phi; return the number of tensors copied.

    Phi is the network of Stage 1. The head of the other detector becomes the detector head of Phi, whichever
    head it was initialized from (`stage2.head`). The last layer is not copied.
    """
    stored = {
        name.replace("head.", "detector.", 1) if name.startswith("head.") else name: value
        for name, value in _read_start(run_folder).items()
        if not name.startswith("head.last.")
    }
    return _copy(stored, phi)


def _read_start(run_folder: Path) -> dict[str, Tensor]:
    """Return a mapping from names to the weights in RUN/start; empty if there are none."""
    path = run_folder / START_FOLDER / "weights.safetensors"
    if not path.exists():
        return {}
    tensors, _ = read_tensors(path)
    require_finite(tensors, path)
    return tensors


def _copy(stored: dict[str, Tensor], network: torch.nn.Module) -> int:
    """Copy the tensors whose names and shapes match those of the network; return their number."""
    own_weights = network.state_dict()
    fitting = {
        name: value
        for name, value in stored.items()
        if name in own_weights and own_weights[name].shape == value.shape
    }
    network.load_state_dict(own_weights | fitting)
    return len(fitting)
