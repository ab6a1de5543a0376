"""Choose K landmarks out of more candidates, without labels.

An object has more parts than landmarks. Some parts can be predicted from others: two points on a rigid body
move together, while the tips of two legs do not. `choose_landmarks` therefore keeps the candidates that
together predict all candidates best. The predictors are positions found in the images; the positions to
predict are those found in the mirror images, mapped back. A candidate has different errors in an image and in
its mirror image. If the errors were equal, a candidate with large errors would seem useful, because only the
candidate itself could predict them. Uncertain positions count less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from selfmark.correspondence.agreement import solve_ridge
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.points import FloatArray


class Targets(NamedTuple):
    """Positions of T points in N images, `xy` [N, T, 2] in pixels, and their weights, `weight` [N, T]."""

    xy: FloatArray
    weight: FloatArray


class _Split(NamedTuple):
    """Data of one regression: sums over the half of the images to fit on, and the other half to test on.

    Coordinates are relative to their means over the half that is fitted on.

    gram:   [2C, 2C] sums of products of the candidates' coordinates over the fitted images
    cross:  [2C, 2T] sums of products of the candidates' and the targets' coordinates over the fitted images
    inputs: [N/2, 2C] candidates of the tested images
    truth:  [N/2, 2T] targets of the tested images
    weight: [N/2, T] weights of the targets
    """

    gram: FloatArray
    cross: FloatArray
    inputs: FloatArray
    truth: FloatArray
    weight: FloatArray


def choose_landmarks(
    candidates: FloatArray, targets: Targets, partners: LandmarkPartners, count: int, scale: float
) -> npt.NDArray[np.int64]:
    """Choose the candidates that together predict the targets best, one after the other.

    Each step adds the candidate, or the two mirror partners, that reduces the error of the prediction most.
    Partners are added together, so that both sides of an object have the same landmarks. The reduction is
    measured as the logarithm of the ratio of the errors before and after, per added landmark. The prediction
    is a ridge regression, fitted on every second image and tested on the images between, and vice versa.

    A distance d between prediction and target counts weight * d^2 / (d^2 + scale^2). So a candidate that
    sometimes jumps far away counts no more than a candidate on a part that moves. Differences that are much
    smaller than `scale` hardly count, so two candidates next to each other are rarely both chosen.

    Args:
        candidates: [N, C, 2] positions in N images, in pixels.
        targets: positions to predict, and their weights.
        partners: mirror partners of the C candidates.
        count: number of candidates to choose, at most C.
        scale: distance between prediction and target at which a target counts half of its weight, in pixels.

    Returns:
        [count] indices of the chosen candidates, ascending.
    """
    splits = _split_images(candidates, targets)
    error = _prediction_error(splits, [], scale)
    groups = _group_partners(partners)
    chosen: list[int] = []
    while len(chosen) < count:
        remaining_groups = [group for group in groups if group[0] not in chosen]
        addable = [group for group in remaining_groups if len(chosen) + len(group) <= count]
        if not addable:  # One more landmark is needed, but only pairs remain: choose one landmark of a pair.
            addable = [(index,) for group in remaining_groups for index in group]
        errors = [_prediction_error(splits, [*chosen, *group], scale) for group in addable]
        gains = [
            (np.log(max(error, 1e-12)) - np.log(max(after, 1e-12))) / len(group)
            for group, after in zip(addable, errors, strict=True)
        ]
        best = int(np.argmax(gains))
        chosen += addable[best]
        error = errors[best]
    return np.sort(np.array(chosen, dtype=np.int64))


def _group_partners(partners: LandmarkPartners) -> list[tuple[int, ...]]:
    """Return each pair of mirror partners, and each other landmark alone, in ascending order."""
    return sorted({tuple(sorted({index, other})) for index, other in enumerate(partners.mirror)})


def _split_images(candidates: FloatArray, targets: Targets) -> list[_Split]:
    """Return the two splits of the images into one half to fit on and one half to test on."""
    inputs, outputs = (xy.reshape(len(xy), -1).astype(np.float64) for xy in (candidates, targets.xy))
    is_even = np.arange(len(inputs)) % 2 == 0
    splits = []
    for is_fitted, is_tested in ((is_even, ~is_even), (~is_even, is_even)):
        x, y = inputs - inputs[is_fitted].mean(axis=0), outputs - outputs[is_fitted].mean(axis=0)
        splits.append(
            _Split(
                x[is_fitted].T @ x[is_fitted],
                x[is_fitted].T @ y[is_fitted],
                x[is_tested],
                y[is_tested],
                targets.weight[is_tested],
            )
        )
    return splits


def _prediction_error(splits: list[_Split], chosen: list[int], scale: float) -> float:
    """Return the error of predicting the targets from the chosen candidates, see `choose_landmarks`."""
    columns = np.array([2 * index + axis for index in chosen for axis in (0, 1)], dtype=np.int64)
    error = 0.0
    for split in splits:
        residual = split.truth
        if chosen:
            weights = solve_ridge(split.gram[np.ix_(columns, columns)], split.cross[columns])
            residual = split.truth - split.inputs[:, columns] @ weights
        squared = residual[:, 0::2] ** 2 + residual[:, 1::2] ** 2
        error += float((split.weight * squared / (squared + scale**2)).sum())
    return error
