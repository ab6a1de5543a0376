"""Test networks on a pretrained encoder: heatmaps, positions, weights files and model cards.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from selfmark.config import Features, Images, Network, Runtime, Student
from selfmark.errors import InputError
from selfmark.features.efficientnet_lite import EfficientNetLiteEncoder
from selfmark.features.loading import build_encoder, load_encoder
from selfmark.model.card import ModelCard, read_card, write_card
from selfmark.model.feature_network import FeaturePsi, ZeroShotPsi, similarity_heat
from selfmark.model.heatmaps import heat_centroids
from selfmark.model.landmark_network import (
    LandmarkNetwork,
    build_landmark_network,
    bytes_per_network_image,
    prepare_landmark_network,
    read_weights,
    select_stored_weights,
)
from selfmark.model.network import Psi
from selfmark.run.tensor_files import write_tensors
from tests.features.random_images import random_images

STUDENT = Student(width=16, depth=2)
CARD = ModelCard(
    ("a", "b", "c"),
    (1, 0, 2),
    ((0, 1),),
    Images(size=64),
    Network(channels=32, depth=2, descriptor=16, norm_groups=4),
    "centroid",
    False,
    {},
    architecture="encoder",
    features=Features(name="efficientnet-lite0", sharpness=20.0),
    student=STUDENT,
)
ZERO_SHOT = replace(CARD, architecture="zero-shot")


def draw_unit_vectors(*shape: int, seed: int) -> torch.Tensor:
    """Return a random tensor whose vectors along dimension 1 have length 1."""
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=1)


# --- shapes and values --------------------------------------------------------------------------------


@pytest.mark.parametrize("card", [CARD, ZERO_SHOT])
@pytest.mark.parametrize("size", [64, 96])
def test_the_side_of_a_map_is_a_quarter_of_the_image_side(card: ModelCard, size: int) -> None:
    network = build_landmark_network(card).eval()
    with torch.no_grad():
        maps = network(random_images(2, size))
    assert maps.shape == (2, 3, size // 4, size // 4)
    assert maps.dtype == torch.float32


def test_an_image_side_that_is_not_a_multiple_of_32_is_an_error() -> None:
    with pytest.raises(InputError, match=r"multiple of 32 pixels, not 80; change images\.size"):
        build_landmark_network(CARD)(random_images(1, 80))


def test_the_head_reads_scaled_features() -> None:
    """Compute the heatmaps layer by layer."""
    network = FeaturePsi(build_encoder("efficientnet-lite0"), STUDENT, 3).eval()
    images = random_images(2, 64)
    first, second, last = (layer for layer in network.head if isinstance(layer, torch.nn.Conv2d))
    with torch.no_grad():
        x = STUDENT.feature_scale * network.encoder(images)
        x = F.relu(F.conv2d(x, first.weight, first.bias))
        x = F.relu(F.conv2d(x, second.weight, second.bias, padding=1))
        x = F.conv2d(x, last.weight, last.bias)
        expected = F.interpolate(x, (16, 16), mode="bilinear")
        torch.testing.assert_close(network(images), expected)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_depth_is_the_number_of_convolutions_before_the_last(depth: int) -> None:
    network = build_landmark_network(replace(CARD, student=replace(STUDENT, depth=depth)))
    assert isinstance(network, FeaturePsi)
    convolutions = [layer for layer in network.head if isinstance(layer, torch.nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [16] * depth + [3]


@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_positions_are_the_soft_argmax_of_the_similarity(sharpness: float) -> None:
    features, centroids = draw_unit_vectors(2, 5, 6, 4, seed=0), draw_unit_vectors(3, 5, seed=1)
    heat = similarity_heat(features, centroids, sharpness)
    located = heat_centroids(heat)
    for image in range(2):
        for landmark in range(3):
            total = x = y = 0.0
            highest = -1.0
            for row in range(6):
                for column in range(4):
                    similarity = sum(
                        float(centroids[landmark, d]) * float(features[image, d, row, column])
                        for d in range(5)
                    )
                    weight = math.exp(sharpness * similarity)
                    total, x, y = total + weight, x + weight * column, y + weight * row
                    highest = max(highest, similarity)
            found = located.cells[image, landmark].tolist()
            assert found == pytest.approx([x / total, y / total], abs=1e-3)
            assert float(heat[image, landmark].max()) == pytest.approx(highest, abs=1e-5)
            assert float(located.score[image, landmark]) == pytest.approx(highest, abs=1e-5)


def test_a_centroid_unlike_all_cells_has_an_empty_heatmap() -> None:
    feature = draw_unit_vectors(1, 5, 1, 1, seed=0).expand(1, 5, 4, 4)
    heat = similarity_heat(feature, -feature[:, :, 0, 0], 30.0)
    assert torch.equal(heat, torch.zeros(1, 1, 4, 4))


def test_a_centroid_taken_from_an_image_is_found_there() -> None:
    encoder = build_encoder("efficientnet-lite0")
    images = random_images(1, 128)
    with torch.no_grad():
        features = encoder.describe(images)
        centroids = features[0, :, [3, 10], [12, 5]].T
        network = ZeroShotPsi(encoder, centroids, Features(sharpness=1000.0))
        maps = network(images)
    for index, (row, column) in enumerate([(3, 12), (10, 5)]):
        flat_index = int(F.avg_pool2d(maps[:, index : index + 1], 2).argmax())
        assert (flat_index // 16, flat_index % 16) == (row, column)


# --- cards --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card", "kind"),
    [(replace(CARD, architecture="hourglass"), Psi), (CARD, FeaturePsi), (ZERO_SHOT, ZeroShotPsi)],
)
def test_weights_of_every_architecture_are_loaded(
    card: ModelCard, kind: type[LandmarkNetwork], tmp_path: Path
) -> None:
    network = build_landmark_network(card)
    assert isinstance(network, kind)
    source = {
        name: torch.full(value.shape, 0.25, dtype=value.dtype) for name, value in network.state_dict().items()
    }
    write_tensors(source, {}, tmp_path / "weights.safetensors")
    loaded = read_weights(network, tmp_path / "weights.safetensors")
    assert all(torch.equal(value, source[name]) for name, value in loaded.state_dict().items())
    prepare_landmark_network(loaded, torch.device("cpu"), Runtime())
    assert loaded(random_images(1, 64)).shape == (1, 3, 16, 16)
    assert bytes_per_network_image(card) > 3 * 64**2 * 4


# This network turns images so that all objects face the same way before it finds landmarks.
TURNED = replace(CARD, features=replace(CARD.features, orientation="turned", direction_size=64))


@pytest.mark.parametrize(
    ("card", "changed", "stored"),
    [
        (CARD, "", {"head"}),
        (CARD, "encoder", {"head", "encoder"}),
        (ZERO_SHOT, "", {"centroids"}),
        (TURNED, "", {"finder.template", "finder.offset", "psi.head"}),
        (TURNED, "psi.encoder", {"finder.template", "finder.offset", "psi.head", "psi.encoder"}),
    ],
)
def test_an_encoder_is_stored_only_if_it_was_trained(
    card: ModelCard, changed: str, stored: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    network = build_landmark_network(card)
    published = load_encoder("efficientnet-lite0").state_dict()
    for name, module in network.named_modules():
        if isinstance(module, EfficientNetLiteEncoder):
            module.load_state_dict(published)
            if name == changed:
                next(module.parameters()).data[0] += 1e-3
    weights = select_stored_weights(network)
    write_tensors(weights, {}, path)
    assert all(any(name.startswith(prefix) for prefix in stored) for name in weights)
    assert all(any(name.startswith(prefix) for name in weights) for prefix in stored)
    loaded = read_weights(build_landmark_network(card), path).state_dict()
    assert loaded.keys() == network.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in network.state_dict().items())


def test_only_the_default_encoder_may_be_missing_from_a_weights_file(tmp_path: Path) -> None:
    """Other encoders' weights are not installed everywhere, so the model's weights file must contain them."""
    card = replace(CARD, features=Features(name="efficientnet-lite1"))
    network = build_landmark_network(card)
    assert select_stored_weights(network).keys() == network.state_dict().keys()
    head = {name: value for name, value in network.state_dict().items() if name.startswith("head")}
    write_tensors(head, {}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match=r"'encoder.*' is missing"):
        read_weights(build_landmark_network(card), tmp_path / "weights.safetensors")


def test_zero_shot_uses_the_sharpness_of_the_card() -> None:
    network = build_landmark_network(ZERO_SHOT)
    assert isinstance(network, ZeroShotPsi)
    assert network.sharpness == 20.0
    assert isinstance(network.encoder, EfficientNetLiteEncoder)
    assert network.centroids.shape == (3, network.encoder.part_channels)


def test_features_that_do_not_exist_are_refused() -> None:
    for name in ("none", "efficientnet-lite9"):
        with pytest.raises(InputError, match=f"unknown features '{name}'"):
            build_landmark_network(replace(CARD, features=Features(name=name)))


@pytest.mark.parametrize("card", [CARD, ZERO_SHOT])
def test_a_card_is_written_and_read(card: ModelCard, tmp_path: Path) -> None:
    write_card(card, tmp_path)
    assert read_card(tmp_path) == card


def test_a_card_of_an_older_version_describes_an_hourglass(tmp_path: Path) -> None:
    hourglass = replace(CARD, architecture="hourglass", features=Features(), student=Student())
    write_card(hourglass, tmp_path)
    path = tmp_path / "model.json"
    values = json.loads(path.read_text())
    for field in ("architecture", "features", "student"):
        del values[field]
    path.write_text(json.dumps(values))
    assert read_card(tmp_path) == hourglass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "transformer"}, "unknown value 'transformer' of 'architecture'"),
        ({"architecture": ["encoder"]}, "unknown value .* of 'architecture'"),
        ({"features": {"name": 3}}, "'name' must be"),
        ({"features": {"sharpness": -1}}, r"features\.sharpness must be"),
        ({"features": "efficientnet-lite0"}, "valid model description"),
        ({"student": {"width": 10**9}}, r"student\.width must be"),
        ({"student": {"depth": 10**6}}, r"student\.depth must be"),
        ({"student": {"depht": 2}}, "depht"),
    ],
)
def test_a_damaged_card_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_card(CARD, tmp_path)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=message):
        read_card(tmp_path)
