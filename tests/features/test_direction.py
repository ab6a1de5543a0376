"""Test directions of objects: templates, angles and scales, for images with known directions.

A template describes the features of an object that faces the common direction.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from selfmark.config import Features
from selfmark.features.direction import (
    best_angles,
    choose_reductions,
    describe_rotations,
    fit_template,
    match_template,
    template_shape,
)
from selfmark.features.orientation import rotation_matrices
from selfmark.images.augment import move_points, warp_images
from tests.features.random_images import random_images
from tests.features.tiny_encoder import TinyEncoder

SETTINGS = Features(direction_size=64, direction_cells=8, direction_starts=5)


def _draw_animals(angles: Tensor) -> Tensor:
    """Return noisy images [N, 3, 64, 64] in 0..1 of an animal that is turned by each angle.

    Its head is red, its tail is blue, and its body is symmetric.
    """
    generator = torch.Generator().manual_seed(1)
    image = torch.zeros(3, 64, 64)
    image[:, 18:46, 26:38] = 0.5
    image[0, 10:20, 26:38] = 1
    image[2, 44:60, 30:34] = 1
    turned = warp_images(image.expand(len(angles), 3, 64, 64), rotation_matrices(angles, 64))
    noise = torch.randn(turned.shape, generator=generator)
    return (turned + 0.05 * noise).clamp(0, 1)


def _draw_random_angles(count: int, seed: int = 2) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) * 2 * math.pi


def _average_directions(angles: Tensor) -> complex:
    """Return the mean of the unit vectors at these angles: length 1 if all are equal."""
    return complex(torch.polar(torch.ones_like(angles), angles).mean())


@torch.no_grad()
def _fit(images: Tensor) -> tuple[Tensor, Tensor, float]:
    encoder = TinyEncoder(16)
    views, mirrored = (describe_rotations(encoder, batch, SETTINGS) for batch in (images, images.flip(-1)))
    return fit_template(views, mirrored, SETTINGS, torch.Generator().manual_seed(0))


def test_objects_are_turned_the_same_way_and_their_axis_is_vertical() -> None:
    angles = _draw_random_angles(40)
    template, offset, consistency = _fit(_draw_animals(angles))
    assert consistency > 0.98
    new_angles = _draw_random_angles(30, seed=5)
    with torch.no_grad():
        views = describe_rotations(TinyEncoder(16), _draw_animals(new_angles), SETTINGS)
    # Turning each object by the angle that was found for it gives all of them the common direction.
    common_angle = _average_directions(new_angles + match_template(views, template) + offset)
    assert abs(common_angle) > 0.98
    axis = math.degrees(math.atan2(common_angle.imag, common_angle.real)) % 180
    assert min(axis, 180 - axis) < 8, "the head is up or down"


def test_images_without_a_direction_have_a_low_consistency() -> None:
    noise = torch.rand(30, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    _, _, consistency = _fit(noise)
    assert consistency < 0.6


def test_a_template_does_not_depend_on_features_that_all_rotations_share() -> None:
    """Adding the same features to all rotations of all images changes nothing."""
    views, mirrored = torch.rand(2, 12, 8, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    shared = torch.rand(4, 8, 8, generator=torch.Generator().manual_seed(4))
    results = [
        fit_template(views + extra_views, mirrored + extra_views, SETTINGS, torch.Generator().manual_seed(0))
        for extra_views in (torch.zeros(4, 8, 8), shared)
    ]
    torch.testing.assert_close(results[0].template, results[1].template, atol=1e-5, rtol=0)
    assert results[0].template.norm() == pytest.approx(1)
    assert (results[0].template[:, 0, 0] == 0).all(), "corners are not visible in all rotations"


def test_rotated_copies_are_described_one_by_one() -> None:
    images, encoder = random_images(2, 64), TinyEncoder()
    settings = Features(rotations=4, direction_size=32, direction_cells=2)
    with torch.no_grad():
        views = describe_rotations(encoder, images, settings)
        small_images = torch.nn.functional.avg_pool2d(images, 2)
        for turn in range(4):
            features = encoder.describe(torch.rot90(small_images, -turn, (2, 3)))
            expected = features.view(2, 8, 2, 2, 2, 2).mean(dim=(3, 5))  # 4 x 4 cells to 2 x 2
            torch.testing.assert_close(views[:, turn], expected, atol=1e-4, rtol=0)


def test_positive_angles_turn_the_x_axis_toward_the_y_axis() -> None:
    matrix = rotation_matrices(torch.tensor([math.pi / 2, 0.3]), 11)
    moved = move_points(torch.tensor([[[10.0, 5.0]], [[5.0, 5.0]]]), matrix)
    torch.testing.assert_close(moved, torch.tensor([[[5.0, 10.0]], [[5.0, 5.0]]]))


def test_the_angle_of_a_parabola_is_its_vertex() -> None:
    rotation = torch.arange(8.0)
    for vertex in (2.0, 2.3, 4.6, 0.2, 7.7):
        distance = (rotation - vertex + 4) % 8 - 4  # around the circle of 8 rotations
        (angle,) = best_angles(-(distance**2)[None])
        assert float(angle) % (2 * math.pi) == pytest.approx(vertex * math.pi / 4, abs=1e-5)
    assert best_angles(torch.tensor([[0.0, 1.0]])).tolist() == pytest.approx([math.pi])


@pytest.mark.parametrize(
    ("size", "multiple", "expected", "grid"),
    [
        (256, 32, (2, 2), 8),
        (192, 32, (1, 3), 8),
        (128, 32, (1, 2), 8),
        (264, 8, (1, 4), 8),
        (32, 8, (1, 1), 4),
    ],
)
def test_rotated_copies_have_the_expected_reductions_and_grids(
    size: int, multiple: int, expected: tuple[int, int], grid: int
) -> None:
    settings, encoder = Features(direction_size=128, direction_cells=8), TinyEncoder()
    encoder.size_multiple = multiple
    assert choose_reductions(size, multiple, settings) == expected
    assert template_shape(encoder, size, settings) == (8, grid, grid)
    if size <= 64:
        with torch.no_grad():
            views = describe_rotations(encoder, torch.zeros(1, 3, size, size), settings)
        assert views.shape == (1, settings.rotations, 8, grid, grid)
