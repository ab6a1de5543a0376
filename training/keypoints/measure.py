"""Measure repeatability of points and matching of descriptors between two views of the same image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class DetectedPoints:
    """Points of one image: `xy` [P, 2] in pixels and `descriptor` [P, D]."""

    xy: Floats
    descriptor: Floats


@dataclass(frozen=True)
class Score:
    """Scores of one pair of views, or their mean.

    Attributes:
        repeatability: Among the points that are visible in both views, the fraction with a point of the other
            view nearby.
        matching: Number of correct matches of mutual nearest descriptors, divided by `points`.
        points: Number of points that are visible in both views, averaged over the two views.
    """

    repeatability: float
    matching: float
    points: float


def map_points(xy: Floats, homography: Floats) -> Floats:
    """Map points [P, 2] through a 3 x 3 homography."""
    mapped = np.concatenate([xy, np.ones((len(xy), 1))], axis=1) @ homography.T
    result: Floats = mapped[:, :2] / mapped[:, 2:]
    return result


def compare(
    first: DetectedPoints,
    second: DetectedPoints,
    homography: Floats,
    side: int,
    max_distance: float,
    descriptor_distance: Callable[[Floats, Floats], Floats],
) -> Score:
    """Score two square views of one scene.

    Args:
        first: Points of the first view.
        second: Points of the second view.
        homography: Maps pixels of the first view to pixels of the second.
        side: Side of both views in pixels.
        max_distance: Maximum distance in pixels between corresponding points.
        descriptor_distance: Distance between descriptors, [P, D] and [Q, D] to [P, Q].
    """

    def is_inside(xy: Floats) -> npt.NDArray[np.bool_]:
        return np.asarray(((xy >= 0) & (xy <= side - 1)).all(axis=1))

    first_in_second = map_points(first.xy, homography)
    second_in_first = map_points(second.xy, np.linalg.inv(homography))
    in_second, in_first = is_inside(first_in_second), is_inside(second_in_first)
    if not in_second.any() or not in_first.any():
        return Score(0.0, 0.0, float(in_second.sum() + in_first.sum()) / 2)
    # Distances between all pairs of points, [P, Q], in pixels of the second and of the first view.
    gaps = np.linalg.norm(first_in_second[in_second][:, None] - second.xy[in_first][None], axis=-1)
    gaps_in_first = np.linalg.norm(first.xy[in_second][:, None] - second_in_first[in_first][None], axis=-1)
    repeated = (gaps.min(axis=1) <= max_distance).sum() + (gaps_in_first.min(axis=0) <= max_distance).sum()
    distances = descriptor_distance(first.descriptor[in_second], second.descriptor[in_first])
    to_second, to_first = distances.argmin(axis=1), distances.argmin(axis=0)
    mutual = to_first[to_second] == np.arange(len(to_second))
    correct = (gaps[np.arange(len(to_second)), to_second] <= max_distance) & mutual
    visible = (in_second.sum() + in_first.sum()) / 2
    return Score(float(repeated / (2 * visible)), float(correct.sum() / visible), float(visible))


def compute_euclidean(a: Floats, b: Floats) -> Floats:
    """Return the Euclidean distances [P, Q] between vectors [P, D] and [Q, D]."""
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    result: Floats = np.sqrt(np.maximum(squared, 0))
    return result


def average_scores(scores: Iterable[Score]) -> Score:
    """Return the mean of several scores."""
    rows = np.array([(score.repeatability, score.matching, score.points) for score in scores])
    return Score(*(float(value) for value in rows.mean(axis=0)))


def sample_homography(
    rng: np.random.Generator, side: int, rotation: float, zoom: float, perspective: float, shift: float
) -> Floats:
    """Return a random 3 x 3 homography from pixels of an image to pixels of a view.

    Args:
        rng: Random generator.
        side: Side of image and view in pixels.
        rotation: Maximum rotation in degrees, in both directions.
        zoom: Maximum zoom factor; its inverse is the minimum.
        perspective: Maximum shift of each corner by itself, relative to the side.
        shift: Maximum shift of all corners together, relative to the side.
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
