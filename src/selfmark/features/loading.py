"""Encoders by name."""

from __future__ import annotations

import torch

from selfmark.errors import InputError, suggest
from selfmark.features.efficientnet_lite import EfficientNetLiteEncoder
from selfmark.features.encoder import Encoder
from selfmark.features.packaged_weights import load_packaged_weights

EFFICIENTNETS = {f"efficientnet-{variant}": variant for variant in ("lite0", "lite1", "lite2")}
FEATURES = tuple(EFFICIENTNETS)
"""Names that `load_encoder` accepts."""


def load_encoder(name: str, device: torch.device | str = "cpu") -> Encoder:
    """Load a pretrained encoder in evaluation mode.

    Args:
        name: one of FEATURES.
        device: where the network is moved.

    Raises:
        InputError: if the name is unknown, or a package or weights file is missing or damaged.
    """
    encoder = build_encoder(name)
    if isinstance(encoder, EfficientNetLiteEncoder):
        encoder.network.load_published(load_packaged_weights(name))
    return encoder.to(device)


def build_encoder(name: str) -> Encoder:
    """Build an encoder with random weights in evaluation mode, to load a saved state dict into.

    The weights are the same at every call, and torch's global random state is not changed.

    Raises:
        InputError: if the name is unknown.
    """
    if name not in FEATURES:
        raise InputError(
            f"unknown features '{name}'; choose from {', '.join(FEATURES)}.{suggest(name, FEATURES)}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return EfficientNetLiteEncoder(EFFICIENTNETS[name])
