"""How well points are found again, and known again, in another view of the same image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Found:
    """Points of one image: `xy` [P, 2] pixels, `descriptor` [P, D]."""

    xy: Floats
    descriptor: Floats


@dataclass(frozen=True)
class Score:
    """Figures of one pair of views, or their mean.

    repeatability: share of the points seen by both views that lie within reach of a point of the other view
    matching:      right matches among mutual nearest descriptors, as a share of the points both views see
    points:        points both views see, mean of the two
    """

    repeatability: float
    matching: float
    points: float


def carry(xy: Floats, homography: Floats) -> Floats:
    """Points [P, 2] through a 3 x 3 homography."""
    mapped = np.concatenate([xy, np.ones((len(xy), 1))], axis=1) @ homography.T
    result: Floats = mapped[:, :2] / mapped[:, 2:]
    return result


def compare(
    first: Found,
    second: Found,
    homography: Floats,
    side: int,
    reach: float,
    distance: Callable[[Floats, Floats], Floats],
) -> Score:
    """Score two square views of one scene.

    Args:
        homography: takes pixels of the first view to pixels of the second.
        side: of both views.
        reach: a point is the same within so many pixels of the other view.
        distance: between descriptors, [P, D] and [Q, D] to [P, Q].
    """

    def inside(xy: Floats) -> npt.NDArray[np.bool_]:
        return np.asarray(((xy >= 0) & (xy <= side - 1)).all(axis=1))

    ahead = carry(first.xy, homography)
    back = carry(second.xy, np.linalg.inv(homography))
    one, two = inside(ahead), inside(back)
    if not one.any() or not two.any():
        return Score(0.0, 0.0, float(one.sum() + two.sum()) / 2)
    gaps = np.linalg.norm(ahead[one][:, None] - second.xy[two][None], axis=-1)
    gaps_back = np.linalg.norm(first.xy[one][:, None] - back[two][None], axis=-1)
    again = (gaps.min(axis=1) <= reach).sum() + (gaps_back.min(axis=0) <= reach).sum()
    between = distance(first.descriptor[one], second.descriptor[two])
    there, here = between.argmin(axis=1), between.argmin(axis=0)
    mutual = here[there] == np.arange(len(there))
    right = (gaps[np.arange(len(there)), there] <= reach) & mutual
    seen = (one.sum() + two.sum()) / 2
    return Score(float(again / (2 * seen)), float(right.sum() / seen), float(seen))


def euclidean(a: Floats, b: Floats) -> Floats:
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    result: Floats = np.sqrt(np.maximum(squared, 0))
    return result


def mean(scores: Iterable[Score]) -> Score:
    rows = np.array([(s.repeatability, s.matching, s.points) for s in scores])
    return Score(*(float(value) for value in rows.mean(axis=0)))


def random_homography(
    rng: np.random.Generator, side: int, rotation: float, zoom: float, perspective: float, shift: float
) -> Floats:
    """A view of the same square from elsewhere, as a 3 x 3 matrix from its pixels to those of the new view.

    Args:
        rotation: degrees, both ways.
        zoom: largest factor, either way.
        perspective: how far each corner is moved on its own, as a share of the side.
        shift: of the whole, as a share of the side.
    """
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * (side - 1.0)
    center = np.full(2, (side - 1) / 2)
    angle = np.radians(rng.uniform(-rotation, rotation))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    factor = np.exp(rng.uniform(-1, 1) * np.log(zoom))
    moved = center + factor * (square - center) @ turn.T
    moved += rng.uniform(-perspective, perspective, (4, 2)) * side + rng.uniform(-shift, shift, 2) * side
    matrix = cv2.getPerspectiveTransform(square.astype(np.float32), moved.astype(np.float32))
    return np.asarray(matrix, np.float64)
