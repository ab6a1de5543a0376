"""Test discs, rings, lines and text by the pixels that they change."""

from __future__ import annotations

import numpy as np
import pytest

from selfmark.draw.primitives import WHITE, draw_disc, draw_line, draw_ring, draw_text, to_fixed_point


def _make_canvas() -> np.ndarray:
    return np.zeros((60, 80, 3), np.uint8)


def _compute_centroid(canvas: np.ndarray) -> np.ndarray:
    weight = canvas[..., 0].astype(float)
    rows, columns = np.mgrid[: canvas.shape[0], : canvas.shape[1]]
    return np.array([(weight * columns).sum(), (weight * rows).sum()]) / weight.sum()


@pytest.mark.parametrize("center", [(30.0, 20.0), (41.5, 29.75), (33.0625, 25.3)])
def test_discs_are_centered_with_subpixel_precision(center: tuple[float, float]) -> None:
    canvas = _make_canvas()
    draw_disc(canvas, np.array(center), 7.5, WHITE)
    np.testing.assert_allclose(_compute_centroid(canvas), center, atol=0.08)
    assert (canvas[..., 0] / 255).sum() == pytest.approx(np.pi * 7.5**2, rel=0.15)


def test_a_ring_has_a_hole() -> None:
    canvas = _make_canvas()
    draw_ring(canvas, np.array([40.0, 30.0]), 12, 2, (0, 200, 0))
    assert canvas[30, 40].tolist() == [0, 0, 0]
    assert canvas[30, 52].tolist() == [0, 200, 0]


def test_a_line_is_at_least_one_pixel_wide() -> None:
    canvas = _make_canvas()
    draw_line(canvas, np.array([10.0, 30.0]), np.array([70.0, 30.0]), 0, WHITE)
    assert (canvas[30, 12:68] > 200).all()


def test_text_is_white_with_a_black_outline() -> None:
    canvas = np.full((60, 80, 3), 128, np.uint8)
    draw_text(canvas, "7", (30, 40), 1.0, outline=4)
    assert canvas.max() == 255
    assert canvas.min() == 0


def test_coordinates_far_outside_do_not_overflow() -> None:
    # Coordinates are limited to 10,000 pixels, in units of 1/16 pixel.
    assert to_fixed_point(np.array([1e30, -1e30])).tolist() == [160_000, -160_000]
