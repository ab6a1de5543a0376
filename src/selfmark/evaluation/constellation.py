"""Check without labels whether landmarks keep their arrangement on different individuals.

The landmarks of an image form a constellation. Individuals differ in position, size and direction, and show
their left or right side. So each constellation is fitted to a common shape by a similarity transform, with or
without reflection. A landmark that marks the head of one animal and the tail of the next does not fit, even
if it follows every deformation of an image.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

from selfmark.correspondence.agreement import unexplained_fraction
from selfmark.points import FloatArray
from selfmark.sampling import evenly_spaced

_STARTS = 5  # number of images whose constellation is tried as the initial common shape
_UPDATES = 10  # number of updates of the common shape
_REWEIGHTINGS = 5  # number of weight updates of a robust fit
_MIN_RESIDUAL = 1e-6  # lower limit of the median residual in robust weights, in radii of the shape

ComplexArray = npt.NDArray[np.complex128]


class FittedShapes(NamedTuple):
    """Constellations of N images, fitted to a common shape of K landmarks.

    Attributes:
        shape: [K, 2] common shape with mean 0 and root mean square radius 1.
        residual: [N, K] distance of each landmark from its place in the common shape after the fit, in radii
            of the shape.
        rotation: [N] angle in radians by which each constellation is rotated to fit the shape.
        is_mirrored: [N] True for constellations whose y is negated before the rotation.
    """

    shape: FloatArray
    residual: FloatArray
    rotation: FloatArray
    is_mirrored: npt.NDArray[np.bool_]


def fit_constellations(xy: FloatArray) -> FittedShapes:
    """Find a common shape, and fit the landmarks [N, K, 2] of each image to it.

    The fit is robust: landmarks that are far from their place count little. The common shape is the weighted
    mean of the fitted constellations. Fits and common shape are updated in turn. This is repeated from
    several initial shapes, and the result with the smallest median residual is returned.

    Raises:
        ValueError: if there are fewer than 2 landmarks.
    """
    if xy.shape[1] < 2:
        raise ValueError("a constellation has at least 2 landmarks")
    points = xy[..., 0] + 1j * xy[..., 1]
    best_fit: tuple[float, ComplexArray, _Fit] | None = None
    for start in evenly_spaced(len(points), _STARTS):
        shape = _normalize(points[start])
        for _ in range(_UPDATES):
            fit = _fit_to_shape(points, shape)
            weight = _compute_robust_weights(np.abs(fit.points - shape))
            shape = _normalize((weight * fit.points).sum(axis=0) / weight.sum(axis=0))
        fit = _fit_to_shape(points, shape)
        error = float(np.median(np.abs(fit.points - shape)))
        if best_fit is None or error < best_fit[0]:
            best_fit = error, shape, fit
    assert best_fit is not None
    _, shape, fit = best_fit
    residual = np.abs(fit.points - shape)
    return FittedShapes(
        np.stack([shape.real, shape.imag], axis=-1), residual, np.angle(fit.scale), fit.is_mirrored
    )


def group_duplicates(xy: FloatArray, radius: float) -> list[list[int]]:
    """Group landmarks [N, K, 2] that mark the same place.

    Two landmarks mark the same place if their median distance over images is at most `radius`. If A and B
    mark the same place, and so do B and C, then all three are in one group. Landmarks without a duplicate are
    left out.

    >>> near = np.array([[[0.0, 0.0], [0.1, 0.0], [9.0, 9.0]]])
    >>> group_duplicates(near, 1.0)
    [[0, 1]]
    """
    distance = np.linalg.norm(xy[:, :, None] - xy[:, None], axis=-1)
    is_same = np.median(distance, axis=0) <= radius
    count, group_of_landmark = connected_components(is_same, directed=False)
    groups = [np.nonzero(group_of_landmark == number)[0].tolist() for number in range(count)]
    return [members for members in groups if len(members) > 1]


def measure_unexplained_by_others(xy: FloatArray, duplicates: list[list[int]]) -> FloatArray:
    """Return the error [K] of predicting each landmark from the others.

    The error is divided by the error of guessing the landmark's mean position. Duplicates of the landmark do
    not count as others, because they jump together with the landmark. The result is NaN if no others remain.

    Args:
        xy: [N, K, 2] landmarks.
        duplicates: see `group_duplicates`.
    """
    num_images, num_landmarks = xy.shape[:2]
    present = np.ones((num_images, 1), dtype=bool)
    errors = np.full(num_landmarks, np.nan)
    for landmark in range(num_landmarks):
        duplicates_of_landmark = next((group for group in duplicates if landmark in group), [landmark])
        other_landmarks = np.setdiff1d(np.arange(num_landmarks), duplicates_of_landmark)
        if len(other_landmarks):
            errors[landmark] = unexplained_fraction(
                xy[:, other_landmarks], xy[:, landmark : landmark + 1], present
            )
    return errors


class _Fit(NamedTuple):
    """N constellations, mapped to a shape by similarity transforms a z + b of complex coordinates z.

    points:      [N, K] after the transform
    scale:       [N] the complex factors a: scale and rotation
    is_mirrored: [N] True for constellations that were mirrored before the transform
    """

    points: ComplexArray
    scale: ComplexArray
    is_mirrored: npt.NDArray[np.bool_]


def _fit_to_shape(points: ComplexArray, shape: ComplexArray) -> _Fit:
    """Fit constellations [N, K] to the shape [K]; mirror a constellation if it then fits better."""
    (plain, scale), (mirrored, mirrored_scale) = (
        _fit_robustly(side, shape) for side in (points, points.conj())
    )
    errors = [np.median(np.abs(fitted - shape), axis=1) for fitted in (plain, mirrored)]
    is_mirrored = errors[1] < errors[0]
    return _Fit(
        np.where(is_mirrored[:, None], mirrored, plain),
        np.where(is_mirrored, mirrored_scale, scale),
        is_mirrored,
    )


def _fit_robustly(points: ComplexArray, shape: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
    """Fit similarity transforms a z + b by iteratively reweighted least squares.

    Args:
        points: [N, K] constellations.
        shape: [K] the shape to fit.

    Returns:
        The transformed constellations [N, K], and the factors a [N].
    """
    weight: FloatArray = np.ones(points.shape)
    fitted, scale = points, np.ones((len(points), 1), np.complex128)
    for _ in range(_REWEIGHTINGS):
        total = weight.sum(axis=1, keepdims=True)
        center = (weight * points).sum(axis=1, keepdims=True) / total
        shape_center = (weight * shape).sum(axis=1, keepdims=True) / total
        offset = points - center
        variance = (weight * np.abs(offset) ** 2).sum(axis=1, keepdims=True)
        covariance = (weight * offset.conj() * (shape - shape_center)).sum(axis=1, keepdims=True)
        scale = np.divide(covariance, variance, out=np.zeros_like(covariance), where=variance > 0)
        fitted = scale * offset + shape_center
        weight = _compute_robust_weights(np.abs(fitted - shape))
    return fitted, scale[:, 0]


def _compute_robust_weights(residual: FloatArray) -> FloatArray:
    """Return weights [N, K] that fall with the residual [N, K], relative to the image's median residual."""
    scale = np.maximum(np.median(residual, axis=1, keepdims=True), _MIN_RESIDUAL)
    weight: FloatArray = 1 / (1 + (residual / scale) ** 2)
    return weight


def _normalize(shape: ComplexArray) -> ComplexArray:
    """Return the shape [K] with mean 0 and root mean square radius 1, or radius 0 if all points coincide."""
    centered = shape - shape.mean()
    radius = np.sqrt((np.abs(centered) ** 2).mean())
    normalized: ComplexArray = centered / radius if radius > 0 else centered
    return normalized
