"""Build the network that a model card describes, load its weights, and prepare it for a device."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from selfmark.config import DEFAULT_FEATURES, STRIDE, Runtime
from selfmark.config.memory import estimate_heatmap_bytes
from selfmark.features.cells import described_channels
from selfmark.features.direction import template_shape
from selfmark.features.encoder import Encoder
from selfmark.features.loading import build_encoder, has_installed_weights, load_encoder
from selfmark.features.onnx_features import OnnxEncoder
from selfmark.model.card import ModelCard
from selfmark.model.feature_network import FeaturePsi, ZeroShotPsi, bytes_per_feature_image
from selfmark.model.network import Psi, bytes_per_image, prepare_network
from selfmark.model.plain_backend import create_plain_backend
from selfmark.model.soft_argmax import EmbeddingPsi, SoftArgmaxPsi
from selfmark.model.turned_network import DirectionFinder, TurnedPsi
from selfmark.run.devices import uses_bf16
from selfmark.run.tensor_files import read_tensor_names, read_tensors, require_finite

# Psi is the symbol of the paper for a network that locates landmarks.
LandmarkNetwork = Psi | FeaturePsi | ZeroShotPsi | TurnedPsi


def build_landmark_network(card: ModelCard, onnx_model: Tensor | None = None) -> LandmarkNetwork:
    """Build the network that a card describes; its saved weights can then be loaded.

    A network without pretrained features is built on the meta device, which allocates no memory.
    `read_weights` allocates the memory once the weights of the file are known to match.

    Args:
        card: the model card.
        onnx_model: [bytes] uint8, the stored ONNX model for features `onnx:FILE`; None to read FILE.

    Raises:
        InputError: if the features are unknown or their ONNX model is missing or unsuitable.
    """
    landmarks = len(card.names)
    if card.architecture == "hourglass":
        with torch.device("meta"):
            return Psi(card.network, landmarks)
    if card.architecture == "soft-argmax":
        with torch.device("meta"):
            return SoftArgmaxPsi(card.network, landmarks, card.softmax)
    if card.architecture == "embedding":
        with torch.device("meta"):
            return EmbeddingPsi(card.network, landmarks)
    stored = None if onnx_model is None else onnx_model.numpy().tobytes()
    encoder = build_encoder(card.features.name, stored)
    psi: FeaturePsi | ZeroShotPsi = FeaturePsi(encoder, card.student, landmarks)
    if card.architecture == "zero-shot":
        num_channels = described_channels(encoder, card.features)
        centroids = torch.zeros(landmarks, num_channels)
        psi = ZeroShotPsi(encoder, centroids, card.features)
    if card.features.orientation != "turned":
        return psi
    template = torch.zeros(template_shape(encoder, card.images.size, card.features))
    finder_encoder = build_encoder(card.features.name, stored)
    return TurnedPsi(DirectionFinder(finder_encoder, card.features, template, torch.zeros(())), psi)


def select_stored_weights(network: LandmarkNetwork) -> dict[str, Tensor]:
    """Return the weights to store: all except the weights that come with every installation of selfmark."""
    weights: dict[str, Tensor] = dict(network.state_dict())
    for prefix, encoder in _find_encoders(network).items():
        if has_installed_weights(encoder):
            weights = _exclude_prefix(weights, prefix)
    return weights


def read_weights(network: LandmarkNetwork, path: Path) -> LandmarkNetwork:
    """Load the weights of a file into a network of `build_landmark_network`; return the network on the CPU.

    Raises:
        DamagedFile: if the file cannot be read.
        InputError: if the weights do not match the network, or the default encoder is not installed.
    """
    names = read_tensor_names(path)
    expected: dict[str, Tensor] = dict(network.state_dict())
    for prefix, encoder in _find_encoders(network).items():
        is_stored = any(name.startswith(prefix) for name in names)
        if not is_stored and encoder.info.name == DEFAULT_FEATURES:
            encoder.load_state_dict(load_encoder(DEFAULT_FEATURES).state_dict())
            expected = _exclude_prefix(expected, prefix)
    tensors, _ = read_tensors(path, expected)
    require_finite(tensors, path)
    if isinstance(network, Psi):
        network = network.to_empty(device="cpu")
    network.load_state_dict(network.state_dict() | tensors)
    return network


def _find_encoders(network: LandmarkNetwork) -> dict[str, Encoder]:
    """Return the encoders of a network; the keys are the prefixes of the names of their weights."""
    return {f"{name}.": module for name, module in network.named_modules() if isinstance(module, Encoder)}


def _exclude_prefix(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights whose names do not start with the prefix."""
    return {name: value for name, value in weights.items() if not name.startswith(prefix)}


def find_onnx_model(network: LandmarkNetwork) -> Tensor | None:
    """Return the ONNX model that computes the features, [bytes] uint8; None for other features."""
    if isinstance(network, Psi) or not isinstance(network.encoder, OnnxEncoder):
        return None
    return torch.frombuffer(bytearray(network.encoder.model_bytes), dtype=torch.uint8)


def prepare_landmark_network(
    network: LandmarkNetwork | DirectionFinder, device: torch.device, runtime: Runtime
) -> None:
    """Move a network to the device, and choose the fastest memory format and backend for that device."""
    if isinstance(network, Psi):
        prepare_network(network, device, runtime)
        return
    if isinstance(network, TurnedPsi):
        prepare_landmark_network(network.finder, device, runtime)
        prepare_landmark_network(network.psi, device, runtime)
        return
    network.to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bf16 = uses_bf16(runtime, device)
    # Features that cannot be trained come from ONNX Runtime, and a CUDA graph cannot capture them.
    is_training_capturable = device.type == "cuda" and network.encoder.is_trainable
    network.backend = create_plain_backend(bf16, is_training_capturable)


def bytes_per_network_image(card: ModelCard) -> int:
    """Return the bytes that one image takes in a pass of the card's network without gradients.

    Usually, the feature maps take the most memory. With very many landmarks, the heatmaps take more.
    """
    return max(_network_bytes(card), estimate_heatmap_bytes(len(card.names), card.images.size // STRIDE))


def _network_bytes(card: ModelCard) -> int:
    """Return the bytes of the feature maps of one image."""
    if card.architecture in ("hourglass", "soft-argmax", "embedding"):
        return bytes_per_image(card.network, card.images.size)
    return bytes_per_feature_image(card.images.size)
