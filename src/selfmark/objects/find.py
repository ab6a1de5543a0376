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
from selfmark.images.sources import ImageRef
from selfmark.images.video import look_at, read_frames
from selfmark.objects.background import learn_background, require_size
from selfmark.objects.follow import Follower

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Tracks:
    """Where the A animals of a video are.

    centre: [frames, A, 2] pixels of the video, centres at integers; NaN where an animal is not seen
    side:   of the square that holds an animal, the same for all animals and frames
    unread: frames that could not be read
    """

    centre: Floats
    side: float
    unread: int = 0


def find_animals(path: Path, animals: int, settings: Tracking, on_progress: Progress | None = None) -> Tracks:
    """Follow so many animals through a video of a fixed camera, front to back; memory holds one frame."""
    video = look_at(path)
    background = learn_background(path, animals, settings)
    follower = Follower(animals, background.area, settings)
    centre = np.full((video.frames, animals, 2), np.nan)
    radius = np.full((video.frames, animals), np.nan)
    unread = video.frames
    for number, frame in read_frames(path, range(video.frames)):
        unread -= 1
        require_size(path, number, frame, video.size)
        seen = follower.step(background.foreground(frame))
        centre[number] = (seen.centre + 0.5) / background.scale - 0.5
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
            smoothed(filled(centre[:, animal], round(settings.gap * rate)), settings.smooth * rate)
            for animal in range(animals)
        ],
        axis=1,
    )
    side = 2 * float(np.nanquantile(radius, settings.size_share)) * (1 + 2 * settings.margin)
    return Tracks(smooth, side, unread)


def squares(path: Path, tracks: Tracks, every: int) -> list[ImageRef]:
    """A reference per animal and frame, frame by frame; animals are tracks 1, 2, ... in every format.

    They count from 1, because some readers take a track 0 for none.
    """
    corner = tracks.centre + 0.5 - tracks.side / 2
    return [
        ImageRef(path, frame, (x, y, tracks.side, tracks.side), track)
        for frame in range(0, len(corner), every)
        for track, (x, y) in enumerate(corner[frame].tolist(), start=1)
        if x == x  # seen
    ]


def filled(places: Floats, longest: int) -> Floats:
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


def smoothed(places: Floats, sigma: float) -> Floats:
    """Places [T, 2] smoothed over time by a bell of this width in frames, each stretch between gaps alone."""
    seen = ~np.isnan(places[:, 0])
    smooth = places.copy()
    if sigma <= 0 or not seen.any():
        return smooth
    edges = np.flatnonzero(np.diff(np.concatenate([[False], seen, [False]]).astype(int)))
    for start, stop in edges.reshape(-1, 2).tolist():
        smooth[start:stop] = gaussian_filter1d(places[start:stop], sigma, axis=0, mode="nearest")
    return smooth
