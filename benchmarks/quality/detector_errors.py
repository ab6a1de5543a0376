"""Measure the errors of one detector for several ways of reading its heatmaps, with and without mirroring.

The numbers are those of `selfmark evaluate` with ridge 0.01. The curves of that command, which take most of
its time, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Evaluation, PeakMethod
from selfmark.detector import Detector
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.labeled_run import build_examples
from selfmark.evaluation.landmark_matching import hit_rates
from selfmark.evaluation.nme import mean_error
from selfmark.evaluation.normalizers import choose_normalizer
from selfmark.evaluation.protocol import Examples, backward_errors, forward_errors, guessing_errors
from selfmark.evaluation.raw_landmarks import match_annotated_points
from selfmark.evaluation.regression import fit_ridge
from selfmark.images.sources import list_images
from selfmark.images.store import iterate_crops
from selfmark.model.card import landmarks_without_partner
from selfmark.model.heatmaps import read_heatmaps, to_pixels
from selfmark.points import FloatArray

READINGS: tuple[PeakMethod, ...] = ("cell", "quarter", "parabola", "centroid")
NOT_MIRRORED, ALL_MIRRORED = "not mirrored", "all mirrored"
_SETTINGS = Evaluation()
_BATCH = 64

Part = tuple[Sequence[str | Path], Path]
"""Images and the file with their labels."""


def measure_readout_errors(
    detector: Detector, train: Part, test: Part, normalizer: str = ""
) -> list[dict[str, Any]]:
    """Return the errors of a detector, one row per way of reading its heatmaps.

    The last two rows use the detector's own way of reading. "not mirrored" ignores the mirror image. "all
    mirrored" averages with the mirror image even for landmarks without a mirror partner.

    Args:
        detector: the detector.
        train: images and labels that regressors are fitted on.
        test: images and labels that errors are measured on.
        normalizer: length that errors are divided by; if empty, the one given in the label files.
    """
    fit_examples, test_examples = (_read_examples(detector, *part, normalizer) for part in (train, test))
    size = detector.card.images.size
    return [
        {"reading": name} | _measure(fit_examples[name], test_examples[name], size) for name in fit_examples
    ]


def _measure(fit_examples: Examples, test_examples: Examples, size: int) -> dict[str, float]:
    """Return errors in percent, the raw hit rate in percent, and the spread of the landmarks."""
    fit = partial(fit_ridge, ridge=_SETTINGS.ridge)
    guessing = guessing_errors(fit_examples, test_examples)
    limit = np.full(len(test_examples), _SETTINGS.hit_pixels * size / _SETTINGS.hit_side)
    hits = hit_rates(
        test_examples.landmarks,
        test_examples.truth,
        test_examples.visible,
        limit,
        match_annotated_points(fit_examples),
    )
    return {
        "forward": round(mean_error(forward_errors(fit_examples, test_examples, fit)), 4),
        "guessing_forward": round(mean_error(guessing["forward"]), 4),
        "backward": round(mean_error(backward_errors(fit_examples, test_examples, fit)), 4),
        "guessing_backward": round(mean_error(guessing["backward"]), 4),
        "hits": round(100 * float(np.nanmean(hits)), 2),
        "spread": round(_measure_spread(test_examples), 3),
    }


def _measure_spread(examples: Examples) -> float:
    """Return the standard deviation of the landmarks over images, divided by that of the annotated points."""
    truth = np.where(examples.visible[..., None], examples.truth, np.nan)
    landmarks = np.nanmean(np.nanstd(examples.landmarks, axis=0))
    return float(landmarks / np.nanmean(np.nanstd(truth, axis=0)))


def _read_examples(
    detector: Detector, images: Sequence[str | Path], labels: Path, normalizer: str
) -> dict[str, Examples]:
    """Return landmarks and annotated points of labeled images for each way of reading."""
    truth = read_ground_truth(labels, list_images(list(images)))
    spec = normalizer or choose_normalizer(truth)
    size = detector.card.images.size
    batches: dict[str, list[FloatArray]] = {}
    regions = []
    for pixels, part_regions in _iterate_crops(detector, truth):
        regions.append(part_regions)
        for name, xy in _locate(detector, pixels).items():
            batches.setdefault(name, []).append(xy)
    all_regions = np.concatenate(regions)
    return {
        name: build_examples(truth, np.concatenate(xy), all_regions, spec, size)
        for name, xy in batches.items()
    }


def _iterate_crops(detector: Detector, truth: AnnotatedObjects) -> Iterator[tuple[Tensor, FloatArray]]:
    for crops in iterate_crops(truth.refs, detector.card.images, _BATCH):
        if crops.skipped:
            raise ValueError(f"{crops.skipped[0].name} cannot be read")
        yield crops.pixels, crops.regions


@torch.no_grad()
def _locate(detector: Detector, pixels: Tensor) -> dict[str, FloatArray]:
    """Return the landmarks [B, K, 2] of network images [B, 3, S, S] for each way of reading."""
    card = detector.card
    images = pixels.to(detector.device).float() / 255
    maps_of_image = detector.psi(images)
    as_detector = all_averaged = maps_of_image
    if card.flip_test:
        maps_of_mirror_image = detector.psi(images.flip(-1)).flip(-1)[:, list(card.mirror)]
        all_averaged = (maps_of_image + maps_of_mirror_image) / 2
        as_detector = all_averaged.clone()
        unpaired = landmarks_without_partner(card)
        as_detector[:, unpaired] = maps_of_image[:, unpaired]
    maps: dict[str, tuple[Tensor, PeakMethod]] = {name: (as_detector, name) for name in READINGS}
    maps |= {NOT_MIRRORED: (maps_of_image, card.refine), ALL_MIRRORED: (all_averaged, card.refine)}
    return {
        name: to_pixels(read_heatmaps(heatmaps, reading).cells).cpu().numpy()
        for name, (heatmaps, reading) in maps.items()
    }
