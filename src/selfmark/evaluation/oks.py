"""Object Keypoint Similarity, and COCO's average precision and recall over it (paper, raw accuracy tables).

The rules are those of COCO's keypoint evaluation for objects of all sizes, down to the order of ties, so that
figures can be compared with those of supervised methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfmark.errors import InputError
from selfmark.evaluation.nme import BoolArray, IntArray
from selfmark.evaluation.normalizers import part_groups
from selfmark.points import FloatArray

# How precisely people place each part, measured by COCO's authors, in units of the root of the object's area.
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
MOST_DETECTIONS = 20  # per image
RECALLS = np.linspace(0.0, 1.0, 101)  # where precision is read off


@dataclass(frozen=True)
class PrecisionRecall:
    """COCO's figures for each of T thresholds on the similarity; AP and AR are their means.

    ap: [T] average precision
    ar: [T] recall
    """

    ap: FloatArray
    ar: FloatArray


def sigmas_for(names: Sequence[str], default: float) -> FloatArray:
    """The spread [L] of each named point: COCO's where the name is one of its parts, on either side.

    >>> sigmas_for(["left_eye", "RShoulder", "beak"], default=0.05).tolist()
    [0.025, 0.079, 0.05]
    """
    sigmas = np.full(len(names), default, np.float64)
    for part, points in part_groups(names).items():
        sigmas[list(points)] = COCO_SIGMAS.get(part, default)
    return sigmas


def object_keypoint_similarity(
    predicted: FloatArray, truth: FloatArray, visible: BoolArray, area: FloatArray, sigmas: FloatArray
) -> FloatArray:
    """Similarity [N] of predicted to true points: the mean of exp(-d^2 / (8 area sigma^2)) over visible ones.

    Args:
        predicted: [N, L, 2].
        truth: [N, L, 2].
        visible: [N, L].
        area: [N] square pixels of the object.
        sigmas: [L], see `sigmas_for`.

    Returns:
        [N], between 0 and 1; NaN where nothing is visible.
    """
    offset = np.where(visible[..., None], predicted - truth, 0.0)
    likeness = np.where(visible, _likeness(offset, area[:, None], sigmas), 0.0)
    count = visible.sum(axis=1)
    similarity: FloatArray = np.where(count > 0, likeness.sum(axis=1) / np.maximum(count, 1), np.nan)
    return similarity


def average_precision(
    det_image: IntArray,
    det_xy: FloatArray,
    det_score: FloatArray,
    gt_image: IntArray,
    gt_xy: FloatArray,
    gt_visible: BoolArray,
    gt_area: FloatArray,
    sigmas: FloatArray,
    thresholds: FloatArray,
    gt_box: FloatArray | None = None,
    gt_crowd: BoolArray | None = None,
) -> PrecisionRecall:
    """Precision and recall of D detections of G objects, under COCO's rules of matching.

    In each image the surest detections choose first, each the most similar object not yet taken that reaches
    the threshold. Objects without visible points and crowds are chosen last, and detections that choose them
    count neither for nor against. Of an image's detections the 20 surest count.

    Args:
        det_image: [D] image of each detection.
        det_xy: [D, L, 2].
        det_score: [D].
        gt_image: [G] image of each object.
        gt_xy: [G, L, 2].
        gt_visible: [G, L].
        gt_area: [G] square pixels.
        sigmas: [L], see `sigmas_for`.
        thresholds: [T] least similarities of a find.
        gt_box: [G, 4] x, y, width, height, near which COCO seeks objects without visible points; without it
            such an object takes any detection.
        gt_crowd: [G] objects that stand for several, and are never used up; none if not given.
    """
    crowd = np.zeros(len(gt_image), bool) if gt_crowd is None else gt_crowd
    ignored = crowd | ~gt_visible.any(axis=1)
    wanted = int((~ignored).sum())
    if wanted == 0:
        raise InputError("no object has a visible point, so average precision cannot be measured")
    least = np.asarray(thresholds, np.float64)
    ranking = np.lexsort((det_image, -det_score))  # the surest first; ties by image, then as given
    found = np.zeros((len(least), len(det_image)), bool)
    counted = np.zeros_like(found)  # detections beyond the surest of their image never do
    objects_of = _rows_by_image(gt_image)
    for image, ranks in _rows_by_image(det_image[ranking]).items():
        surest = ranking[ranks[:MOST_DETECTIONS]]
        objects = objects_of.get(image, np.zeros(0, np.int64))
        similarity = np.zeros((len(surest), len(objects)))
        for column, g in enumerate(objects):
            box = None if gt_box is None else gt_box[g]
            similarity[:, column] = _similarity(
                det_xy[surest], gt_xy[g], gt_visible[g], gt_area[g], box, sigmas
            )
        chosen = _choose(similarity, ignored[objects], crowd[objects], least)
        found[:, surest] = chosen >= 0
        counted[:, surest] = ~np.append(ignored[objects], False)[chosen]  # -1, no object, is the appended one
    found, counted = found[:, ranking], counted[:, ranking]
    precision = [_interpolated(hit[count], wanted).mean() for hit, count in zip(found, counted, strict=True)]
    return PrecisionRecall(np.array(precision), (found & counted).sum(axis=1) / wanted)


def _rows_by_image(image: IntArray) -> dict[int, IntArray]:
    """The rows of each image, in their order."""
    order = np.argsort(image, kind="stable")
    images, starts = np.unique(image[order], return_index=True)
    return dict(zip(images.tolist(), np.split(order, starts)[1:], strict=True))


def _similarity(
    xy: FloatArray,
    truth: FloatArray,
    visible: BoolArray,
    area: float,
    box: FloatArray | None,
    sigmas: FloatArray,
) -> FloatArray:
    """OKS [D] of detections [D, L, 2] with one object.

    Without visible points, distances are those to its box, enlarged by its own size on every side.
    """
    if visible.any():
        offset, sigmas = (xy - truth)[:, visible], sigmas[visible]
    elif box is not None:
        corner, size = box[:2], box[2:]
        offset = np.maximum(corner - size - xy, 0.0) + np.maximum(xy - (corner + 2.0 * size), 0.0)
    else:
        offset = np.zeros_like(xy)
    similarity: FloatArray = np.mean(_likeness(offset, area, sigmas), axis=1)
    return similarity


def _likeness(offset: FloatArray, area: FloatArray | float, sigmas: FloatArray) -> FloatArray:
    """exp(-e) of offsets [..., L, 2], with COCO's e = d^2 / (2 (2 sigma)^2 (area + eps))."""
    squared = (offset**2).sum(axis=-1)
    likeness: FloatArray = np.exp(-squared / (2.0 * sigmas) ** 2 / (area + np.spacing(1.0)) / 2.0)
    return likeness


def _choose(similarity: FloatArray, ignored: BoolArray, crowd: BoolArray, least: FloatArray) -> IntArray:
    """The object [T, D] each detection takes at each threshold, -1 for none.

    Args:
        similarity: [D, G], the surest detection first.
        ignored: [G].
        crowd: [G].
        least: [T] thresholds.
    """
    chosen = np.full((len(least), len(similarity)), -1, np.int64)
    if similarity.shape[1] == 0:
        return chosen
    enough = np.minimum(least, 1.0 - 1e-10)[:, None]  # so that a threshold of 1 can be met, as COCO has it
    free = np.ones((len(least), similarity.shape[1]), bool)
    for index, similar in enumerate(similarity):
        possible = (free | crowd) & (similar >= enough)
        regular = possible & ~ignored
        eligible = np.where(regular.any(axis=1, keepdims=True), regular, possible)
        takes = np.flatnonzero(eligible.any(axis=1))
        # Of equals COCO takes the last, and it looks at ignored objects after all others.
        backwards = np.where(eligible, similar, -1.0)[takes, ::-1]
        chosen[takes, index] = similarity.shape[1] - 1 - np.argmax(backwards, axis=1)
        free[takes, chosen[takes, index]] = False
    return chosen


def _interpolated(hit: BoolArray, wanted: int) -> FloatArray:
    """Precision at COCO's recalls: the best reached at that recall or beyond it; 0 beyond the last."""
    hits = np.cumsum(hit)
    precision = hits / np.arange(1, len(hit) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(hits / wanted, RECALLS, side="left")
    curve: FloatArray = np.append(best, 0.0)[at]
    return curve
