"""Settings of tracking and smoothing in videos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfmark.config.limits import above, between, fraction

SmoothingMethod = Literal["kalman", "median", "savgol"]


@dataclass(frozen=True)
class Tracking:
    """Tracking of animals in front of a fixed camera (`--find-animals`)."""

    num_samples: int = between(2, 1_000, 60)  # number of frames of a video whose median is the background
    max_side: int = between(16, 2_048, 480)  # maximum longer side at which frames are analyzed, pixels
    # minimum difference between animal and background, gray levels
    min_contrast: float = between(0, 255, 12.0)
    # parts thinner than twice this fraction of the square root of an animal's area are removed
    opening_fraction: float = between(0, 1, 0.07)
    min_area: float = between(0, 1_000, 0.25)  # minimum area of a blob, as a fraction of an animal's area
    # maximum movement between two frames, in square roots of an animal's area
    max_step: float = between(0, 1_000, 2.0)
    max_gap: float = between(0, 3_600, 0.5)  # maximum time for which a lost animal is interpolated, seconds
    # standard deviation of the Gaussian that smooths positions, seconds
    smoothing: float = between(0, 3_600, 0.08)
    size_fraction: float = fraction(0.95)  # fraction of frames in which the crop contains the whole animal
    # added on each side for legs and tails, as a fraction of the animal's size
    margin: float = between(0, 10, 0.1)
    # augment.rotation for tracked animals, which can face any direction
    rotation: float = between(0, 360, 180.0)
    # time after a contact during which appearances are compared with those before it, seconds
    appearance_seconds: float = between(0, 3_600, 2.0)
    # the identities of animals are exchanged after a contact only if the difference in appearance before and
    # after it is then at most this fraction of the difference without an exchange; 0: never
    max_appearance_ratio: float = fraction(0.5)
    # warn if more than this fraction of the moving pixels is outside the animals' squares
    max_outside: float = fraction(0.3)
    # warn if animals are missing in more than this fraction of the frames (mean over the animals)
    max_missing: float = fraction(0.2)


@dataclass(frozen=True)
class Smoothing:
    """Smoothing of the landmarks of videos over time (`predict --smooth`)."""

    method: SmoothingMethod = "kalman"  # kalman, running median, or savgol (Savitzky-Golay)
    min_score: float = fraction(0.0)  # positions with a lower score are left out
    min_relative_score: float = fraction(0.5)  # the same, relative to the landmark's median score
    # positions farther than this from the median of the frames around them are left out, in sizes of the
    # object
    max_jump: float = above(0, 1_000, 0.15)
    max_gap: float = between(0, 3_600, 0.5)  # longest gap that is filled, seconds
    time_constant: float = above(0, 5, 0.06)  # kalman: shorter movements count as noise, seconds
    window: float = above(0, 3_600, 0.4)  # length of the windows of medians and of savgol, seconds
    degree: int = between(0, 5, 2)  # savgol: degree of the polynomial
    # a video with more frames per second counts as slow motion: the times above shrink in proportion
    max_rate: float = above(0, 1_000_000, 30.0)
