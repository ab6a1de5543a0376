"""Fit a linear map from K discovered landmarks to the user's L points, with a few annotated images.

A few annotated images do not determine such a map. The fit therefore adds a covariance prior, as in
Gaussian-process regression. The prior says how points of any object move: points that are close together move
together, and all points follow when the object is translated, rotated, scaled or sheared. The prior is
computed from the mean positions alone and has the weight of `PRIOR_IMAGES` additional annotated images. The
map is the linear regression from landmarks to points under the resulting joint covariance, with a ridge for
the noise of the landmarks. With one image, the map interpolates between landmarks; with many images, the map
approaches ridge regression.

Shapes: N annotated objects, K landmarks, L points. Coordinates are network pixels. If `visible` is False, a
point is not annotated and its coordinates are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from selfmark.points import FloatArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
ComplexArray = npt.NDArray[np.complex128]

# The covariance prior. Its unit of length is the root mean square distance of landmarks from their center.
PRIOR_IMAGES = 3.0  # weight of the prior, as a number of annotated images
AFFINE_VARIANCE = 0.02  # variance of the affine motion: translation, rotation, scale and shear
BENDING_STD = 0.15  # standard deviation of the non-affine motion of a point
BENDING_RANGE = 0.4  # distance over which the non-affine motion is correlated

ALIGNMENT_STEPS = 5  # iterations of the Procrustes alignment in `compute_mean_shape`


@dataclass(frozen=True)
class MappingExamples:
    """Landmarks and annotated points of N objects.

    Attributes:
        landmarks: [N, K, 2].
        score: [N, K] scores of the landmarks, 0 to 1.
        points: [N, L, 2].
        visible: [N, L] bool, True where a point is annotated.
        group: [N] int64, number of the image; objects of the same image are held out together.
    """

    landmarks: FloatArray
    score: FloatArray
    points: FloatArray
    visible: BoolArray
    group: IntArray

    def __post_init__(self) -> None:
        """Raise ValueError if the arrays disagree about N, K or L."""
        count = len(self.landmarks)
        expected = (self.landmarks.shape[:2], self.points.shape[:2], (count,))
        if (self.score.shape, self.visible.shape, self.group.shape) != expected or len(self.points) != count:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in vars(self).items())
            raise ValueError(f"the shapes of the arrays do not match: {shapes}")

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.landmarks)

    def select(self, rows: npt.NDArray[np.generic]) -> MappingExamples:
        """Return the objects at the given indices, or where a mask is True."""
        return MappingExamples(
            self.landmarks[rows], self.score[rows], self.points[rows], self.visible[rows], self.group[rows]
        )


class MirrorPartners(NamedTuple):
    """Mirror partners: the index that each landmark and each point has in the mirrored image.

    Attributes:
        landmarks: K mirror partners of the landmarks.
        points: L mirror partners of the points.
        size: Side of the square network input, in pixels.
    """

    landmarks: tuple[int, ...]
    points: tuple[int, ...]
    size: int


def add_mirrored(examples: MappingExamples, mirror: MirrorPartners) -> MappingExamples:
    """Append the mirror image of every object, so that an annotated left ear also trains the right ear."""
    landmark_order, point_order = list(mirror.landmarks), list(mirror.points)
    return MappingExamples(
        np.concatenate([examples.landmarks, _flip(examples.landmarks[:, landmark_order], mirror.size)]),
        np.concatenate([examples.score, examples.score[:, landmark_order]]),
        np.concatenate([examples.points, _flip(examples.points[:, point_order], mirror.size)]),
        np.concatenate([examples.visible, examples.visible[:, point_order]]),
        np.concatenate([examples.group, examples.group]),
    )


def _flip(xy: FloatArray, size: int) -> FloatArray:
    return np.stack([size - 1 - xy[..., 0], xy[..., 1]], axis=-1)


# --- the map ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PointMap:
    """Linear map from landmarks to points, either in network pixels or after alignment to a reference shape.

    Attributes:
        weights: [2 K, 2 L].
        constant: [2 L]; NaN for points that are not annotated in any object.
        reference: [K, 2] shape that the landmarks are first aligned to; empty ([0, 2]) for no alignment.
    """

    weights: FloatArray
    constant: FloatArray
    reference: FloatArray

    def predict(self, landmarks: FloatArray, score: FloatArray) -> FloatArray:
        """Return the points [N, L, 2] for landmarks [N, K, 2] with scores [N, K]."""
        alignment = _align(landmarks, score, self.reference)
        aligned = alignment.apply(landmarks).reshape(len(landmarks), -1)
        points = aligned @ self.weights + self.constant
        return alignment.invert(points.reshape(len(landmarks), -1, 2))

    def known_points(self) -> BoolArray:
        """Return a mask [L] of the points that were annotated in at least one object."""
        known: BoolArray = np.isfinite(self.constant[::2])
        return known

    def select(self, points: IntArray) -> PointMap:
        """Return the map to the given points, in the given order."""
        columns = (2 * points[:, None] + np.arange(2)).reshape(-1)  # x and y of each point
        return PointMap(self.weights[:, columns], self.constant[columns], self.reference)

    def point_scores(self, score: FloatArray) -> FloatArray:
        """Return scores [N, L] of the points for scores [N, K] of the landmarks.

        A point's score is the mean score of the landmarks, weighted by their influence on the point.
        """
        num_landmarks, num_points = len(self.weights) // 2, len(self.constant) // 2
        blocks = self.weights.reshape(num_landmarks, 2, num_points, 2)
        influence = np.sqrt((blocks**2).sum(axis=(1, 3)))  # [K, L]
        total = influence.sum(axis=0)
        # If no landmark influences a point, all landmarks have the same weight.
        fraction = np.where(total > 0, influence / np.where(total > 0, total, 1.0), 1 / num_landmarks)
        mean: FloatArray = score @ fraction
        return mean


def fit_point_map(examples: MappingExamples, reference: FloatArray, ridge: float) -> PointMap:
    """Fit a map to the examples under the covariance prior.

    Each point is fitted on the objects in which it is annotated.

    Args:
        examples: At least one object.
        reference: [K, 2] from `compute_mean_shape`, or `make_empty_reference()` to fit in network pixels.
        ridge: Standard deviation of the landmark noise, in the unit of length of the prior.
    """
    alignment = _align(examples.landmarks, examples.score, reference)
    landmarks, points = alignment.apply(examples.landmarks), alignment.apply(examples.points)
    num_points = points.shape[1]
    weights = np.zeros((2 * landmarks.shape[1], num_points, 2))
    constant = np.full((num_points, 2), np.nan)
    # The targets of a regression are independent of each other. Therefore all points that are annotated in
    # the same objects are fitted at once.
    points_by_mask: dict[bytes, list[int]] = {}
    for point, mask in enumerate(examples.visible.T):
        points_by_mask.setdefault(mask.tobytes(), []).append(point)
    for indices in points_by_mask.values():
        annotated = examples.visible[:, indices[0]]
        if annotated.any():
            targets = points[annotated][:, indices]
            weights[:, indices], constant[indices] = _regress(landmarks[annotated], targets, ridge)
    return PointMap(weights.reshape(len(weights), -1), constant.reshape(-1), reference)


def _regress(landmarks: FloatArray, points: FloatArray, ridge: float) -> tuple[FloatArray, FloatArray]:
    """Return weights [2 K, L, 2] and constant [L, 2], fitted to landmarks [n, K, 2] and points [n, L, 2].

    weights = (cov(landmarks, landmarks) + noise)^-1 cov(landmarks, points), where each covariance is the sum
    over the objects plus PRIOR_IMAGES times the prior.
    """
    landmark_mean, point_mean = landmarks.mean(axis=0), points.mean(axis=0)
    center = landmark_mean.mean(axis=0)
    unit = max(1.0, float(np.sqrt(((landmark_mean - center) ** 2).sum(axis=1).mean())))
    num_objects = len(landmarks)
    source = ((landmarks - landmark_mean) / unit).reshape(num_objects, -1)
    target = ((points - point_mean) / unit).reshape(num_objects, -1)
    source_position, target_position = (landmark_mean - center) / unit, (point_mean - center) / unit
    axes = np.eye(2)  # The prior assumes that x and y of a point move independently.
    landmark_prior = np.kron(_compute_prior_covariance(source_position, source_position), axes)
    cross_prior = np.kron(_compute_prior_covariance(source_position, target_position), axes)
    landmark_covariance = source.T @ source + PRIOR_IMAGES * landmark_prior
    cross_covariance = source.T @ target + PRIOR_IMAGES * cross_prior
    noise = (num_objects + PRIOR_IMAGES) * ridge**2
    weights = np.linalg.solve(
        landmark_covariance + noise * np.eye(len(landmark_covariance)), cross_covariance
    )
    constant = point_mean - (landmark_mean.reshape(-1) @ weights).reshape(-1, 2)
    return weights.reshape(len(weights), -1, 2), constant


def _compute_prior_covariance(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the prior covariance [A, B] of displacements along one axis, at positions [A, 2] and [B, 2].

    The displacements consist of an affine motion of the whole object and a smooth bending, which are
    independent.
    """
    squared_distance = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    affine = AFFINE_VARIANCE * (1 + a @ b.T)
    covariance: FloatArray = affine + BENDING_STD**2 * np.exp(-squared_distance / (2 * BENDING_RANGE**2))
    return covariance


# --- alignment ------------------------------------------------------------------------------------------


class _SimilarityTransforms(NamedTuple):
    """One similarity transform per object: z -> factor * z + shift. Points are complex numbers z = x + iy.

    Attributes:
        factor: [N, 1] complex; its angle is the rotation, its absolute value the scale.
        shift: [N, 1] complex translation.
    """

    factor: ComplexArray
    shift: ComplexArray

    def apply(self, xy: FloatArray) -> FloatArray:
        return _from_complex(self.factor * _to_complex(xy) + self.shift)

    def invert(self, xy: FloatArray) -> FloatArray:
        return _from_complex((_to_complex(xy) - self.shift) / self.factor)


def make_empty_reference() -> FloatArray:
    """Return the reference of a map that does not align the landmarks."""
    return np.zeros((0, 2))


def compute_mean_shape(landmarks: FloatArray, score: FloatArray) -> FloatArray:
    """Return the mean shape [K, 2] of landmarks [N, K, 2] after a Procrustes alignment.

    Landmarks are weighted by the square of their score. The mean shape has about the size and orientation of
    the first object.
    """
    weight = score[..., None] ** 2 + 1e-6
    shape = np.asarray(landmarks[0], np.float64)
    for _ in range(ALIGNMENT_STEPS):
        aligned = _align(landmarks, score, shape).apply(landmarks)
        shape = (weight * aligned).sum(axis=0) / weight.sum(axis=0)
    return shape


def _align(landmarks: FloatArray, score: FloatArray, reference: FloatArray) -> _SimilarityTransforms:
    """Return the transform of each object that best maps its landmarks to the reference (least squares).

    Landmarks are weighted by the square of their score. An empty reference gives the identity.
    """
    if len(reference) == 0:
        return _SimilarityTransforms(
            np.ones((len(landmarks), 1), np.complex128), np.zeros((len(landmarks), 1), np.complex128)
        )
    weight = np.asarray(score, np.float64) ** 2 + 1e-6
    weight /= weight.sum(axis=1, keepdims=True)
    source, target = _to_complex(landmarks), _to_complex(reference)[None]
    source_mean = (weight * source).sum(axis=1, keepdims=True)
    target_mean = (weight * target).sum(axis=1, keepdims=True)
    covariance = (weight * (source - source_mean).conj() * (target - target_mean)).sum(axis=1, keepdims=True)
    variance = (weight * np.abs(source - source_mean) ** 2).sum(axis=1, keepdims=True)
    # One square pixel is added to numerator and denominator, so that the factor is 1 if all landmarks
    # coincide.
    factor = (covariance + 1) / (variance + 1)
    return _SimilarityTransforms(factor, target_mean - factor * source_mean)


def _to_complex(xy: FloatArray) -> ComplexArray:
    return np.asarray(xy[..., 0] + 1j * xy[..., 1], np.complex128)


def _from_complex(z: ComplexArray) -> FloatArray:
    return np.stack([z.real, z.imag], axis=-1)
