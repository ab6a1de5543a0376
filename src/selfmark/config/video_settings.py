"""Settings of tracking and smoothing in videos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfmark.config.limits import above, between, fraction

SmoothingMethod = Literal["kalman", "median", "savgol"]


@dataclass(frozen=True)
class Tracking:
    """Tracking of animals in front of a fixed camera, with `--find-animals`."""

    # Number of frames from which the background of a video is computed. The background is their median.
    num_samples: int = between(2, 1_000, 60)
    # Frames whose longer side has more pixels than this value are reduced to this size before the search for
    # animals.
    max_side: int = between(16, 2_048, 480)
    # Minimum difference in brightness between an animal and the background, in gray levels from 0 to 255. The
    # limit that is used can be higher, because it is computed from the video.
    min_contrast: float = between(0, 255, 12.0)
    # Thin parts of an animal, such as its tail, are removed before its position is measured. Parts are thin
    # if their width is less than twice this fraction of the animal's size. The size is the square root of the
    # animal's area.
    opening_fraction: float = between(0, 1, 0.07)
    # A moving region counts as an animal if its area is at least this fraction of the typical area of an
    # animal.
    min_area: float = between(0, 1_000, 0.25)
    # Maximum movement of an animal between two frames, in animal sizes. The size of an animal is the square
    # root of its area.
    max_step: float = between(0, 1_000, 2.0)
    # Maximum time for which the position of a lost animal is interpolated, in seconds.
    max_gap: float = between(0, 3_600, 0.5)
    # Standard deviation of the Gaussian that smooths the positions of an animal over time, in seconds.
    smoothing: float = between(0, 3_600, 0.08)
    # The crop is so large that the animal fits into the crop in this fraction of the video's frames. All
    # animals and frames of a video have crops of the same size.
    size_fraction: float = fraction(0.95)
    # Margin that is added on each side of the crop for legs and tails, as a fraction of the side of the crop
    # without margins.
    margin: float = between(0, 10, 0.1)
    # For tracked animals, this value replaces the preset's `augment.rotation`, because animals can face any
    # direction. It is in degrees.
    rotation: float = between(0, 360, 180.0)
    # Time after a contact during which the appearance of the animals is compared with their appearance before
    # the contact, in seconds.
    appearance_seconds: float = between(0, 3_600, 2.0)
    # After a contact, two animals may be confused. The appearance before the contact is compared with the
    # appearance after the contact. Identities are exchanged only if the difference with the exchange is at
    # most this fraction of the difference without the exchange. With 0, identities are never exchanged.
    max_appearance_ratio: float = fraction(0.5)
    # You get a warning if more than this fraction of the moving pixels lie outside the crops of all animals.
    max_outside: float = fraction(0.3)
    # You get a warning if an animal is missing in more than this fraction of the frames, averaged over the
    # animals.
    max_missing: float = fraction(0.2)


@dataclass(frozen=True)
class Smoothing:
    """Smoothing of the landmarks of videos over time, with `selfmark predict --smooth`."""

    # How positions are smoothed. `kalman`: Kalman smoother. `median`: median over a time window. `savgol`:
    # polynomial fitted in a time window (Savitzky-Golay).
    method: SmoothingMethod = "kalman"
    min_score: float = fraction(0.0)  # Positions with a score lower than this value are left out.
    # Positions with a score lower than this fraction of the landmark's median score are left out.
    min_relative_score: float = fraction(0.5)
    # A position is left out if it is too far from the median position in the window around its frame. This
    # value is the largest distance that is kept, as a fraction of the size of the object (the longer side of
    # its box).
    max_jump: float = above(0, 1_000, 0.15)
    max_gap: float = between(0, 3_600, 0.5)  # Longest gap that is filled by interpolation, in seconds.
    # For `kalman`: movements much shorter than this time count as noise, in seconds. With a larger value, the
    # result is smoother.
    time_constant: float = between(0.0001, 5, 0.06)
    # Length of the time window for `median` and `savgol`, in seconds. The check for jumps
    # (`smoothing.max_jump`) uses the same window.
    window: float = above(0, 3_600, 0.4)
    # For `savgol`: degree of the polynomial. With a smaller value, the result is smoother.
    degree: int = between(0, 5, 2)
    # A video with more frames per second than this value is expected to show fast movements. For such a
    # video, `smoothing.max_gap`, `smoothing.time_constant` and `smoothing.window` are shortened: they are
    # multiplied by this value and divided by the video's frames per second.
    max_rate: float = between(0.001, 1_000_000, 30.0)
