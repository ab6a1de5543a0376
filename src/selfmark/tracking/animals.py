"""Animals before a fixed camera: their tracks, and from these a square around each in every frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d

from selfmark.config import Tracking
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.video import probe_video, read_frames
from selfmark.tracking.background import check_frame_size, learn_background
from selfmark.tracking.tracker import AnimalTracker

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AnimalTracks:
    """Where the A animals of a video are.

    center: [frames, A, 2] pixels of the video, centers at integers; NaN where an animal is not seen
    side:   of the square that holds an animal, the same for all animals and frames
    unread: frames that could not be read
    """

    center: Floats
    side: float
    unread: int = 0


def track_animals(
    path: Path, animals: int, settings: Tracking, on_progress: Progress | None = None
) -> AnimalTracks:
    """Follow so many animals through a video of a fixed camera, front to back; memory holds one frame."""
    video = probe_video(path)
    background = learn_background(path, animals, settings)
    tracker = AnimalTracker(animals, background.area, settings)
    center = np.full((video.frames, animals, 2), np.nan)
    radius = np.full((video.frames, animals), np.nan)
    unread = video.frames
    for number, frame in read_frames(path, range(video.frames)):
        unread -= 1
        check_frame_size(path, number, frame, video.size)
        seen = tracker.step(background.foreground(frame))
        center[number] = (seen.center + 0.5) / background.scale - 0.5
        radius[number] = seen.radius / background.scale
        if on_progress is not None:
            on_progress(number + 1, video.frames)
    missing = np.flatnonzero(np.isnan(radius).all(axis=0))
    if len(missing):
        raise InputError(
            f"{path}: {animals - len(missing)} of {animals} animals stand out from the background; "
            "ask for fewer, or give their places with --boxes"
        )
    rate = video.rate or 30.0
    smooth = np.stack(
        [
            smooth_track(
                fill_gaps(center[:, animal], round(settings.max_gap * rate)), settings.smoothing * rate
            )
            for animal in range(animals)
        ],
        axis=1,
    )
    side = 2 * float(np.nanquantile(radius, settings.size_fraction)) * (1 + 2 * settings.margin)
    return AnimalTracks(smooth, side, unread)


def build_square_refs(path: Path, tracks: AnimalTracks, every: int) -> list[ImageRef]:
    """A reference per animal and frame, frame by frame; animals are tracks 1, 2, ... in every format.

    They count from 1, because some readers take a track 0 for none.
    """
    corner = tracks.center + 0.5 - tracks.side / 2
    return [
        ImageRef(path, frame, (x, y, tracks.side, tracks.side), track)
        for frame in range(0, len(corner), every)
        for track, (x, y) in enumerate(corner[frame].tolist(), start=1)
        if x == x  # seen
    ]


def fill_gaps(places: Floats, longest: int) -> Floats:
    """Places [T, 2] with gaps of at most `longest` frames filled in along a straight line.

    >>> filled(np.array([[0, 0], [np.nan, np.nan], [4, 2], [np.nan, np.nan]]), 1).tolist()
    [[0.0, 0.0], [2.0, 1.0], [4.0, 2.0], [nan, nan]]
    """
    seen = np.flatnonzero(~np.isnan(places[:, 0]))
    whole = places.copy()
    for before, after in zip(seen[:-1].tolist(), seen[1:].tolist(), strict=True):
        if 1 < after - before <= longest + 1:
            share = (np.arange(1, after - before) / (after - before))[:, None]
            whole[before + 1 : after] = (1 - share) * places[before] + share * places[after]
    return whole


def smooth_track(places: Floats, sigma: float) -> Floats:
    """Places [T, 2] smoothed over time by a bell of this width in frames, each stretch between gaps alone."""
    seen = ~np.isnan(places[:, 0])
    smooth = places.copy()
    if sigma <= 0 or not seen.any():
        return smooth
    edges = np.flatnonzero(np.diff(np.concatenate([[False], seen, [False]]).astype(int)))
    for start, stop in edges.reshape(-1, 2).tolist():
        smooth[start:stop] = gaussian_filter1d(places[start:stop], sigma, axis=0, mode="nearest")
    return smooth
