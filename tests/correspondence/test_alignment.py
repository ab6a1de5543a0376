"""Alignment of objects that face any direction."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from selfmark.correspondence.alignment import align_shapes
from selfmark.images.augment import move_points

SIDE = 256


def _turned_shapes(count: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return landmarks [N, 6, 2] of one shape, rotated, moved and scaled at random; angles; the shape."""
    generator = torch.Generator().manual_seed(seed)
    shape = torch.tensor([[-60.0, 0], [-30, 25], [-30, -25], [0, 5], [40, 10], [60, -20]])
    angle = torch.rand(count, generator=generator) * 2 * math.pi
    cosine, sine = torch.cos(angle), torch.sin(angle)
    rotation = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
    scale = 0.8 + 0.4 * torch.rand(count, 1, 1, generator=generator)
    moved = scale * (shape @ rotation.transpose(1, 2))
    moved += 100 + 50 * torch.rand(count, 1, 2, generator=generator)
    return moved + noise * torch.randn(moved.shape, generator=generator), angle, shape


def test_objects_are_turned_the_same_way() -> None:
    xy, angle, _ = _turned_shapes(40, noise=2.0)
    alignment = align_shapes(xy, SIDE)
    found = torch.atan2(alignment.matrix[:, 1, 0], alignment.matrix[:, 0, 0])
    # The rotation that is undone differs from the true one by the same angle in all images.
    together = torch.polar(torch.ones(40), found + angle)
    deviation = torch.angle(together * together.mean().conj())
    assert float(deviation.abs().max()) < math.radians(6)
    assert alignment.agreement > 0.95


def test_matrices_are_rotations_that_move_objects_to_the_center() -> None:
    xy, _, shape = _turned_shapes(15, noise=0.0)
    alignment = align_shapes(xy, SIDE)
    linear = alignment.matrix[:, :, :2]
    torch.testing.assert_close(linear @ linear.transpose(1, 2), torch.eye(2).expand(15, 2, 2))
    torch.testing.assert_close(torch.linalg.det(linear), torch.ones(15))
    turned = move_points(xy, alignment.matrix)
    size = (shape - shape.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    centered = turned - turned.mean(dim=1, keepdim=True)
    # Without noise, all objects have the same shape up to their scale.
    scales = centered.square().sum(dim=2).mean(dim=1).sqrt() / size
    normalized = centered / scales[:, None, None]
    torch.testing.assert_close(normalized, normalized[:1].expand_as(normalized), atol=0.01, rtol=0)
    np.testing.assert_allclose(turned.mean(dim=(0, 1)), (SIDE - 1) / 2, atol=1.5)
    assert alignment.size == pytest.approx(float(size), rel=0.2)
    assert alignment.agreement > 0.999


def test_a_landmark_that_jumps_does_not_disturb_the_others() -> None:
    xy, angle, _ = _turned_shapes(60, noise=1.0)
    generator = torch.Generator().manual_seed(5)
    xy[:, 2] = 256 * torch.rand(60, 2, generator=generator)
    alignment = align_shapes(xy, SIDE)
    found = torch.atan2(alignment.matrix[:, 1, 0], alignment.matrix[:, 0, 0])
    together = torch.polar(torch.ones(60), found + angle)
    deviation = torch.angle(together * together.mean().conj()).abs()
    assert float(deviation.median()) < math.radians(8)
    assert float(deviation.max()) < math.radians(45)


def test_halves_of_landmarks_without_a_common_shape_do_not_agree() -> None:
    generator = torch.Generator().manual_seed(2)
    assert align_shapes(256 * torch.rand(50, 6, 2, generator=generator), SIDE).agreement < 0.4


def test_three_landmarks_have_no_two_halves_that_tell_a_direction() -> None:
    xy, _, _ = _turned_shapes(10, noise=0.0)
    assert align_shapes(xy[:, :3], SIDE).agreement == 0
