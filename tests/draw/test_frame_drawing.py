"""Test drawing on one frame: trails, edges, discs, rings and tags."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from selfmark.draw.frame_drawing import DrawingStyle, DrawnObject, draw_frame, smooth_trail


def test_a_trail_begins_after_a_jump_and_ends_at_the_landmark() -> None:
    path = np.stack([np.linspace(0, 20, 21), np.zeros(21)], axis=1)[:, None]  # [T, 1, 2]
    noisy = path + np.random.default_rng(0).normal(0, 0.5, path.shape)
    noisy[:8, :, 1] += 60  # the first positions were wrong
    smooth = smooth_trail(list(noisy), size=100)
    assert np.isnan(smooth[:8]).all()
    np.testing.assert_array_equal(smooth[-1], noisy[-1])
    roughness = [np.abs(np.diff(trail[9:-1, 0], 2, axis=0)).mean() for trail in (noisy, smooth)]
    assert roughness[1] < roughness[0] / 3


def test_edges_landmarks_and_tags_are_drawn() -> None:
    frame = np.zeros((100, 100, 3), np.uint8)
    style = DrawingStyle(np.array([[255, 40, 40], [40, 80, 200]], np.uint8), ((0, 1),))
    xy = np.array([[20.0, 50.0], [80.0, 50.0]])
    visible = DrawnObject(
        xy, opacity=np.array([1.0, 0.3]), size=100.0, tag="", trail=xy[None], confidence=np.ones(len(xy))
    )
    drawn = draw_frame(frame, [visible], style)
    assert (frame == 0).all(), "the frame itself is not changed"
    assert drawn[50, 50].min() > 20, "the edge between the landmarks is drawn"
    assert drawn[50, 20].max() > 2 * drawn[50, 80].max(), "the second landmark is faint"
    outside = DrawnObject(
        xy + 1000,
        opacity=np.ones(2),
        size=100.0,
        tag="7",
        trail=xy[None] * np.nan,
        confidence=np.ones(len(xy)),
    )
    assert draw_frame(frame, [outside], style).any(), "the tag stays inside the frame"


@pytest.mark.parametrize("size", [40.0, 300.0, 900.0])  # the smallest disc, one in between, and the largest
def test_hollow_landmarks_show_the_frame_inside_a_ring(size: float) -> None:
    rng = np.random.default_rng(0)
    frame = rng.integers(60, 120, (100, 160, 3)).astype(np.uint8)
    colors = np.array([[255, 0, 0], [0, 0, 255], [0, 200, 0]], np.uint8)
    xy = np.array([[30.0, 50.0], [80.0, 50.0], [130.0, 50.0]])
    path = xy + np.linspace(-8, 0, 9)[:, None, None] * [1, 0]  # the trail enters the landmarks from the left
    drawn_object = DrawnObject(
        xy, opacity=np.ones(3), size=size, tag="", trail=path, confidence=np.ones(len(xy))
    )
    filled_style = DrawingStyle(colors, ((0, 1), (1, 2)))
    filled = draw_frame(frame, [drawn_object], filled_style)
    hollow = draw_frame(frame, [drawn_object], replace(filled_style, hollow=frozenset({1})))

    np.testing.assert_array_equal(hollow[50, 80], frame[50, 80], "neither trail nor edge is inside")
    np.testing.assert_array_equal(filled[50, 80], colors[1])
    radius = np.clip(0.022 * size, 3, 9)
    distance = np.hypot(*(np.indices((100, 160))[::-1] - xy[1][:, None, None]))
    ring = hollow[np.abs(distance - (radius - 0.4)) < 0.4]
    assert len(ring) >= 8
    assert np.abs(np.median(ring, axis=0) - colors[1]).max() < 30, "the ring has the color of the landmark"
    np.testing.assert_array_equal(hollow[distance > radius + 3], filled[distance > radius + 3])


def test_a_ring_does_not_cover_a_disc() -> None:
    frame = np.full((60, 60, 3), 90, np.uint8)
    style = DrawingStyle(np.array([[255, 0, 0], [0, 0, 255]], np.uint8), (), frozenset({1}))
    xy = np.array([[30.0, 30.0], [33.0, 30.0]])
    drawn_object = DrawnObject(
        xy, opacity=np.ones(2), size=300.0, tag="", trail=xy[None], confidence=np.ones(len(xy))
    )
    drawn = draw_frame(frame, [drawn_object], style)
    np.testing.assert_array_equal(drawn[30, 30], [255, 0, 0])
    np.testing.assert_array_equal(drawn[30, 33], [255, 0, 0])


def test_a_ring_at_the_border_of_the_frame_is_cut_off() -> None:
    frame = np.full((40, 40, 3), 90, np.uint8)
    style = DrawingStyle(np.array([[255, 0, 0], [0, 0, 255]], np.uint8), (), frozenset({0, 1}))
    xy = np.array([[0.0, 0.0], [np.nan, np.nan]])
    drawn_object = DrawnObject(
        xy, opacity=np.ones(2), size=900.0, tag="", trail=xy[None], confidence=np.ones(len(xy))
    )
    drawn = draw_frame(frame, [drawn_object], style)
    np.testing.assert_array_equal(drawn[0, 0], frame[0, 0])
    np.testing.assert_array_equal(drawn[0, 8], [255, 0, 0])
    np.testing.assert_array_equal(drawn[20:], frame[20:])
