"""Test training images of the keypoint detector: drawn shapes, scenes and animals, cropped photographs."""

import cv2
import numpy as np
import pytest

from training.keypoints import photographs, scenes, shapes
from training.keypoints.drawing import draw_polygons
from training.keypoints.shapes import (
    draw_almond,
    draw_checkerboard,
    draw_cube,
    draw_dots,
    draw_horn,
    draw_lines,
    draw_oval,
    draw_polygon,
    draw_star,
    draw_stripes,
)

SIDE = 192


def draw_shape(maker, seed):
    """Draw a single shape on a uniform background and return it with its points."""
    rng = np.random.default_rng(seed)
    shape = maker(rng, SIDE, np.array([95.0, 97.0]), 60.0, 0.5)
    canvas = np.full((SIDE, SIDE), 0.5, np.float32)
    for mask, value in shape.layers:
        assert mask.min() >= 0
        assert mask.max() <= 1
        canvas += mask * (value - canvas)
    return canvas, shape.points


def compute_cornerness(image):
    """Return the smaller eigenvalue of the structure tensor."""
    return cv2.cornerMinEigenVal(image, blockSize=3, ksize=3)


@pytest.mark.parametrize(
    "maker",
    [draw_polygon, draw_star, draw_lines, draw_checkerboard, draw_stripes, draw_cube, draw_almond, draw_horn],
)
def test_the_points_of_a_shape_lie_on_its_corners(maker):
    offsets, strengths = [], []
    for seed in range(6):
        image, points = draw_shape(maker, seed)
        points = points[:2] if maker is draw_almond else points  # Point 3 is the iris.
        strength = compute_cornerness(image)
        typical = np.percentile(strength[strength > 1e-5], 50)
        for x, y in np.round(points).astype(int):
            neighborhood = strength[y - 4 : y + 5, x - 4 : x + 5]
            row, column = np.unravel_index(neighborhood.argmax(), neighborhood.shape)
            offsets.append(np.hypot(row - 4, column - 4))
            strengths.append(neighborhood.max() / typical)
    # Outlines are blurred by a pixel and cornerness has a wide window, so its peak lies inside the corner.
    assert np.median(offsets) <= 2.3
    assert np.mean(np.array(strengths) > 2) > 0.8


def test_an_oval_has_no_points():
    assert all(len(draw_shape(draw_oval, seed)[1]) == 0 for seed in range(4))


def test_dots_have_their_points_in_the_middle():
    for seed in range(6):
        image, points = draw_shape(draw_dots, seed)
        difference = np.abs(image - 0.5)
        for x, y in points:
            rows, columns = np.mgrid[:SIDE, :SIDE]
            weight = difference * (np.hypot(columns - x, rows - y) < 13)
            centroid = (weight * columns).sum() / weight.sum(), (weight * rows).sum() / weight.sum()
            assert np.hypot(centroid[0] - x, centroid[1] - y) < 0.3


def test_a_polygon_is_centered_on_its_corners():
    rows, columns = np.mgrid[:64, :64]
    offsets = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        angle = np.arange(5) * 2 * np.pi / 5 + rng.uniform(0, 6)
        center, radius = rng.uniform(28, 36, 2), rng.uniform(8, 20)
        mask = draw_polygons(64, [center + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)])
        total = mask.sum()
        offsets.append(np.array([(mask * columns).sum(), (mask * rows).sum()]) / total - center)
        exact_area = 2.5 * radius**2 * np.sin(2 * np.pi / 5)
        assert exact_area < total < exact_area * (1 + 0.6 / radius) ** 2  # OpenCV adds half a pixel per side.
    assert np.abs(offsets).max() < 0.25
    assert np.abs(np.mean(offsets, axis=0)).max() < 0.05


@pytest.mark.parametrize("draw", [shapes.draw, scenes.draw, scenes.draw_animal])
def test_an_image_depends_only_on_its_generator(draw):
    image, points = draw(np.random.default_rng([0, 5]), 96)
    same_image, same_points = draw(np.random.default_rng([0, 5]), 96)
    other_image, _ = draw(np.random.default_rng([0, 6]), 96)
    assert image.dtype == np.float32
    assert image.shape == (96, 96)
    assert image.min() >= 0
    assert image.max() <= 1
    np.testing.assert_array_equal(image, same_image)
    np.testing.assert_array_equal(points, same_points)
    assert np.abs(image - other_image).max() > 0.05


def test_every_point_has_contrast_around_it():
    contrasts = []
    for seed in range(10):
        image, points = shapes.draw(np.random.default_rng([9, seed]), 256)
        for x, y in np.round(points).astype(int):
            if 8 <= x < 248 and 8 <= y < 248:
                contrasts.append(np.ptp(image[y - 8 : y + 9, x - 8 : x + 9]))
    assert len(contrasts) > 100
    assert min(contrasts) > 0.04


def test_photographs_are_collected_and_cropped(tmp_path, capsys):
    written = photographs.collect(tmp_path)
    assert tmp_path / "grace_hopper.png" in written  # This photograph comes with matplotlib.
    sources = photographs.load(tmp_path)
    assert len(sources) == len(written)
    for seed in range(5):
        image, points = photographs.crop(np.random.default_rng(seed), sources, 64, (40, 200))
        assert image.shape == (64, 64)
        assert len(points) == 0
        assert image.std() > 0.005


def test_the_error_about_missing_photographs_names_the_command(tmp_path):
    with pytest.raises(photographs.InputError, match=r"training\.keypoints\.photographs"):
        photographs.load(tmp_path)
