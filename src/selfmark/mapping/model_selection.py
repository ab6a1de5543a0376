"""Select the fitting options by cross-validation on the annotated images."""

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
    fit_point_map,
    make_empty_reference,
)
from selfmark.points import FloatArray

RIDGES = (0.1, 0.05, 0.2, 0.025, 0.4)  # values of `FitOptions.ridge` to try; the first is the default
MIN_IMAGES_TO_SELECT = 8  # with fewer images, selecting options makes the map worse
MAX_FOLDS = 50  # up to this many images, each image is its own fold (leave-one-out)


@dataclass(frozen=True)
class FitOptions:
    """Options of a fit.

    Attributes:
        aligned: Whether to align the landmarks to their mean shape before the fit.
        mirrored: Whether to fit to the mirror images of the objects, too.
        ridge: Standard deviation of the landmark noise, see `fit_point_map`.
    """

    aligned: bool
    mirrored: bool
    ridge: float


@dataclass(frozen=True)
class SelectedMap:
    """The selected map and its cross-validation errors.

    Attributes:
        map: Map fitted to all objects.
        options: Selected options.
        errors: [N, L] errors of held-out objects, in percent of the normalizing lengths; NaN for points that
            are not annotated or that could not be predicted.
    """

    map: PointMap
    options: FitOptions
    errors: FloatArray


def select_map(examples: MappingExamples, lengths: FloatArray, mirror: MirrorPartners | None) -> SelectedMap:
    """Select the options with the lowest cross-validation error, and fit a map with them to all objects.

    With fewer than `MIN_IMAGES_TO_SELECT` images, use the default options: aligned, mirrored if partners are
    known, and the first of `RIDGES`. With a single image, nothing can be held out and all errors are NaN.

    Args:
        examples: N annotated objects.
        lengths: [N] lengths that errors are divided by, in network pixels.
        mirror: Mirror partners; None if the mirror partners of the points are unknown.
    """
    mirrored = (True, False) if mirror is not None else (False,)
    all_options = [FitOptions(*values) for values in product((True, False), mirrored, RIDGES)]
    num_images = len(np.unique(examples.group))
    candidates = all_options if num_images >= MIN_IMAGES_TO_SELECT else all_options[:1]
    errors = np.stack(
        [compute_cross_validation_errors(examples, lengths, mirror, options) for options in candidates]
    )
    # Some options predict points that others cannot. Compare only on the points that all options predict.
    shared = np.where(np.isnan(errors).any(axis=0), np.nan, errors)
    mean_errors = [np.nan_to_num(mean_error(option_errors), nan=np.inf) for option_errors in shared]
    best_option = int(np.argmin(mean_errors))
    return SelectedMap(
        fit_with_options(examples, mirror, candidates[best_option]),
        candidates[best_option],
        errors[best_option],
    )


def fit_with_options(
    examples: MappingExamples, mirror: MirrorPartners | None, options: FitOptions
) -> PointMap:
    """Fit a map to the examples with the given options."""
    if options.mirrored and mirror is not None:
        examples = add_mirrored(examples, mirror)
    reference = make_empty_reference()
    if options.aligned:
        reference = compute_mean_shape(examples.landmarks, examples.score)
    return fit_point_map(examples, reference, options.ridge)


def compute_cross_validation_errors(
    examples: MappingExamples, lengths: FloatArray, mirror: MirrorPartners | None, options: FitOptions
) -> FloatArray:
    """Return the errors [N, L] in percent; each object is predicted by a map fitted without its image."""
    predicted = np.full(examples.points.shape, np.nan)
    for held_out in _split_folds(examples.group):
        training = np.setdiff1d(np.arange(len(examples)), held_out)
        if len(training):
            point_map = fit_with_options(examples.select(training), mirror, options)
            predicted[held_out] = point_map.predict(examples.landmarks[held_out], examples.score[held_out])
    return point_errors(predicted, examples.points, examples.visible, lengths)


def _split_folds(group: IntArray) -> Iterator[IntArray]:
    """Yield the rows of each fold.

    A fold is a single image, or every MAX_FOLDS-th image if there are more than MAX_FOLDS images.
    """
    _, image = np.unique(group, return_inverse=True)
    fold = image % MAX_FOLDS
    for index in range(int(fold.max()) + 1):
        yield np.flatnonzero(fold == index)
