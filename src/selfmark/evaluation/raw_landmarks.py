"""Use landmarks as detections of the annotated points, without a regressor: measure hit rates and OKS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from selfmark.config import Evaluation
from selfmark.evaluation.landmark_matching import (
    compute_mean_distances,
    group_means,
    hit_rates,
    match_landmarks,
)
from selfmark.evaluation.nme import IntArray
from selfmark.evaluation.oks import Detections, TargetObjects, average_precision, choose_sigmas
from selfmark.evaluation.protocol import Examples, Metrics, to_json_list
from selfmark.points import FloatArray


def match_annotated_points(train: Examples) -> IntArray:
    """Match annotated points to landmarks: return the landmark [L] of each point, -1 if it gets none."""
    return match_landmarks(
        compute_mean_distances(train.landmarks, train.truth, train.visible, train.normalizer)
    )


def hit_rates_by_limit(
    predicted: FloatArray,
    matched: IntArray,
    test: Examples,
    limits: Mapping[str, FloatArray],
    groups: Mapping[str, tuple[int, ...]],
) -> Metrics:
    """Measure the percentage of annotated points that are hit, for several definitions of a hit.

    Args:
        predicted: [T, P, 2] points that stand for the annotated points.
        matched: [L] index of the predicted point of each annotated point; -1 if there is none, which counts
            as a miss.
        test: The annotated images.
        limits: Mapping from the name of a definition to the maximum distance [T] of a hit in each image.
            Images in which this distance is not positive are left out.
        groups: Mapping from the name of a body part to the indices of the part's annotated points.
    """
    metrics: Metrics = {}
    for name, limit in limits.items():
        is_counted = test.visible & (limit > 0)[:, None]
        rates = 100.0 * hit_rates(predicted, test.truth, is_counted, limit, matched)
        parts = group_means(rates, groups)
        metrics[name] = {
            "images": int((limit > 0).sum()),
            "average": float(np.nanmean(rates)),
            "by_part": dict(zip(parts, to_json_list(np.array(list(parts.values()))), strict=True)),
            "by_point": to_json_list(rates),
        }
    return metrics


def oks_metrics(
    detections: Detections, targets: TargetObjects, names: Sequence[str], settings: Evaluation
) -> Metrics:
    """Measure AP and AR of COCO, as means over OKS thresholds and at single thresholds.

    Args:
        detections: Detected objects.
        targets: Annotated objects.
        names: L names of the points, which determine their sigmas.
        settings: Thresholds, and the sigma of points that COCO does not annotate.
    """
    sigmas = choose_sigmas(names, settings.oks_sigma)

    def measure(thresholds: Sequence[float]) -> tuple[float, float]:
        result = average_precision(detections, targets, sigmas, np.array(thresholds))
        return float(np.mean(result.ap)), float(np.mean(result.ar))

    precision, recall = measure(settings.oks_thresholds)
    metrics: Metrics = {"AP": precision, "AR": recall}
    for threshold in settings.oks_single:
        precision, recall = measure((threshold,))
        metrics |= {f"AP {threshold:g}": precision, f"AR {threshold:g}": recall}
    return metrics


def build_detections(landmarks: FloatArray, score: FloatArray, matched: IntArray) -> Detections:
    """Return one detection per image, which consists of the landmarks matched to the annotated points.

    Args:
        landmarks: [N, K, 2] landmarks.
        score: [N, K] scores of the landmarks.
        matched: [L] landmark of each point, see `match_annotated_points`.
    """
    column = np.maximum(matched, 0)
    # A point without a landmark is placed far outside the image, so that its similarity is 0.
    xy = np.where((matched >= 0)[None, :, None], landmarks[:, column], 1e6)
    mean_score = score[:, column][:, matched >= 0].mean(axis=1)
    return Detections(np.arange(len(landmarks)), xy, mean_score)
