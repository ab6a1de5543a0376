"""Test augmentation: points and pixels move together, and each color change has its effect."""

from __future__ import annotations

import colorsys
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfmark.config import Augment
from selfmark.images import augment

SIZE = 64
UNCHANGED = replace(
    Augment(),
    contrast=(1.0, 1.0),
    brightness=(1.0, 1.0),
    noise=0.0,
    blur_fraction=0.0,
    color_fraction=0.0,
)


def _make_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_the_inverse_moves_points_back(seed: int) -> None:
    generator = _make_generator(seed)
    matrix = augment.random_affine(4, SIZE, Augment(), generator)
    matrix = augment.prepend_flip(matrix, torch.tensor([True, False, True, False]), SIZE)
    xy = torch.rand(4, 9, 2, generator=generator) * SIZE
    moved_back = augment.move_points(augment.move_points(xy, matrix), augment.invert_affine(matrix))
    assert torch.allclose(moved_back, xy, atol=1e-3)


def _draw_blob(x: float, y: float) -> torch.Tensor:
    """Draw a Gaussian spot, [1, 3, SIZE, SIZE]."""
    grid = torch.arange(SIZE).float()
    return torch.exp(-((grid[None] - x) ** 2 + (grid[:, None] - y) ** 2) / (2 * 2.5**2)).expand(
        1, 3, SIZE, SIZE
    )


def _compute_centroid(image: torch.Tensor) -> tuple[float, float]:
    weight = image[0, 0].double()
    grid = torch.arange(SIZE).double()
    x = (weight.sum(0) * grid).sum() / weight.sum()
    y = (weight.sum(1) * grid).sum() / weight.sum()
    return float(x), float(y)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.booleans())
def test_pixels_and_points_move_together(seed: int, flip: bool) -> None:
    generator = _make_generator(seed)
    x, y = (torch.rand(2, generator=generator) * 14 + 25).tolist()
    matrix = augment.random_affine(1, SIZE, Augment(), generator)
    matrix = augment.prepend_flip(matrix, torch.tensor([flip]), SIZE)
    pixel_x, pixel_y = _compute_centroid(augment.warp_images(_draw_blob(x, y), matrix))
    moved = augment.move_points(torch.tensor([[[x, y]]]), matrix)[0, 0]
    assert (pixel_x, pixel_y) == pytest.approx(tuple(moved.tolist()), abs=0.15)


def test_warped_images_match_opencv() -> None:
    rng = np.random.default_rng(0)
    image = cv2.GaussianBlur(rng.random((SIZE, SIZE, 3)).astype(np.float32), (0, 0), 2)
    matrix = augment.random_affine(1, SIZE, Augment(), _make_generator(5))
    ours = (
        augment.warp_images(torch.from_numpy(image).permute(2, 0, 1)[None], matrix)[0]
        .permute(1, 2, 0)
        .numpy()
    )
    theirs = cv2.warpAffine(
        image, matrix[0].numpy().astype(np.float64), (SIZE, SIZE), borderMode=cv2.BORDER_REPLICATE
    )
    assert np.abs(ours - theirs).max() < 0.02  # OpenCV rounds positions to 1/32 pixel


def test_flipped_images_match_torch() -> None:
    images = torch.rand(2, 3, SIZE, SIZE)
    matrix = augment.prepend_flip(torch.eye(2, 3).repeat(2, 1, 1), torch.tensor([True, False]), SIZE)
    warped = augment.warp_images(images, matrix)
    assert torch.allclose(warped[0], images[0].flip(-1), atol=1e-4)
    assert torch.allclose(warped[1], images[1], atol=1e-4)
    moved = augment.move_points(torch.tensor([[[10.0, 20.0]]] * 2), matrix)
    assert moved[:, 0].tolist() == [[SIZE - 1 - 10.0, 20.0], [10.0, 20.0]]


def test_inverse_matrices_match_numpy() -> None:
    matrix = augment.random_affine(5, SIZE, Augment(), _make_generator(2))
    matrix = augment.prepend_flip(matrix, torch.tensor([True, False, True, False, True]), SIZE)
    square = np.concatenate([matrix.numpy(), np.tile([[[0.0, 0.0, 1.0]]], (5, 1, 1))], axis=1)
    np.testing.assert_allclose(augment.invert_affine(matrix).numpy(), np.linalg.inv(square)[:, :2], atol=1e-4)


def test_affine_parameters_stay_in_range() -> None:
    matrix = augment.random_affine(2000, SIZE, Augment(), _make_generator())[:, :, :2]
    scale = matrix.norm(dim=1)
    angle = torch.rad2deg(torch.atan2(matrix[:, 1, 0], matrix[:, 0, 0]))
    assert 0.8 <= scale.min() < 0.81
    assert 1.19 < scale.max() <= 1.2001
    assert 39 < angle.abs().max() <= 40.001
    # The columns are orthogonal: there is no shear.
    column_products = (matrix[:, :, 0] * matrix[:, :, 1]).sum(dim=1)
    assert column_products.abs().max() < 1e-4


def test_border_pixels_extend_half_a_pixel_beyond_their_centers() -> None:
    xy = torch.tensor([[[-0.4, 0.0], [-0.6, 0.0], [63.4, 63.4], [63.6, 10.0]]])
    assert augment.points_inside(xy, SIZE).tolist() == [[True, False, True, False]]


def test_the_area_outside_the_image_repeats_the_border_or_is_black() -> None:
    """Shift a white image by 10.5 pixels; OpenCV makes the same black border."""
    image, matrix = torch.ones(1, 3, SIZE, SIZE), torch.tensor([[[1.0, 0.0, 10.5], [0.0, 1.0, 0.0]]])
    assert augment.warp_images(image, matrix).min() == 1
    black = augment.warp_images(image, matrix, "zeros")[0, 0].numpy()
    expected = cv2.warpAffine(image[0, 0].numpy(), matrix[0].numpy(), (SIZE, SIZE))
    np.testing.assert_allclose(black, expected, atol=0.02)
    assert (black[:, :10] == 0).all()


def test_a_fraction_of_the_images_has_noise() -> None:
    noisy = Augment(noise=0.05, noise_fraction=0.5)
    sigma = augment.random_color_changes(4_000, noisy, _make_generator()).noise_sigma
    assert (sigma > 0).float().mean() == pytest.approx(0.5, abs=0.03)
    assert sigma[sigma > 0].mean() == pytest.approx(0.025, abs=0.001)


def test_neutral_color_changes_have_no_effect() -> None:
    images = torch.rand(3, 3, SIZE, SIZE)
    assert torch.allclose(augment.augment_colors(images, UNCHANGED, _make_generator()), images, atol=1e-5)


def test_brightness_scales_the_mean_and_contrast_the_deviation() -> None:
    images = torch.rand(1, 3, SIZE, SIZE) * 0.4 + 0.3
    darker = augment.augment_colors(images, replace(UNCHANGED, brightness=(0.9, 0.9)), _make_generator())
    assert darker.mean() / images.mean() == pytest.approx(0.9, abs=1e-4)
    flatter = augment.augment_colors(images, replace(UNCHANGED, contrast=(0.5, 0.5)), _make_generator())
    assert flatter.std() / images.std() == pytest.approx(0.5, abs=1e-4)
    assert flatter.mean() == pytest.approx(float(images.mean()), abs=1e-4)


def test_a_fraction_of_the_images_is_inverted() -> None:
    images = torch.rand(400, 3, 8, 8, generator=_make_generator()) * 0.2 + 0.4
    out = augment.augment_colors(images, replace(UNCHANGED, negative_fraction=0.25), _make_generator(1))
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    inverted = ((out - (2 * mean - images)).abs() < 1e-5).flatten(1).all(dim=1)
    kept = ((out - images).abs() < 1e-5).flatten(1).all(dim=1)
    assert (inverted ^ kept).all()
    assert 70 <= int(inverted.sum()) <= 130  # 100 expected, standard deviation 9


def test_zero_saturation_is_gray_and_hue_rotates_colors() -> None:
    images = torch.rand(2, 3, 8, 8)
    gray = augment.augment_colors(
        images, replace(UNCHANGED, color_fraction=1.0, hue=0.0, saturation=(0, 0)), _make_generator()
    )
    assert torch.allclose(gray, gray.mean(dim=1, keepdim=True).expand_as(gray), atol=1e-5)
    rotations = augment._random_color_matrix(
        200, replace(UNCHANGED, color_fraction=1.0, hue=30.0, saturation=(1, 1)), _make_generator()
    )
    red = torch.tensor([0.6, 0.4, 0.4])
    hues = [  # degrees, between -180 and 180; the hue of `red` is 0
        ((colorsys.rgb_to_hsv(*(matrix @ red).tolist())[0] * 360 + 180) % 360) - 180 for matrix in rotations
    ]
    assert 25 < max(hues) <= 31
    assert -31 <= min(hues) < -25


def test_blurred_images_match_opencv() -> None:
    images = torch.rand(1, 3, SIZE, SIZE)
    ours = augment.augment_colors(
        images, replace(UNCHANGED, blur_fraction=1.0, blur_sigma=(0.9, 0.9)), _make_generator()
    )
    image = images[0].permute(1, 2, 0).numpy()
    theirs = cv2.GaussianBlur(image, (5, 5), 0.9, borderType=cv2.BORDER_REPLICATE)
    assert np.abs(ours[0].permute(1, 2, 0).numpy() - theirs).max() < 1e-4


def test_a_fraction_of_the_images_has_a_gray_square() -> None:
    images = torch.zeros(400, 3, 32, 32)
    cut = augment.erase(images, augment.random_cutout(400, 32, 10, 0.5, _make_generator()), 0.5)
    is_erased = cut[:, 0] == 0.5
    area = is_erased.sum(dim=(1, 2))
    assert set(area.tolist()) == {0, 100}
    assert 150 < int((area > 0).sum()) < 250
    height = is_erased.any(dim=2).sum(dim=1)
    assert set(height.tolist()) == {0, 10}


def test_the_same_seed_gives_the_same_images() -> None:
    images = torch.rand(2, 3, SIZE, SIZE)
    first, repeated, with_other_seed = (
        augment.augment_colors(images, Augment(), _make_generator(seed)) for seed in (3, 3, 4)
    )
    assert torch.equal(first, repeated)
    assert not torch.equal(first, with_other_seed)
