"""Compute the Object Keypoint Similarity (OKS), and COCO's average precision and recall based on it.

The rules are those of COCO's keypoint evaluation for objects of all sizes, including the order of ties. So
the numbers can be compared with those of supervised methods, as in Sec. 6 of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfmark.errors import InputError
from selfmark.evaluation.nme import BoolArray, IntArray
from selfmark.evaluation.normalizers import group_by_part
from selfmark.points import FloatArray

# Standard deviation of human annotations of each part, divided by the root of the object's area (from COCO).
COCO_SIGMAS = {
    "nose": 0.026,
    "eye": 0.025,
    "ear": 0.035,
    "shoulder": 0.079,
    "elbow": 0.072,
    "wrist": 0.062,
    "hip": 0.107,
    "knee": 0.087,
    "ankle": 0.089,
}
MAX_DETECTIONS = 20  # detections per image that count
RECALLS = np.linspace(0.0, 1.0, 101)  # recalls at which precision is sampled


@dataclass(frozen=True)
class Detections:
    """D detected objects.

    Attributes:
        image: [D] int64, index of the image of each detection.
        xy: [D, L, 2] points.
        score: [D] confidence.
    """

    image: IntArray
    xy: FloatArray
    score: FloatArray


@dataclass(frozen=True)
class TargetObjects:
    """G annotated objects that detections are matched to.

    Attributes:
        image: [G] int64, index of the image of each object.
        xy: [G, L, 2] points, arbitrary where not visible.
        visible: [G, L] bool, whether each point is visible.
        area: [G] square pixels.
        box: [G, 4] x, y, width, height. As in COCO, an object without visible points matches detections near
            its box. Without boxes (None), such an object matches any detection.
        crowd: [G] True for annotations that cover several objects; they match any number of detections. None
            if there are no crowds.
    """

    image: IntArray
    xy: FloatArray
    visible: BoolArray
    area: FloatArray
    box: FloatArray | None = None
    crowd: BoolArray | None = None


@dataclass(frozen=True)
class PrecisionRecall:
    """Precision and recall at each of T similarity thresholds; COCO's AP and AR are means over thresholds.

    Attributes:
        ap: [T] average precision.
        ar: [T] recall.
    """

    ap: FloatArray
    ar: FloatArray


def choose_sigmas(names: Sequence[str], default: float) -> FloatArray:
    """Return the sigma [L] of each point: COCO's sigma of its body part, or the default for other parts.

    >>> choose_sigmas(["left_eye", "RShoulder", "beak"], default=0.05).tolist()
    [0.025, 0.079, 0.05]
    """
    sigmas = np.full(len(names), default, np.float64)
    for part, points in group_by_part(names).items():
        sigmas[list(points)] = COCO_SIGMAS.get(part, default)
    return sigmas


def average_precision(
    detections: Detections, targets: TargetObjects, sigmas: FloatArray, thresholds: FloatArray
) -> PrecisionRecall:
    """Compute precision and recall under COCO's matching rules.

    In each image, the detections choose objects in turn, the detection with the highest score first. Each
    takes the most similar free object, if the similarity reaches the threshold. Crowds and objects without
    visible points are ignored objects: a detection takes one of these only if no other object is possible,
    and then the detection does not count. In each image, only the 20 detections with the highest scores
    count.

    Args:
        detections: D detections.
        targets: G objects.
        sigmas: [L] sigma of each point, see `choose_sigmas`.
        thresholds: [T] minimum similarity of a match, for each of T measurements.

    Raises:
        InputError: If all objects are ignored.
    """
    crowd = np.zeros(len(targets.image), bool) if targets.crowd is None else targets.crowd
    is_ignored = crowd | ~targets.visible.any(axis=1)
    num_targets = int((~is_ignored).sum())
    if num_targets == 0:
        raise InputError(
            "every object is a crowd or has no visible point, so average precision cannot be measured"
        )
    min_similarity = np.asarray(thresholds, np.float64)
    # The highest score comes first. Equal scores are ordered by image, then as given.
    by_score = np.lexsort((detections.image, -detections.score))
    is_match = np.zeros((len(min_similarity), len(detections.image)), bool)
    is_counted = np.zeros_like(is_match)  # detections beyond the best 20 of their image stay False
    objects_of = _group_rows_by_image(targets.image)
    for image, positions in _group_rows_by_image(detections.image[by_score]).items():
        best = by_score[positions[:MAX_DETECTIONS]]
        objects = objects_of.get(image, np.zeros(0, np.int64))
        similarity = np.zeros((len(best), len(objects)))
        for column, row in enumerate(objects):
            similarity[:, column] = _compute_target_similarity(detections.xy[best], targets, row, sigmas)
        chosen = _choose_objects(similarity, is_ignored[objects], crowd[objects], min_similarity)
        is_match[:, best] = chosen >= 0
        # A detection without an object counts: its index -1 selects the appended False.
        is_counted[:, best] = ~np.append(is_ignored[objects], False)[chosen]
    is_match, is_counted = is_match[:, by_score], is_counted[:, by_score]
    precision = [
        _interpolated_precision(match[counted], num_targets).mean()
        for match, counted in zip(is_match, is_counted, strict=True)
    ]
    return PrecisionRecall(np.array(precision), (is_match & is_counted).sum(axis=1) / num_targets)


def _group_rows_by_image(image: IntArray) -> dict[int, IntArray]:
    """Return a dictionary from the index of each image to the rows of the image, in ascending order."""
    order = np.argsort(image, kind="stable")
    unique_images, starts = np.unique(image[order], return_index=True)
    return dict(zip(unique_images.tolist(), np.split(order, starts)[1:], strict=True))


def _compute_target_similarity(
    xy: FloatArray, targets: TargetObjects, row: int, sigmas: FloatArray
) -> FloatArray:
    """Compute the OKS [D] of detections [D, L, 2] with one object.

    If no point of the object is visible, distances to its box are used instead. For this, the box is enlarged
    by its width to the left and right, and by its height at the top and bottom. Without a box, the distances
    are 0.
    """
    visible = targets.visible[row]
    if visible.any():
        offset, sigmas = (xy - targets.xy[row])[:, visible], sigmas[visible]
    elif targets.box is not None:
        corner, size = targets.box[row, :2], targets.box[row, 2:]
        offset = np.maximum(corner - size - xy, 0.0) + np.maximum(xy - (corner + 2.0 * size), 0.0)
    else:
        offset = np.zeros_like(xy)
    similarity: FloatArray = np.mean(_compute_point_similarity(offset, targets.area[row], sigmas), axis=1)
    return similarity


def _compute_point_similarity(offset: FloatArray, area: FloatArray | float, sigmas: FloatArray) -> FloatArray:
    """Compute exp(-e) of offsets [..., L, 2], with COCO's e = d^2 / (2 (2 sigma)^2 (area + eps))."""
    squared = (offset**2).sum(axis=-1)
    similarity: FloatArray = np.exp(-squared / (2.0 * sigmas) ** 2 / (area + np.spacing(1.0)) / 2.0)
    return similarity


def _choose_objects(
    similarity: FloatArray, ignored: BoolArray, crowd: BoolArray, min_similarity: FloatArray
) -> IntArray:
    """Return the object [T, D] that each detection of an image takes at each threshold; -1 for none.

    Args:
        similarity: [D, G] OKS of detections and objects; the detection with the highest score comes first.
        ignored: [G] True for objects that are taken only if no other object is possible.
        crowd: [G] True for objects that can be taken several times.
        min_similarity: [T] thresholds.
    """
    chosen = np.full((len(min_similarity), len(similarity)), -1, np.int64)
    if similarity.shape[1] == 0:
        return chosen
    # As in COCO, thresholds are limited to slightly less than 1, so that a threshold of 1 can be reached.
    required = np.minimum(min_similarity, 1.0 - 1e-10)[:, None]
    is_free = np.ones((len(min_similarity), similarity.shape[1]), bool)
    for index, similar in enumerate(similarity):
        is_possible = (is_free | crowd) & (similar >= required)
        is_regular = is_possible & ~ignored
        # COCO visits ignored objects after all others.
        eligible = np.where(is_regular.any(axis=1, keepdims=True), is_regular, is_possible)
        rows = np.flatnonzero(eligible.any(axis=1))  # thresholds at which the detection takes an object
        # Of objects with equal similarity, COCO takes the last one, so the first maximum is sought backwards.
        backwards = np.where(eligible, similar, -1.0)[rows, ::-1]
        chosen[rows, index] = similarity.shape[1] - 1 - np.argmax(backwards, axis=1)
        is_free[rows, chosen[rows, index]] = False
    return chosen


def _interpolated_precision(is_match: BoolArray, num_targets: int) -> FloatArray:
    """Return for each of COCO's recalls [101] the best precision at this recall or a higher one.

    The precision is 0 for recalls that are not reached.

    Args:
        is_match: [D] True for detections with an object; the detection with the highest score comes first.
        num_targets: number of objects that are not ignored.
    """
    matches = np.cumsum(is_match)
    precision = matches / np.arange(1, len(is_match) + 1)
    best_precision = np.maximum.accumulate(precision[::-1])[::-1]
    index = np.searchsorted(matches / num_targets, RECALLS, side="left")
    curve: FloatArray = np.append(best_precision, 0.0)[index]
    return curve
