"""The map from K discovered landmarks to L points of the user's, fitted to a few annotated images.

With as few images as one, the images alone say too little, so the fit starts from what is known of any
object: points near each other move alike, and all of them follow when the object moves, turns or grows. That
belief is a covariance of displacements, made from the places of the points alone, and counts as a few images
beside the real ones. The map is then the linear regression from landmarks to points under the joint
covariance, with a ridge for the noise of the landmarks. With one image it interpolates between landmarks,
with many it is ridge regression, and nothing has to decide where one ends and the other begins.

Shapes: N annotated objects, K landmarks, L points. Coordinates are network pixels. Where `visible` is false a
point is unknown, whatever its coordinates say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from selfmark.points import FloatArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Complexes = npt.NDArray[np.complex128]

# The belief about objects, in units of the landmarks' mean distance from their center.
PRIOR_IMAGES = 3.0  # annotated images it counts as
MOTION = 0.02  # variance of moving as a whole, and of turning, growing and shearing
BENDING = 0.15  # standard deviation of what points do beyond that
REACH = 0.4  # distance over which they still do it together
ALIGNMENTS = 5  # times the images are laid over their mean shape


@dataclass(frozen=True)
class MappingExamples:
    """Landmarks and annotated points of N objects.

    landmarks: [N, K, 2]
    score:     [N, K] of the landmarks, 0 to 1
    points:    [N, L, 2]
    visible:   [N, L] bool, whether a point is annotated
    group:     [N] int64, the same number for objects that must be left out together
    """

    landmarks: FloatArray
    score: FloatArray
    points: FloatArray
    visible: BoolArray
    group: IntArray

    def __post_init__(self) -> None:
        count = len(self.landmarks)
        shapes = (self.landmarks.shape[:2], self.points.shape[:2], (count,))
        if (self.score.shape, self.visible.shape, self.group.shape) != shapes or len(self.points) != count:
            raise ValueError("landmarks, score, points, visible and group are not of the same objects")

    def __len__(self) -> int:
        return len(self.landmarks)

    def select(self, rows: npt.NDArray[np.generic]) -> MappingExamples:
        """The objects at these indices, or where a mask is true."""
        return MappingExamples(
            self.landmarks[rows], self.score[rows], self.points[rows], self.visible[rows], self.group[rows]
        )


class MirrorPartners(NamedTuple):
    """What becomes of a mirrored image: partners of the K landmarks and of the L points, and its side."""

    landmarks: tuple[int, ...]
    points: tuple[int, ...]
    size: int


def add_mirrored(examples: MappingExamples, mirror: MirrorPartners) -> MappingExamples:
    """The objects and, after them, their mirror images: a left ear teaches where the right one is."""
    partners, others = list(mirror.landmarks), list(mirror.points)
    return MappingExamples(
        np.concatenate([examples.landmarks, _reflected(examples.landmarks[:, partners], mirror.size)]),
        np.concatenate([examples.score, examples.score[:, partners]]),
        np.concatenate([examples.points, _reflected(examples.points[:, others], mirror.size)]),
        np.concatenate([examples.visible, examples.visible[:, others]]),
        np.concatenate([examples.group, examples.group]),
    )


def _reflected(xy: FloatArray, size: int) -> FloatArray:
    return np.stack([size - 1 - xy[..., 0], xy[..., 1]], axis=-1)


# --- the map ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PointMap:
    """A linear map of landmarks to points, in the crop or in a frame that moves with the object.

    weights:   [2 K, 2 L]
    constant:  [2 L]; NaN for points annotated nowhere
    reference: [K, 2] the shape that landmarks are laid over first; empty ([0, 2]) where they stay in the crop
    """

    weights: FloatArray
    constant: FloatArray
    reference: FloatArray

    def predict(self, landmarks: FloatArray, score: FloatArray) -> FloatArray:
        """Points [N, L, 2] of landmarks [N, K, 2] with scores [N, K]."""
        laid = _frame(landmarks, score, self.reference)
        mapped = laid.into(landmarks).reshape(len(landmarks), -1) @ self.weights + self.constant
        return laid.back(mapped.reshape(len(landmarks), -1, 2))

    def known(self) -> BoolArray:
        """Which of the points [L] were annotated anywhere."""
        known: BoolArray = np.isfinite(self.constant[::2])
        return known

    def select(self, points: IntArray) -> PointMap:
        """The map to these points, in this order."""
        columns = (2 * points[:, None] + np.arange(2)).reshape(-1)
        return PointMap(self.weights[:, columns], self.constant[columns], self.reference)

    def scores(self, score: FloatArray) -> FloatArray:
        """Scores [N, L] of points: the mean over the landmarks [N, K], by how much a point leans on each."""
        landmarks, points = len(self.weights) // 2, len(self.constant) // 2
        blocks = self.weights.reshape(landmarks, 2, points, 2)
        lean = np.sqrt((blocks**2).sum(axis=(1, 3)))
        total = lean.sum(axis=0)
        share = np.where(total > 0, lean / np.where(total > 0, total, 1.0), 1 / landmarks)
        mean: FloatArray = score @ share
        return mean


def fit_point_map(examples: MappingExamples, reference: FloatArray, ridge: float) -> PointMap:
    """The map that explains the examples best, given the belief about objects.

    Each point is fitted on the objects in which it is annotated.

    Args:
        examples: At least one object.
        reference: [K, 2] from `mean_shape`, or empty to work in the crop.
        ridge: Standard deviation of the landmarks' noise, in units of their mean distance from their center.
    """
    laid = _frame(examples.landmarks, examples.score, reference)
    landmarks, points = laid.into(examples.landmarks), laid.into(examples.points)
    count = points.shape[1]
    weights, constant = np.zeros((2 * landmarks.shape[1], count, 2)), np.full((count, 2), np.nan)
    # Points annotated in the same objects share one fit, as the targets of a regression do not interact.
    alike: dict[bytes, list[int]] = {}
    for point, column in enumerate(examples.visible.T):
        alike.setdefault(column.tobytes(), []).append(point)
    for together in alike.values():
        known = examples.visible[:, together[0]]
        if known.any():
            block, center = _regress(landmarks[known], points[known][:, together], ridge)
            weights[:, together], constant[together] = block, center
    return PointMap(weights.reshape(len(weights), -1), constant.reshape(-1), reference)


def _regress(landmarks: FloatArray, points: FloatArray, ridge: float) -> tuple[FloatArray, FloatArray]:
    """Weights [2 K, L, 2] and constant [L, 2] from displacements [n, K, 2] and [n, L, 2] of their means."""
    from_mean, to_mean = landmarks.mean(axis=0), points.mean(axis=0)
    center = from_mean.mean(axis=0)
    unit = max(1.0, float(np.sqrt(((from_mean - center) ** 2).sum(axis=1).mean())))
    images = len(landmarks)
    moved = ((landmarks - from_mean) / unit).reshape(images, -1)
    target = ((points - to_mean) / unit).reshape(images, -1)
    places, goals = (from_mean - center) / unit, (to_mean - center) / unit
    axes = np.eye(2)  # x and y of a point move independently of each other, as far as is known beforehand
    among = moved.T @ moved + PRIOR_IMAGES * np.kron(_belief(places, places), axes)
    across = moved.T @ target + PRIOR_IMAGES * np.kron(_belief(places, goals), axes)
    noise = (images + PRIOR_IMAGES) * ridge**2
    weights = np.linalg.solve(among + noise * np.eye(len(among)), across)
    constant = to_mean - (from_mean.reshape(-1) @ weights).reshape(-1, 2)
    return weights.reshape(len(weights), -1, 2), constant


def _belief(one: FloatArray, other: FloatArray) -> FloatArray:
    """Covariance [A, B] of the displacements of points at places [A, 2] and [B, 2], along either axis."""
    squares = ((one[:, None] - other[None]) ** 2).sum(axis=2)
    covariance: FloatArray = MOTION * (1 + one @ other.T) + BENDING**2 * np.exp(-squares / (2 * REACH**2))
    return covariance


# --- the frame that moves with the object ---------------------------------------------------------------


class _Frame(NamedTuple):
    """For each of N images z -> turn z + shift, with points as complex numbers; both [N, 1]."""

    turn: Complexes
    shift: Complexes

    def into(self, xy: FloatArray) -> FloatArray:
        return _plane(self.turn * _complex(xy) + self.shift)

    def back(self, xy: FloatArray) -> FloatArray:
        return _plane((_complex(xy) - self.shift) / self.turn)


def no_reference() -> FloatArray:
    """The reference of a map that works in the crop."""
    return np.zeros((0, 2))


def mean_shape(landmarks: FloatArray, score: FloatArray) -> FloatArray:
    """The mean [K, 2] of landmarks [N, K, 2] after moving, turning and scaling each image to fit it.

    Its size and direction are those of the first image.
    """
    weight = score[..., None] ** 2 + 1e-6
    shape = np.asarray(landmarks[0], np.float64)
    for _ in range(ALIGNMENTS):
        laid = _frame(landmarks, score, shape).into(landmarks)
        shape = (weight * laid).sum(axis=0) / weight.sum(axis=0)
    return shape


def _frame(landmarks: FloatArray, score: FloatArray, reference: FloatArray) -> _Frame:
    """How each image is moved, turned and scaled onto the reference; landmarks count by score squared."""
    if len(reference) == 0:
        return _Frame(
            np.ones((len(landmarks), 1), np.complex128), np.zeros((len(landmarks), 1), np.complex128)
        )
    weight = np.asarray(score, np.float64) ** 2 + 1e-6
    weight /= weight.sum(axis=1, keepdims=True)
    here, there = _complex(landmarks), _complex(reference)[None]
    here_mean = (weight * here).sum(axis=1, keepdims=True)
    there_mean = (weight * there).sum(axis=1, keepdims=True)
    alike = (weight * (here - here_mean).conj() * (there - there_mean)).sum(axis=1, keepdims=True)
    spread = (weight * np.abs(here - here_mean) ** 2).sum(axis=1, keepdims=True)
    turn = (alike + 1) / (spread + 1)  # a pixel's worth of doubt: landmarks all in one place turn nothing
    return _Frame(turn, there_mean - turn * here_mean)


def _complex(xy: FloatArray) -> Complexes:
    return np.asarray(xy[..., 0] + 1j * xy[..., 1], np.complex128)


def _plane(z: Complexes) -> FloatArray:
    return np.stack([z.real, z.imag], axis=-1)
