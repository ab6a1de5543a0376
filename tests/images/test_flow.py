"""Test temporal pairs: neighbors come from the same video, and lost points are flagged."""

from __future__ import annotations

import cv2
import numpy as np
import torch

from selfmark.config import Temporal
from selfmark.images.flow import has_nearby_frames, propagate_points, sample_nearby_frames, track_points

SETTINGS = Temporal(enabled=True, max_frame_gap=3, neighbors=4)


def _draw_texture(seed: int, size: int = 96) -> np.ndarray:
    noise = np.random.default_rng(seed).random((size, size)).astype(np.float32)
    blurred = cv2.GaussianBlur(noise, (0, 0), 2)
    return ((blurred - blurred.min()) / np.ptp(blurred) * 255).astype(np.uint8)


def test_points_follow_a_shift_and_lost_points_are_flagged() -> None:
    source = _draw_texture(0)
    target = cv2.warpAffine(
        source, np.float32([[1, 0, 2.5], [0, 1, -1.5]]), (96, 96), borderMode=cv2.BORDER_REFLECT
    )
    points = np.array([[30, 30], [60, 50], [40, 70]], dtype=np.float32)
    tracked, is_valid = track_points(source, target, points, SETTINGS)
    assert is_valid.all()
    np.testing.assert_allclose(tracked - points, [[2.5, -1.5]] * 3, atol=0.1)
    _, is_valid = track_points(
        source,
        _draw_texture(1),
        np.random.default_rng(0).uniform(20, 76, (60, 2)).astype(np.float32),
        SETTINGS,
    )
    assert is_valid.mean() < 0.3, "the images are unrelated"


def test_nearby_frames_are_close_and_in_the_same_video() -> None:
    # Every fourth frame of video 0, every frame of video 1, three still images, and one frame of video 2.
    video = np.array([0] * 12 + [1] * 12 + [-1] * 3 + [2])
    frame = np.array([*range(0, 48, 4), *range(12), -1, -1, -1, 0])
    center = np.zeros((len(video), 2))
    no_tracks = np.full(len(video), -1)
    nearby = sample_nearby_frames(video, frame, no_tracks, center, SETTINGS, np.random.default_rng(0))
    for image in range(24):
        assert (nearby[image] >= 0).all()
        assert (video[nearby[image]] == video[image]).all()
        gap = np.abs(frame[nearby[image]] - frame[image])
        # Frames of video 0 are farther apart than the limit of 3, so only adjacent frames count.
        assert (gap == 4).all() if video[image] == 0 else ((gap >= 1) & (gap <= 3)).all()
    assert (nearby[24:] == -1).all(), "still images and one-frame videos have no neighbors"


def test_has_nearby_frames_agrees_with_the_samples() -> None:
    """Still images, single frames, and two animals that each occur once have no neighbors."""
    for video, frame, tracks, expected in (
        ([-1, -1], [-1, -1], [-1, -1], False),
        ([0, 1, -1], [3, 4, -1], [-1, -1, -1], False),
        ([0, 0], [3, 3], [-1, -1], False),
        ([0, 0], [3, 4], [1, 2], False),
        ([0, 0, -1], [3, 4, -1], [-1, -1, -1], True),
        ([0, 0, 0], [3, 3, 9], [1, 2, 2], True),
    ):
        columns = np.array(video), np.array(frame), np.array(tracks)
        assert has_nearby_frames(*columns) == expected
        nearby = sample_nearby_frames(*columns, np.zeros((len(video), 2)), SETTINGS, np.random.default_rng(0))
        assert bool((nearby >= 0).any()) == expected


def test_nearest_object_is_the_neighbor_if_there_are_no_tracks() -> None:
    frame = np.repeat(np.arange(10), 2)
    center = np.stack([np.tile([10.0, 90.0], 10) + frame, np.full(20, 50.0)], axis=1)
    video, no_tracks = np.zeros(20, dtype=np.int64), np.full(20, -1)
    nearby = sample_nearby_frames(video, frame, no_tracks, center, SETTINGS, np.random.default_rng(0))
    # The two objects alternate, so rows of the same parity belong to the same object.
    assert (nearby % 2 == (np.arange(20) % 2)[:, None]).all()


def test_frames_of_a_track_are_paired_even_if_animals_swap_positions() -> None:
    """Two animals cross: in the middle, the nearest crop is that of the other animal."""
    frame = np.repeat(np.arange(20), 2)
    track = np.tile([4, 9], 20)
    center = np.stack([np.where(track == 4, frame * 10.0, 190.0 - frame * 10.0), np.full(40, 50.0)], axis=1)
    video = np.zeros(40, dtype=np.int64)
    nearby = sample_nearby_frames(video, frame, track, center, SETTINGS, np.random.default_rng(0))
    assert (nearby >= 0).all()
    assert (track[nearby] == track[:, None]).all()
    by_position = sample_nearby_frames(
        video, frame, np.full(40, -1), center, SETTINGS, np.random.default_rng(0)
    )
    assert (track[by_position] != track[:, None]).any(), "positions alone give wrong pairs"


def test_an_absent_animal_is_not_paired_with_another_animal() -> None:
    frame, track = np.array([0, 0, 1, 2, 2]), np.array([1, 2, 1, 1, 2])
    center = np.zeros((5, 2))
    settings = Temporal(enabled=True, max_frame_gap=1, neighbors=3)
    nearby = sample_nearby_frames(
        np.zeros(5, np.int64), frame, track, center, settings, np.random.default_rng(0)
    )
    assert (nearby[[1, 4]] == -1).all(), "track 2 is not in frame 1, the only frame that is near enough"
    assert set(nearby[[0, 2, 3]].ravel().tolist()) <= {0, 2, 3}


def test_only_valid_points_are_propagated() -> None:
    source = _draw_texture(3)
    frames = [
        cv2.warpAffine(
            source, np.float32([[1, 0, shift], [0, 1, 0]]), (96, 96), borderMode=cv2.BORDER_REFLECT
        )
        for shift in range(3)
    ]
    pixels = torch.from_numpy(np.stack(frames))[:, None].expand(3, 3, 96, 96).contiguous()
    xy = torch.tensor([[[40.0, 40.0], [60.0, 50.0], [0.0, 0.0]]]).expand(3, 3, 2).contiguous()
    valid = torch.tensor([[True, True, False]]).expand(3, 3)
    video, neighbor = np.zeros(3, dtype=np.int64), np.array([[1], [2], [-1]])
    propagated = propagate_points(pixels, xy, valid, video, neighbor, SETTINGS)
    assert propagated.valid[:2, 0].tolist() == [[True, True, False]] * 2
    assert not propagated.valid[2].any()
    moved_x = propagated.xy[:2, 0, :2, 0] - xy[:2, :2, 0]
    assert torch.allclose(moved_x, torch.ones(2, 2), atol=0.1)
