"""Track animals in videos of a fixed camera, and crop a square around each animal in every frame."""

from __future__ import annotations

import math
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
from selfmark.tracking.background_model import Mask, learn_background, require_background_size
from selfmark.tracking.identity import DESCRIPTION_LENGTH, describe_animal, restore_identities
from selfmark.tracking.tracker import AnimalPositions, AnimalTracker

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AnimalTracks:
    """Tracks of the A animals of a video; lengths are in pixels of the video.

    center:  [frames, A, 2], pixel centers at integers; interpolated in short gaps, NaN in longer ones
    side:    side of the square around an animal; the same for all animals and frames
    unread:  number of frames that could not be read
    empty:   number of frames that were read, but in which no animal has a position
    outside: fraction of the foreground pixels that are far from all animals; median over the frames
    """

    center: Floats
    side: float
    unread: int = 0
    outside: float = 0.0
    empty: int = 0


def track_animals(
    path: Path, animals: int, settings: Tracking, on_progress: Progress | None = None
) -> AnimalTracks:
    """Track a given number of animals through a video of a fixed camera; one frame is in memory at a time.

    Args:
        path: the video.
        animals: number of animals.
        settings: how to detect and track animals.
        on_progress: called with the number of processed frames and the number of all frames.

    Raises:
        InputError: if the video cannot be read, or if fewer animals are found.
    """
    video = probe_video(path)
    background = learn_background(path, animals, settings)
    tracker = AnimalTracker(animals, background.area, settings)
    center = np.full((video.frames, animals, 2), np.nan)
    radius = np.full((video.frames, animals), np.nan)
    outside = np.full(video.frames, np.nan)
    description = np.full((video.frames, animals, DESCRIPTION_LENGTH), np.nan, np.float32)
    is_read = np.zeros(video.frames, bool)
    for number, frame in read_frames(path, range(video.frames)):
        is_read[number] = True
        require_background_size(path, number, frame, video.size)
        mask = background.foreground(frame)
        positions = tracker.update(mask)
        outside[number] = _fraction_outside(mask, positions, 1 + 2 * settings.margin)
        if animals > 1:
            colors = background.shrink_colors(frame)
            for animal, pixels in enumerate(positions.pixels):
                if pixels is not None:
                    description[number, animal] = describe_animal(colors, pixels, background.area)
        center[number] = (positions.center + 0.5) / background.scale - 0.5
        radius[number] = positions.radius / background.scale
        if on_progress is not None:
            on_progress(number + 1, video.frames)
    unseen_animals = np.flatnonzero(np.isnan(radius).all(axis=0))
    if len(unseen_animals):
        raise InputError(
            f"{path}: only {animals - len(unseen_animals)} of {animals} animals were found; track fewer "
            "animals, or provide their boxes with --boxes"
        )
    rate = video.rate or 30.0  # frames per second; 30 if the file does not say
    if animals > 1:
        order = restore_identities(description, rate, settings)
        center = np.take_along_axis(center, order[..., None], axis=1)
        radius = np.take_along_axis(radius, order, axis=1)
    max_gap, sigma = round(settings.max_gap * rate), settings.smoothing * rate
    smooth_center = np.stack(
        [smooth_centers(fill_gaps(center[:, animal], max_gap), sigma) for animal in range(animals)], axis=1
    )
    side = 2 * float(np.nanquantile(radius, settings.size_fraction)) * (1 + 2 * settings.margin)
    is_empty = np.isnan(smooth_center[..., 0]).all(axis=1)
    unread, empty = int((~is_read).sum()), int((is_read & is_empty).sum())
    return AnimalTracks(smooth_center, side, unread, float(np.nanmedian(outside)), empty)


def explain_implausible_tracks(tracks: AnimalTracks, settings: Tracking) -> str:
    """Return reasons to doubt that the tracks follow the animals; an empty string if there are none."""
    missing_fraction = float(np.isnan(tracks.center[..., 0]).mean())
    reasons = []
    if tracks.outside > settings.max_outside:
        reasons.append(
            f"{tracks.outside:.0%} of the moving pixels are outside the squares of {tracks.side:.0f} pixels"
        )
    if missing_fraction > settings.max_missing:
        reasons.append(f"an animal is not found in {missing_fraction:.0%} of the frames")
    return " and ".join(reasons)


def _fraction_outside(mask: Mask, positions: AnimalPositions, extent: float) -> float:
    """Return the fraction of the pixels of a mask that are far from all animals; NaN for an empty mask.

    Args:
        mask: [h, w], pixels that differ from the background.
        positions: positions of the animals.
        extent: a pixel is far from an animal if its distance exceeds this many radii of the animal's body.
    """
    y, x = np.nonzero(mask)
    if not len(x):
        return float("nan")
    distance = np.linalg.norm(np.stack([x, y], axis=1)[:, None] - positions.center, axis=2)
    is_inside = (distance <= extent * positions.radius).any(axis=1)  # comparisons with NaN are False
    return float(1 - is_inside.mean())


def build_square_refs(path: Path, tracks: AnimalTracks, every: int) -> list[ImageRef]:
    """Return one reference per visible animal in every n-th frame (`every`), sorted by frame.

    Tracks are numbered from 1, because some programs read track 0 as "no track".
    """
    corner = tracks.center + 0.5 - tracks.side / 2
    return [
        ImageRef(path, frame, (x, y, tracks.side, tracks.side), track)
        for frame in range(0, len(corner), every)
        for track, (x, y) in enumerate(corner[frame].tolist(), start=1)
        if not math.isnan(x)
    ]


def fill_gaps(positions: Floats, max_gap: int) -> Floats:
    """Interpolate positions [T, 2] linearly in gaps (NaN) of at most `max_gap` frames.

    >>> fill_gaps(np.array([[0, 0], [np.nan, np.nan], [4, 2], [np.nan, np.nan]]), 1).tolist()
    [[0.0, 0.0], [2.0, 1.0], [4.0, 2.0], [nan, nan]]
    """
    known = np.flatnonzero(~np.isnan(positions[:, 0]))
    filled = positions.copy()
    for before, after in zip(known[:-1].tolist(), known[1:].tolist(), strict=True):
        if 1 < after - before <= max_gap + 1:
            weight = (np.arange(1, after - before) / (after - before))[:, None]
            filled[before + 1 : after] = (1 - weight) * positions[before] + weight * positions[after]
    return filled


def smooth_centers(positions: Floats, sigma: float) -> Floats:
    """Smooth positions [T, 2] over time by a Gaussian of `sigma` frames; never smooth across a gap."""
    known = ~np.isnan(positions[:, 0])
    smooth = positions.copy()
    if sigma <= 0 or not known.any():
        return smooth
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    for start, stop in edges.reshape(-1, 2).tolist():
        smooth[start:stop] = gaussian_filter1d(positions[start:stop], sigma, axis=0, mode="nearest")
    return smooth
