"""Which of the discovered landmarks to trust, without a single label.

The checks find landmarks that follow nothing, mistake left for right, or rest on little evidence. They cannot
tell the object from something else that moves with the picture, a caption for instance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfmark.evaluation.consistency import DeformationErrors
from selfmark.points import FloatArray


@dataclass(frozen=True)
class LandmarkTrust:
    """How far each of K landmarks can be trusted, and why. A column nothing is known of is NaN throughout.

    deformation: [K] median error under deformation, in percent of the image's side
    stable:      [K] share of the deformations that carried it away which it followed
    symmetric:   [K] share of images where it and its partner in the mirror image agree
    found:       [K] share of training images in which Stage 1 found it
    score:       [K] mean peak of its heatmap
    separation:  [K] mean silhouette of its descriptors
    trust:       [K] 0..1, see `judge_landmarks`
    order:       [K] int64, landmarks from the most to the least trusted
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
    near: float,
) -> LandmarkTrust:
    """Rank the landmarks by the checks that need no labels.

    Trust is a product, since one failed check is enough: the share of deformations followed, the share of
    images where left and right agree, and how often Stage 1 found the landmark compared with the landmark it
    found most often. Heatmap peaks and separation are shown but do not count: a landmark can be sure of
    itself and wrong.

    Args:
        deformed: see `deformation_errors`.
        mirror: [N, K], see `mirror_errors`; None for a detector trained without flipping.
        found: [N, K], where Stage 1 found the landmark in the training images; None if that is not known.
        separation: [K], see `separation`; None if that is not known.
        score: [N, K] peaks of the heatmaps.
        near: a landmark agrees with itself within this share of the image's side.
    """
    landmarks = score.shape[1]
    unknown = np.full(landmarks, np.nan)
    # A landmark glued to one spot of the picture agrees with every deformation that leaves the spot in place.
    told = np.isfinite(deformed.error) & (deformed.moved > near)
    stable = _share(deformed.error <= near, told)
    symmetric = unknown if mirror is None else _share(mirror <= near, np.isfinite(mirror))
    rates = unknown if found is None else found.mean(axis=0)
    trust = _factor(stable) * _factor(symmetric) * _factor(rates / (rates.max() or 1.0))
    deformation = 100 * _median(deformed.error)
    return LandmarkTrust(
        deformation=deformation,
        stable=stable,
        symmetric=symmetric,
        found=rates,
        score=score.mean(axis=0),
        separation=unknown if separation is None else separation,
        trust=trust,
        order=np.lexsort((deformation, -trust)),
    )


def _share(agrees: npt.NDArray[np.bool_], counts: npt.NDArray[np.bool_]) -> FloatArray:
    """Share [K] of the rows that count which agree; NaN where none counts."""
    number = counts.sum(axis=0)
    share: FloatArray = np.where(number > 0, (agrees & counts).sum(axis=0) / np.maximum(number, 1), np.nan)
    return share


def _factor(share: FloatArray) -> FloatArray:
    """A factor of trust: 1 if the check was never made, else 0 for the landmarks it could say nothing of."""
    known = np.isfinite(share)
    factor: FloatArray = np.where(known, share, 0.0 if known.any() else 1.0)
    return factor


def _median(values: FloatArray) -> FloatArray:
    """Median [K] of each column without its NaN; NaN for a column of nothing else."""
    filled = np.where(np.isfinite(values).any(axis=0), values, 0.0)
    median: FloatArray = np.where(np.isfinite(values).any(axis=0), np.nanmedian(filled, axis=0), np.nan)
    return median
