"""Test random homographies, and compare images and points mapped by them with OpenCV."""

import cv2
import numpy as np
import pytest
import torch

from training.keypoints.homography import (
    invert,
    sample_homographies,
    sample_pairs,
    warp_images,
    warp_points,
)
from training.keypoints.settings import Views

VIEWS = Views(side=48, rotation=60.0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(3)


@pytest.fixture
def homographies(generator):
    return sample_homographies(6, 64, VIEWS, generator)


def draw_smooth_images(count, side):
    rng = np.random.default_rng(0)
    return np.stack([cv2.GaussianBlur(rng.random((side, side), np.float32), (0, 0), 2) for _ in range(count)])


def test_views_match_opencv(homographies):
    images = draw_smooth_images(6, 64)
    views, is_inside = warp_images(torch.from_numpy(images)[:, None], homographies, 48)
    assert 0.3 < is_inside.float().mean() < 1
    for image, view, seen, matrix in zip(images, views[:, 0], is_inside, homographies, strict=True):
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        expected = cv2.warpPerspective(image, matrix.double().numpy(), (48, 48), flags=flags)
        # OpenCV rounds positions to 1/32 of a pixel.
        np.testing.assert_allclose(view.numpy()[seen], expected[seen], atol=2e-3)


def test_mapped_points_match_opencv(homographies):
    xy = torch.rand(6, 9, 2) * 47
    expected = [
        cv2.perspectiveTransform(points[None].double().numpy(), matrix.double().numpy())[0]
        for points, matrix in zip(xy, homographies, strict=True)
    ]
    np.testing.assert_allclose(warp_points(xy, homographies), np.stack(expected), atol=1e-3)


def test_a_mapped_point_stays_on_the_same_image_content(homographies):
    images = torch.zeros(6, 1, 64, 64)
    places = torch.full((6, 1, 2), 31.0) + torch.arange(6.0)[:, None, None] - 3
    for index, (x, y) in enumerate(places[:, 0].long().tolist()):
        images[index, 0, y - 1 : y + 2, x - 1 : x + 2] = 1.0
    views, _ = warp_images(images, homographies, 48)
    mapped = warp_points(places, invert(homographies))[:, 0]
    steps = torch.arange(48.0)
    weight = views[:, 0].sum(dim=(1, 2))
    centroid = torch.stack(
        ((views[:, 0].sum(1) * steps).sum(1) / weight, (views[:, 0].sum(2) * steps).sum(1) / weight), dim=1
    )
    torch.testing.assert_close(mapped, centroid, atol=0.3, rtol=0)


def test_missing_points_stay_missing(homographies):
    assert warp_points(torch.full((6, 2, 2), torch.nan), homographies).isnan().all()


def test_a_view_without_random_changes_is_centered(generator):
    still_views = Views(
        side=40, zoom=(0.5, 0.5), stretch=0, rotation=0, shear=0, perspective=0, shift=0, roam=0
    )
    matrix = sample_homographies(1, 80, still_views, generator)[0]
    # A pixel of the view covers half a pixel of the image; the view's center shows the image's center.
    torch.testing.assert_close(matrix, torch.tensor([[0.5, 0, 29.75], [0, 0.5, 29.75], [0, 0, 1]]))


def test_the_setting_roam_moves_both_views_of_a_pair_by_the_same_shift(generator):
    views = Views(side=40, zoom=(1, 1), stretch=0, rotation=0, shear=0, perspective=0, shift=0, roam=0.25)
    first, second = sample_pairs(50, 80, views, generator)
    torch.testing.assert_close(first, second)
    shift = first[:, :2, 2] - 20
    assert shift.abs().max() <= 20.0
    assert shift.std() > 8


def test_the_inverse_undoes_the_homography(homographies):
    xy = torch.rand(6, 9, 2) * 47
    torch.testing.assert_close(
        warp_points(warp_points(xy, homographies), invert(homographies)), xy, atol=1e-3, rtol=0
    )
    exact_inverse = torch.linalg.inv(homographies.double())
    torch.testing.assert_close(
        invert(homographies).double(), exact_inverse / exact_inverse[:, 2:, 2:], atol=1e-4, rtol=1e-4
    )
