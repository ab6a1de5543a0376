"""Drawing on one frame: trails, edges, discs and tags."""

from __future__ import annotations

import numpy as np

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
    visible = DrawnObject(xy, opacity=np.array([1.0, 0.3]), size=100.0, tag="", trail=xy[None])
    drawn = draw_frame(frame, [visible], style)
    assert (frame == 0).all(), "the frame itself is not changed"
    assert drawn[50, 50].min() > 20, "the edge between the landmarks"
    assert drawn[50, 20].max() > 2 * drawn[50, 80].max(), "the second landmark is faint"
    outside = DrawnObject(xy + 1000, opacity=np.ones(2), size=100.0, tag="7", trail=xy[None] * np.nan)
    assert draw_frame(frame, [outside], style).any(), "the tag stays inside the frame"
