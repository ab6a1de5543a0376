"""Trust in each discovered landmark, computed without labels.

The checks find landmarks that follow nothing, confuse left and right, or are rarely detected. They cannot
distinguish the object from something else that moves with the image, such as a caption.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfmark.evaluation.consistency import DeformationErrors
from selfmark.points import FloatArray


@dataclass(frozen=True)
class LandmarkTrust:
    """Trust in each of K landmarks and the checks behind it. A check that was not made is all NaN.

    Attributes:
        deformation: [K] median error under deformation, in percent of the image side.
        stable: [K] fraction of deformations that it follows, among those that move it.
        symmetric: [K] fraction of images in which it agrees with its partner in the mirrored image.
        found: [K] fraction of training images in which Stage 1 found it.
        score: [K] mean peak of its heatmap.
        separation: [K] mean silhouette of its descriptors.
        trust: [K] 0..1, see `judge_landmarks`.
        order: [K] int64, landmarks from the most to the least trusted.
    """

    deformation: FloatArray
    stable: FloatArray
    symmetric: FloatArray
    found: FloatArray
    score: FloatArray
    separation: FloatArray
    trust: FloatArray
    order: npt.NDArray[np.int64]


def judge_landmarks(
    deformed: DeformationErrors,
    mirror: FloatArray | None,
    found: npt.NDArray[np.bool_] | None,
    separation: FloatArray | None,
    score: FloatArray,
    agreement_radius: float,
) -> LandmarkTrust:
    """Rank the landmarks by the label-free checks.

    Trust is a product, because one failed check is enough: the fraction of deformations followed, the
    fraction of images in which left and right agree, and the detection rate of Stage 1 relative to that of
    the most frequent landmark. Heatmap peaks and separation are reported but do not count, because a landmark
    can be confident and wrong.

    Args:
        deformed: See `deformation_errors`.
        mirror: [N, K], see `mirror_errors`; None for a detector trained without flipping.
        found: [N, K], where Stage 1 found the landmark in the training images; None if unknown.
        separation: [K], see `cluster_separation`; None if unknown.
        score: [N, K] peaks of the heatmaps.
        agreement_radius: Maximum distance at which two positions agree, as a fraction of the image side.
    """
    not_measured = np.full(score.shape[1], np.nan)
    # A landmark fixed to one spot of the image agrees with every deformation that leaves this spot in place.
    is_counted = np.isfinite(deformed.error) & (deformed.moved > agreement_radius)
    stable = _fraction(deformed.error <= agreement_radius, is_counted)
    symmetric = not_measured if mirror is None else _fraction(mirror <= agreement_radius, np.isfinite(mirror))
    rates = not_measured if found is None else found.mean(axis=0)
    trust = _factor(stable) * _factor(symmetric) * _factor(rates / (rates.max() or 1.0))
    deformation = 100 * _nan_median(deformed.error)
    return LandmarkTrust(
        deformation=deformation,
        stable=stable,
        symmetric=symmetric,
        found=rates,
        score=score.mean(axis=0),
        separation=not_measured if separation is None else separation,
        trust=trust,
        order=np.lexsort((deformation, -trust)),
    )


def _fraction(agrees: npt.NDArray[np.bool_], is_counted: npt.NDArray[np.bool_]) -> FloatArray:
    """Compute the fraction [K] of counted rows that agree; NaN if none is counted."""
    count = is_counted.sum(axis=0)
    agreeing = (agrees & is_counted).sum(axis=0)
    fraction: FloatArray = np.where(count > 0, agreeing / np.maximum(count, 1), np.nan)
    return fraction


def _factor(fraction: FloatArray) -> FloatArray:
    """Return a factor of trust: all 1 if the check was not made, else 0 for landmarks without a result."""
    known = np.isfinite(fraction)
    factor: FloatArray = np.where(known, fraction, 0.0 if known.any() else 1.0)
    return factor


def _nan_median(values: FloatArray) -> FloatArray:
    """Compute the median [K] of each column, ignoring NaN; unlike `np.nanmedian`, without warnings."""
    filled = np.where(np.isfinite(values).any(axis=0), values, 0.0)
    median: FloatArray = np.where(np.isfinite(values).any(axis=0), np.nanmedian(filled, axis=0), np.nan)
    return median
