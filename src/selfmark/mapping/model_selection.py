"""Selection of the fitting options by cross-validation on the annotated images."""

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
    compute_mean_shape,
    empty_reference,
    fit_point_map,
)
from selfmark.points import FloatArray

RIDGES = (0.1, 0.05, 0.2, 0.025, 0.4)  # the first is the default
MIN_IMAGES_TO_SELECT = 8  # with fewer images, selecting options makes the map worse
MAX_FOLDS = 50  # up to this many images, each image is its own fold (leave-one-out)


@dataclass(frozen=True)
class FitOptions:
    """Options of a fit.

    Attributes:
        aligned: align the landmarks to their mean shape first.
        mirrored: also fit to the mirror image of every object.
        ridge: noise of the landmarks, see `fit_point_map`.
    """

    aligned: bool
    mirrored: bool
    ridge: float


@dataclass(frozen=True)
class SelectedMap:
    """The selected map and its cross-validation errors.

    Attributes:
        map: fitted to all objects.
        options: the selected options.
        errors: [N, L] errors of held-out objects, in percent of the lengths given; NaN where not known.
    """

    map: PointMap
    options: FitOptions
    errors: FloatArray


def select_map(examples: MappingExamples, lengths: FloatArray, mirror: MirrorPartners | None) -> SelectedMap:
    """Return the map fitted to all objects with the options that have the lowest cross-validation error.

    Fewer than `MIN_IMAGES_TO_SELECT` images are fitted with the default options. With a single image, nothing
    can be held out and all errors are NaN.

    Args:
        examples: N annotated objects.
        lengths: [N] lengths that errors are divided by.
        mirror: mirror partners; None if those of the points are not known.
    """
    mirrored = (True, False) if mirror is not None else (False,)
    all_options = [FitOptions(*values) for values in product((True, False), mirrored, RIDGES)]
    num_images = len(np.unique(examples.group))
    candidates = all_options if num_images >= MIN_IMAGES_TO_SELECT else all_options[:1]
    errors = np.stack([cross_validation_errors(examples, lengths, mirror, options) for options in candidates])
    # Some options predict points that others cannot. Compare on the points that all of them predict.
    shared = np.where(np.isnan(errors).any(axis=0), np.nan, errors)
    best = int(np.argmin([np.nan_to_num(mean_error(option_errors), nan=np.inf) for option_errors in shared]))
    return SelectedMap(fit_with_options(examples, mirror, candidates[best]), candidates[best], errors[best])


def fit_with_options(
    examples: MappingExamples, mirror: MirrorPartners | None, options: FitOptions
) -> PointMap:
    """Fit a map to these objects with these options."""
    if options.mirrored and mirror is not None:
        examples = add_mirrored(examples, mirror)
    aligned = options.aligned
    reference = compute_mean_shape(examples.landmarks, examples.score) if aligned else empty_reference()
    return fit_point_map(examples, reference, options.ridge)


def cross_validation_errors(
    examples: MappingExamples, lengths: FloatArray, mirror: MirrorPartners | None, options: FitOptions
) -> FloatArray:
    """Return the errors [N, L] of each object in percent, predicted by a map fitted without its image."""
    predicted = np.full(examples.points.shape, np.nan)
    for rows in _folds(examples.group):
        rest = np.setdiff1d(np.arange(len(examples)), rows)
        if len(rest):
            point_map = fit_with_options(examples.select(rest), mirror, options)
            predicted[rows] = point_map.predict(examples.landmarks[rows], examples.score[rows])
    return point_errors(predicted, examples.points, examples.visible, lengths)


def _folds(group: IntArray) -> Iterator[IntArray]:
    """Yield the rows of each fold.

    A fold is a single image, or every MAX_FOLDS-th image if there are more than MAX_FOLDS images.
    """
    _, image = np.unique(group, return_inverse=True)
    fold = image % MAX_FOLDS
    for index in range(int(fold.max()) + 1):
        yield np.flatnonzero(fold == index)
