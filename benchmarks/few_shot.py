"""Compare `selfmark map` with simpler methods for few annotated images. Results: docs/results/few_shot.json.

    python benchmarks/few_shot.py RUN DATA --out row.json --cache landmarks/

DATA is an unzipped data set (images/train, images/test, train.json, test.json). The script draws the
annotated images at random from the training images. Errors are measured on the test images, in percent of a
normalizer. The label file may declare it; otherwise, `choose_normalizer` chooses it. The landmarks of RUN's
detector are stored in the cache folder, because predicting them takes much longer than everything else.
`--max-images N` uses only N evenly spaced training images and N test images.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from selfmark.annotations import AnnotatedObjects
from selfmark.detector import Detector
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.nme import forward_predictions, image_errors, mean_error, point_errors
from selfmark.evaluation.normalizers import choose_normalizer, measure_lengths
from selfmark.evaluation.regression import RegressorFitter, fit_ridge
from selfmark.images.crop import to_network
from selfmark.images.sources import list_images
from selfmark.mapping import point_map
from selfmark.mapping.model_selection import RIDGES, FitOptions, fit_with_options, select_map
from selfmark.mapping.point_map import IntArray, MappingExamples, MirrorPartners
from selfmark.points import FloatArray
from selfmark.run.devices import select_device
from selfmark.run.files import write_json

ANNOTATED = (1, 2, 3, 5, 10, 20, 50)  # numbers of annotated images
# Options of the maps that are fitted without model selection.
DEFAULT_OPTIONS = FitOptions(aligned=True, mirrored=True, ridge=RIDGES[0])


class Part(NamedTuple):
    """Objects of the training or of the test images.

    Attributes:
        examples: landmarks and annotated points of the objects, in network pixels.
        lengths: normalizer of each object, in network pixels, [N].
        truth: annotations of the objects, in pixels of the original images.
    """

    examples: MappingExamples
    lengths: FloatArray
    truth: AnnotatedObjects


def main() -> None:
    """Measure all methods and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=20, help="random sets of annotated images per number")
    parser.add_argument("--max-images", type=int, default=0)
    arguments = parser.parse_args()
    detector = Detector.load(arguments.run, select_device("auto"))
    train = read_part(detector, arguments.data, "train", arguments.cache, arguments.max_images)
    test = read_part(detector, arguments.data, "test", arguments.cache, arguments.max_images)
    write_json(measure(detector, train, test, arguments.draws) | {"data": arguments.data.name}, arguments.out)


def read_part(detector: Detector, data: Path, part: str, cache: Path, max_images: int) -> Part:
    """Read the part "train" or "test" of the data set, and predict its landmarks if they are not cached."""
    truth = read_ground_truth(data / f"{part}.json", list_images([data / "images" / part]))
    if max_images and max_images < len(truth):
        truth = truth.select(np.linspace(0, len(truth) - 1, max_images).astype(int))
    cached = cache / f"{data.name}-{part}-{len(truth)}.npz"
    if not cached.exists():
        cache.mkdir(parents=True, exist_ok=True)
        predicted = detector.predict_network_pixels(truth.refs)
        xy, score = predicted.xy.astype(np.float64), predicted.score.astype(np.float64)
        np.savez(cached, xy=xy, score=score, regions=predicted.regions, rows=predicted.rows)
    with np.load(cached) as arrays:
        xy, score, regions, rows = (arrays[name] for name in ("xy", "score", "regions", "rows"))
    truth, size = truth.select(rows), detector.card.images.size
    points = to_network(np.nan_to_num(truth.xy), regions[:, None], size)
    examples = MappingExamples(xy, score, points, truth.visible, np.arange(len(truth), dtype=np.int64))
    scale = size / regions[:, 2]
    return Part(examples, measure_lengths(truth, choose_normalizer(truth), regions) * scale, truth)


def measure(detector: Detector, train: Part, test: Part, draws: int) -> dict[str, Any]:
    """Measure all methods for every number of annotated images."""
    mirror = MirrorPartners(detector.card.mirror, train.truth.mirror, detector.card.images.size)
    rng = np.random.default_rng(0)
    rows = []
    for annotated in ANNOTATED:
        ridge, aligned, unmirrored, unselected, mapped, on_training, estimated, seconds = (
            [] for _ in range(8)
        )
        chosen: dict[str, int] = {}
        for _ in range(draws):
            drawn = rng.choice(len(train.truth), annotated, replace=False)
            sample, lengths = train.examples.select(drawn), train.lengths[drawn]
            ridge.append(_measure_error(test, partial(_predict_with_ridge, sample)))
            # A huge ridge leaves only the mean of the points, shifted, rotated and scaled.
            only_mean = FitOptions(aligned=True, mirrored=False, ridge=1e3)
            aligned.append(_measure_error(test, fit_with_options(sample, mirror, only_mean).predict))
            unselected.append(_measure_error(test, fit_with_options(sample, mirror, DEFAULT_OPTIONS).predict))
            unmirrored.append(_measure_error(test, select_map(sample, lengths, None).map.predict))
            started = time.perf_counter()
            selected = select_map(sample, lengths, mirror)
            seconds.append(time.perf_counter() - started)
            mapped.append(_measure_error(test, selected.map.predict))
            on_training.append(_measure_error(_exclude_rows(train, drawn), selected.map.predict))
            estimated.append(mean_error(selected.errors))
            name = _describe_options(selected.options)
            chosen[name] = chosen.get(name, 0) + 1
        row = {
            "annotated": annotated,
            "ridge_of_evaluate": _compute_mean_and_spread(ridge),
            "mean_moved_along": _compute_mean_and_spread(aligned),
            "map_without_mirror_images": _compute_mean_and_spread(unmirrored),
            "map_without_choosing": _compute_mean_and_spread(unselected),
            "map": _compute_mean_and_spread(mapped),
            "map_on_other_training_images": _compute_mean_and_spread(on_training),
        }
        if annotated > 1:
            row["leave_one_out"] = _compute_mean_and_spread(estimated)
            for name, actual in (("test", mapped), ("other_training_images", on_training)):
                excess = np.array(estimated) / np.array(actual) - 1
                row[f"leave_one_out_beyond_{name}"] = _compute_mean_and_spread(excess.tolist())
                row[f"leave_one_out_within_a_fifth_of_{name}"] = float(np.mean(np.abs(excess) < 0.2))
        rows.append(row | {"seconds_to_fit": round(float(np.median(seconds)), 3), "chosen": chosen})
        print(json.dumps(rows[-1]), flush=True)
    return {
        "landmarks": len(detector.names),
        "points": len(train.truth.names),
        "normaliser": choose_normalizer(test.truth),
        "train_images": len(train.truth),
        "test_images": len(test.truth),
        "all_train_images": round(_measure_error(test, partial(_predict_with_ridge, train.examples)), 3),
        "draws": draws,
        "seed": 0,
        "rows": rows,
        "other_constants": vary_constants(detector, train, test, draws),
        "hardware": describe_hardware(detector.device),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
        },
    }


def describe_hardware(device: torch.device) -> str:
    """Name the hardware: maps are fitted on the CPU; landmarks are predicted on the CPU or on a GPU."""
    processor = f"CPU, {platform.machine()}, {torch.get_num_threads()} threads, shared with other work"
    if device.type != "cuda":
        return processor
    return f"landmarks: {torch.cuda.get_device_name(device)}; maps: {processor}"


def vary_constants(detector: Detector, train: Part, test: Part, draws: int) -> dict[str, dict[str, float]]:
    """Return the errors with each constant of the prior halved and doubled, without model selection.

    Returns:
        For each change, a mapping from numbers of annotated images to mean errors.
    """
    mirror = MirrorPartners(detector.card.mirror, train.truth.mirror, detector.card.images.size)

    def measure_errors() -> dict[str, float]:
        rng = np.random.default_rng(0)
        return {
            str(annotated): _error_without_selection(train, test, mirror, annotated, draws, rng)
            for annotated in (1, 5, 10, 50)
        }

    results = {"unchanged": measure_errors()}
    for name in ("PRIOR_IMAGES", "AFFINE_VARIANCE", "BENDING_STD", "BENDING_RANGE"):
        for factor in (0.5, 2.0):
            with mock.patch.object(point_map, name, factor * getattr(point_map, name)):
                results[f"{name} times {factor:g}"] = measure_errors()
    return results


def _error_without_selection(
    train: Part, test: Part, mirror: MirrorPartners, annotated: int, draws: int, rng: np.random.Generator
) -> float:
    drawn = (rng.choice(len(train.truth), annotated, replace=False) for _ in range(draws))
    maps = (fit_with_options(train.examples.select(rows), mirror, DEFAULT_OPTIONS) for rows in drawn)
    return round(float(np.mean([_measure_error(test, fitted.predict) for fitted in maps])), 3)


def _describe_options(options: FitOptions) -> str:
    frame = "aligned" if options.aligned else "crop"
    return f"{frame}{', mirrored' * options.mirrored}, ridge {options.ridge:g}"


def _exclude_rows(part: Part, rows: IntArray) -> Part:
    """Return the part without the objects in these rows."""
    kept = np.setdiff1d(np.arange(len(part.truth)), rows)
    return Part(part.examples.select(kept), part.lengths[kept], part.truth.select(kept))


def _predict_with_ridge(sample: MappingExamples, landmarks: FloatArray, score: FloatArray) -> FloatArray:
    """Predict points with the ridge regression of `selfmark evaluate`, fitted on the sample."""
    fitter = RegressorFitter.of_one(partial(fit_ridge, ridge=0.01))
    (predicted,) = forward_predictions(sample.landmarks, sample.points, sample.visible, landmarks, fitter)
    return predicted


def _measure_error(part: Part, predict: Callable[[FloatArray, FloatArray], FloatArray]) -> float:
    examples = part.examples
    predicted = predict(examples.landmarks, examples.score)
    errors = point_errors(predicted, examples.points, examples.visible, part.lengths)
    return float(np.nanmean(image_errors(errors)))


def _compute_mean_and_spread(values: list[float]) -> dict[str, float]:
    return {"mean": round(float(np.mean(values)), 3), "spread": round(float(np.std(values)), 3)}


if __name__ == "__main__":
    main()
