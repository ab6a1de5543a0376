"""Test pictures of landmarks pixel by pixel."""

from __future__ import annotations

import base64

import cv2
import numpy as np
import pytest

from selfmark.model.colors import palette, to_rgb
from selfmark.report.landmark_pictures import (
    draw_contact_sheet,
    draw_landmark_gallery,
    draw_landmarks,
    to_data_uri,
)

GRAY = 90


def _get_palette_rgb(count: int) -> np.ndarray:
    """Return the default colors as [count, 3]."""
    return np.array([to_rgb(color) for color in palette(count)], np.uint8)


def _make_gray_images(count: int, size: int) -> np.ndarray:
    return np.full((count, size, size, 3), GRAY, np.uint8)


def _find_center(picture: np.ndarray, color: np.ndarray) -> np.ndarray:
    """Return the centroid (x, y) of the pixels of exactly this color."""
    rows, columns = np.nonzero((picture == color).all(axis=2))
    assert len(rows) > 0
    return np.array([columns.mean(), rows.mean()])


def test_colors_are_distinct_and_do_not_depend_on_their_number() -> None:
    colors = _get_palette_rgb(40).astype(int)
    distance = np.abs(colors[:, None] - colors[None]).sum(axis=2) + 1000 * np.eye(40, dtype=int)
    assert distance.min() > 10
    assert np.array_equal(_get_palette_rgb(7), _get_palette_rgb(40)[:7])


@pytest.mark.parametrize("size", [64, 128, 256, 512])
def test_discs_are_centered_on_the_points(size: int) -> None:
    # The points are far apart, away from the border, and between pixels.
    xy = np.array([[0.3, 0.35], [0.7, 0.3], [0.55, 0.8]]) * size + 0.25
    picture = draw_landmarks(_make_gray_images(1, size)[0], xy)
    zoom = picture.shape[0] // size
    assert zoom >= 2
    assert picture.shape == (zoom * size, zoom * size, 3)
    for point, color in zip(xy, _get_palette_rgb(3), strict=True):
        assert _find_center(picture, color) == pytest.approx((point + 0.5) * zoom - 0.5, abs=0.5)


def test_a_disc_has_a_white_and_a_black_border_and_a_number() -> None:
    picture = draw_landmarks(_make_gray_images(1, 128)[0], np.array([[64.0, 64.0]])).astype(int)
    middle = (64 + 0.5) * picture.shape[0] / 128 - 0.5
    # Take the pixels from the left edge of the picture to the center of the disc. The number is beside it.
    row = picture[round(middle), : round(middle)].sum(axis=1)
    light, dark = int(np.argmax(row)), int(np.argmin(row))
    assert row[light] > 3 * 200
    assert row[dark] < 3 * 60
    assert dark < light
    pixels_beside = picture[: round(middle) - 2, round(middle) + 6 :]
    assert (pixels_beside > 240).all(axis=2).sum() > 10  # The pixels of the number are white.


def test_missing_and_distant_points_are_not_drawn() -> None:
    image = _make_gray_images(1, 128)[0]
    picture = draw_landmarks(image, np.array([[np.nan, 3.0], [np.inf, 0.0], [1e30, 5.0], [-500.0, 40.0]]))
    assert (picture == GRAY).all()


def test_drawing_does_not_change_the_image() -> None:
    image = _make_gray_images(1, 256)[0]
    draw_landmarks(image, np.array([[100.0, 100.0]]))
    assert (image == GRAY).all()


def test_a_contact_sheet_is_filled_row_by_row() -> None:
    images = np.stack([np.full((64, 64, 3), 40 * (i + 1), np.uint8) for i in range(5)])
    xy_without_landmark = np.full((5, 2, 2), np.nan)
    sheet = draw_contact_sheet(images, xy_without_landmark, columns=3)
    side = draw_landmarks(images[0], xy_without_landmark[0]).shape[0]
    assert sheet.dtype == np.uint8
    height, width, _ = sheet.shape
    assert 2 * side <= height < 2 * side + 20
    assert 3 * side <= width < 3 * side + 30
    step = (width - side) // 2
    for index in range(5):
        top, left = index // 3 * step, index % 3 * step
        assert (sheet[top : top + side, left : left + side] == 40 * (index + 1)).all()
    assert (sheet[step:, 2 * step :] == 255).all()  # The last cell is empty.


def test_a_gallery_is_sorted_and_centered_and_skips_missing_landmarks() -> None:
    size, side = 128, 96
    images = _make_gray_images(5, size)
    xy = np.full((5, 2, 2), 10.0)
    xy[:, 1] = [[40, 50], [60.5, 61.5], [np.nan, 2], [90, 30], [1, 1]]
    score = np.zeros((5, 2))
    score[:, 1] = [0.3, 0.9, 1.0, 0.5, 0.4]
    for image, (x, y) in zip(images, xy[:, 1], strict=True):
        if np.isfinite(x) and x > 1:
            rows, columns = np.mgrid[:size, :size]
            image[np.hypot(columns - x, rows - y) < 2.2] = (250, 250, 250)
    gallery = draw_landmark_gallery(
        images, xy[:, 1], score[:, 1], color=palette(2)[1], max_crops=3, side=side
    )
    assert [row for row, _ in gallery] == [1, 3, 4]
    for _, crop in gallery[:2]:
        assert crop.shape == (side, side, 3)
        bright = np.nonzero((crop > 200).all(axis=2))
        assert [bright[1].mean(), bright[0].mean()] == pytest.approx([side / 2 - 0.5] * 2, abs=0.5)
    ring = _get_palette_rgb(2)[1]
    assert all((crop == ring).all(axis=2).any() for _, crop in gallery)
    missing = np.full((5, 2), np.nan)
    assert (
        draw_landmark_gallery(images, missing, score[:, 1], color=palette(2)[1], max_crops=3, side=side) == []
    )


def test_a_data_uri_contains_the_picture() -> None:
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[..., 0] = 200  # A red picture checks the order of the channels.
    kind, _, payload = to_data_uri(picture).partition(",")
    assert kind == "data:image/jpeg;base64"
    decoded = cv2.imdecode(np.frombuffer(base64.b64decode(payload), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert np.abs(decoded.astype(int) - picture).max() < 8


def test_user_colors_and_connections_are_drawn() -> None:
    xy = np.array([[20.0, 64.0], [108.0, 64.0], [64.0, 20.0]])
    picture = draw_landmarks(_make_gray_images(1, 128)[0], xy, ["#00ff00", "#0000ff", "#ff00ff"], [(0, 1)])
    zoom = picture.shape[0] / 128
    assert _find_center(picture, np.array([0, 0, 255])) == pytest.approx((xy[1] + 0.5) * zoom - 0.5, abs=0.5)
    middle = picture[round(64.5 * zoom), round(64.5 * zoom)]
    assert middle.min() > 200, "there is a line between the first two landmarks"
    # This pixel is halfway between the first landmark and the third, which are not connected.
    pixel_beside = picture[round(42 * zoom), round(42 * zoom)]
    assert (pixel_beside == GRAY).all()
    picture_without_landmark = draw_landmarks(
        _make_gray_images(1, 128)[0], np.where([[False], [True], [False]], np.nan, xy), None, [(0, 1)]
    )
    assert (picture_without_landmark[round(64.5 * zoom), round(64.5 * zoom)] == GRAY).all()
