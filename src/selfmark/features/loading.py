"""Load encoders by name."""

from __future__ import annotations

from pathlib import Path

import torch

from selfmark import weights_cache
from selfmark.config import DEFAULT_FEATURES
from selfmark.errors import InputError, suggest
from selfmark.features.dinov2 import SHAPES, DinoV2Encoder
from selfmark.features.efficientnet_lite import SCALES, EfficientNetLiteEncoder
from selfmark.features.encoder import Encoder
from selfmark.features.onnx_features import PREFIX, OnnxEncoder, read_onnx_model
from selfmark.features.packaged_weights import load_packaged_weights

EFFICIENTNETS = {f"efficientnet-{variant}": variant for variant in SCALES}
"""Mapping from the name of features to the variant of EfficientNet-Lite that computes them."""

FEATURES = (*EFFICIENTNETS, *SHAPES)
"""Names of pretrained features; `onnx:FILE` is also accepted."""


def load_encoder(name: str, device: torch.device | str = "cpu") -> Encoder:
    """Load a pretrained encoder in evaluation mode.

    Args:
        name: one of FEATURES, or onnx:FILE.
        device: device of the network.

    Raises:
        InputError: if the name is unknown, or a package or file is missing or unsuitable.
    """
    encoder = build_encoder(name)
    if isinstance(encoder, EfficientNetLiteEncoder):
        encoder.network.load_published(load_packaged_weights(name))
    elif isinstance(encoder, DinoV2Encoder):
        path = weights_cache.find_weights(name)
        encoder.network.load_published(weights_cache.load_weights(path, name))
    return encoder.to(device)


def has_installed_weights(encoder: Encoder) -> bool:
    """Return True if the encoder has the weights of the default features, which come with selfmark."""
    if encoder.info.name != DEFAULT_FEATURES:
        return False
    published, weights = load_encoder(DEFAULT_FEATURES).state_dict(), encoder.state_dict()
    return all(torch.equal(weights[name].cpu(), published[name]) for name in published)


def check_features(name: str) -> None:
    """Raise an InputError unless these features exist and their weights are installed.

    Args:
        name: one of FEATURES, onnx:FILE, or "none".
    """
    if name != "none":
        load_encoder(name)


def resolve_features(name: str) -> str:
    """Make the path in onnx:FILE absolute, so that a run finds the model from any folder."""
    if not name.startswith(PREFIX):
        return name
    return f"{PREFIX}{Path(name.removeprefix(PREFIX)).resolve()}"


def build_encoder(name: str, onnx_model: bytes | None = None) -> Encoder:
    """Build an encoder with random weights in evaluation mode, to load a saved state dict into.

    The weights are the same at every call, and torch's global random state is not changed. An ONNX model
    already has its weights, which are stored in its file.

    Args:
        name: one of FEATURES, or onnx:FILE.
        onnx_model: content of the ONNX model; None to read FILE.

    Raises:
        InputError: if the name is unknown or the ONNX model is missing or unsuitable.
    """
    if name.startswith(PREFIX):
        return OnnxEncoder(name, read_onnx_model(name) if onnx_model is None else onnx_model)
    if name not in FEATURES:
        raise InputError(
            f"unknown features '{name}'; choose from {', '.join(FEATURES)} and {PREFIX}FILE."
            f"{suggest(name, FEATURES)}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name in SHAPES:
            return DinoV2Encoder(name)
        return EfficientNetLiteEncoder(EFFICIENTNETS[name])
