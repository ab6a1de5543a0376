"""How to fit: tried on annotated images that were left out, which also says how far to trust the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from selfmark.evaluation.nme import mean_error, point_errors
from selfmark.mapping.point_map import (
    IntArray,
    MappingExamples,
    MirrorPartners,
    PointMap,
    add_mirrored,
    fit_point_map,
    mean_shape,
    no_reference,
)
from selfmark.points import FloatArray

RIDGES = (0.1, 0.05, 0.2, 0.025, 0.4)  # the first where there is no choosing
ENOUGH = 8  # images; fewer leave too little to choose by, and choosing does more harm than good
FOLDS = 50  # up to so many images each is left out alone; of more, as many parts are


@dataclass(frozen=True)
class FitOptions:
    """One way to fit: in the object's own frame or the crop, with or without mirror images, which ridge."""

    aligned: bool
    mirrored: bool
    ridge: float


@dataclass(frozen=True)
class SelectedMap:
    """A map and what is known of it.

    map:    fitted on all objects
    way:    how
    errors: [N, L] errors of objects left out, in percent of the lengths given; NaN where not known
    """

    map: PointMap
    way: FitOptions
    errors: FloatArray


def select_map(examples: MappingExamples, lengths: FloatArray, mirror: MirrorPartners | None) -> SelectedMap:
    """Try every way on images left out, and fit all of them in the best.

    Few images are fitted in the way that is safest; of a single one nothing can be left out.

    Args:
        examples: N annotated objects.
        lengths: [N] what errors are divided by.
        mirror: Mirror partners; None where the points' are not known.
    """
    mirrors = (True, False) if mirror is not None else (False,)
    ways = [FitOptions(*parts) for parts in product((True, False), mirrors, RIDGES)]
    images = len(np.unique(examples.group))
    tried = ways if images >= ENOUGH else ways[:1]
    errors = np.stack([left_out_errors(examples, lengths, mirror, way) for way in tried])
    # Some ways know points that others do not; all are judged by the points all know.
    shared = np.where(np.isnan(errors).any(axis=0), np.nan, errors)
    best = int(np.argmin([np.nan_to_num(mean_error(one), nan=np.inf) for one in shared]))
    return SelectedMap(fit_with_options(examples, mirror, tried[best]), tried[best], errors[best])


def fit_with_options(examples: MappingExamples, mirror: MirrorPartners | None, way: FitOptions) -> PointMap:
    """The map of these objects, fitted in this way."""
    if way.mirrored and mirror is not None:
        examples = add_mirrored(examples, mirror)
    reference = mean_shape(examples.landmarks, examples.score) if way.aligned else no_reference()
    return fit_point_map(examples, reference, way.ridge)


def left_out_errors(
    examples: MappingExamples, lengths: FloatArray, mirror: MirrorPartners | None, way: FitOptions
) -> FloatArray:
    """Errors [N, L] in percent of each object under a map fitted without its image."""
    predicted = np.full(examples.points.shape, np.nan)
    for rows in _folds(examples.group):
        rest = np.setdiff1d(np.arange(len(examples)), rows)
        if len(rest):
            point_map = fit_with_options(examples.select(rest), mirror, way)
            predicted[rows] = point_map.predict(examples.landmarks[rows], examples.score[rows])
    return point_errors(predicted, examples.points, examples.visible, lengths)


def _folds(group: IntArray) -> Iterator[IntArray]:
    """The rows of each image, or where there are many, of every FOLDSth one."""
    _, number = np.unique(group, return_inverse=True)
    part = number % FOLDS
    for fold in range(int(part.max()) + 1):
        yield np.flatnonzero(part == fold)
