"""Measure how much the error drops through corrections, or through a start from a trained detector.

The results are in docs/results/reuse.json.

    python benchmarks/reuse.py DATA --part corrections --out corrections.json --runs runs/
    python benchmarks/reuse.py DATA --part start --out start.json --runs runs/

DATA is an unzipped data set (images/train, train.json); only its training images are used.

`--part corrections` (`selfmark refine`): a detector is trained on all images without labels. The script
assigns each landmark to one annotated point. In a few images, it moves the landmarks to these points, as a
user would do on the page of `selfmark correct`, and refines the detector. The error is the distance of the
landmarks from these points in all other images, in percent of the side of the network image.

`--part start` (`discover --start-from`): a first detector learns from a third of the images. A second
detector learns from another third for a few iterations. It starts from random weights or from those of the
first detector. The error is the forward error on the last third, with regressors fitted on the first two
thirds, in percent of the normalizer.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import describe_processor, read_commit
from scipy.optimize import linear_sum_assignment

from selfmark._version import __version__
from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config
from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.labeled_run import build_examples
from selfmark.evaluation.nme import forward_predictions, mean_shape, nme
from selfmark.evaluation.normalizers import choose_normalizer
from selfmark.evaluation.regression import RegressorFitter, fit_ridge
from selfmark.images.crop import to_network
from selfmark.images.sources import list_images
from selfmark.refinement.refine_run import refine_run
from selfmark.run.files import write_json

CORRECTED = (10, 5, 20)  # numbers of corrected images
ITERATIONS = (30, 10, 100)  # numbers of iterations of the second detector


def main() -> None:
    """Measure corrections or starts, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs, which are kept")
    parser.add_argument("--landmarks", type=int, default=10, help="number of landmarks")
    parser.add_argument(
        "--iterations", type=int, default=100, help="iterations of the first detector (start) or the only one"
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds of the second detector")
    parser.add_argument("--part", choices=("corrections", "start"), required=True)
    arguments = parser.parse_args()
    truth = read_ground_truth(arguments.data / "train.json", list_images([arguments.data / "images/train"]))
    base = {"landmarks": arguments.landmarks, "iterations": arguments.iterations}
    result: dict[str, Any] = {
        "data": arguments.data.name,
        "script": "benchmarks/reuse.py",
        **base,
        "student_rounds": 1,
        "normalizer": choose_normalizer(truth),
        "hardware": f"CPU, {describe_processor()}, {torch.get_num_threads()} threads, shared with other work",
        "versions": {
            "selfmark": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "commit": read_commit(),
    }
    if arguments.part == "corrections":
        rows = measure_corrections(truth, arguments.runs, **base)
    else:
        rows = measure_start(truth, arguments.runs, **base, seeds=arguments.seeds)
    for row in rows:  # Write after every row, so that an interruption loses only one measurement.
        print(row, flush=True)
        result.setdefault(arguments.part, []).append(row)
        write_json(result, arguments.out)


def train(
    truth: AnnotatedObjects, folder: Path, landmarks: int, iterations: int, seed: int = 0, start: str = ""
) -> None:
    """Train a detector without labels, unless the folder already contains a trained detector.

    Args:
        truth: images to train on; their annotations are not used.
        folder: run folder.
        landmarks: number of landmarks.
        iterations: training iterations of the only round.
        seed: random seed.
        start: run folder of a detector to start from; empty: random weights.
    """
    if (folder / "model" / "model.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    settings = {"student.rounds": 1, "student.iterations": iterations, "seed": seed}
    settings["evaluation.num_samples"] = 8  # fast checks at the end: their results are not used here
    images = [str(path) for path in truth.paths]
    discover(images, landmarks, folder, settings=settings, device="cpu", start_from=start)


# --- corrections -------------------------------------------------------------------------------------------


def measure_corrections(
    truth: AnnotatedObjects, runs: Path, landmarks: int, iterations: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of corrected images, with the errors before and after the refinement.

    `left_out` is the error on the corrected images by leave-one-out, as `refine_run` measures it; `other` is
    the error on all images that were not corrected.
    """
    run = runs / "corrections"
    train(truth, run, landmarks, iterations)
    detector = Detector.load(run)
    points = assign_points(detector, truth)
    for count in CORRECTED:
        copy = runs / f"corrections-{count}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        corrected_rows = np.linspace(0, len(truth) - 1, count).round().astype(int)
        labels = write_corrections(truth.select(corrected_rows), points, detector.names, copy / "labels.json")
        started = time.perf_counter()
        result = refine_run(copy, labels, [str(path) for path in truth.paths], "cpu", force=True)
        seconds = time.perf_counter() - started
        others = truth.select(np.setdiff1d(np.arange(len(truth)), corrected_rows))
        before, after = (
            measure_landmark_error(model, others, points) for model in (detector, Detector.load(copy))
        )
        errors = result.errors
        assert errors is not None
        yield {
            "corrected_images": count,
            "left_out_before": round(errors.mean_before, 3),
            "left_out_after": round(errors.mean_after, 3),
            "other_images": len(others),
            "other_before": round(before, 3),
            "other_after": round(after, 3),
            "seconds": round(seconds, 1),
        }


def assign_points(detector: Detector, truth: AnnotatedObjects) -> list[int]:
    """Assign each landmark to an annotated point so that the sum of their mean distances is smallest.

    Returns:
        The index of the annotated point of each landmark. No point occurs twice.
    """
    predicted = detector.predict_network_pixels(truth.refs)
    annotated = to_network(truth.xy, predicted.regions[:, None], detector.card.images.size)
    distance = np.linalg.norm(predicted.xy[:, :, None] - annotated[:, None], axis=-1).mean(axis=0)  # [K, L]
    return [int(point) for point in linear_sum_assignment(distance)[1]]


def write_corrections(truth: AnnotatedObjects, points: list[int], names: tuple[str, ...], path: Path) -> Path:
    """Write the assigned points to a COCO file, under the names of the landmarks."""
    images = [{"id": row, "file_name": str(ref.path.resolve())} for row, ref in enumerate(truth.refs)]
    annotations = [
        {
            "id": row,
            "image_id": row,
            "category_id": 1,
            "keypoints": [value for x, y in truth.xy[row, points].tolist() for value in (x, y, 2)],
        }
        for row in range(len(truth))
    ]
    categories = [{"id": 1, "name": "object", "keypoints": list(names)}]
    write_json({"images": images, "annotations": annotations, "categories": categories}, path)
    return path


def measure_landmark_error(detector: Detector, truth: AnnotatedObjects, points: list[int]) -> float:
    """Return the mean distance of the landmarks from their points, in percent of the network image's side."""
    predicted = detector.predict_network_pixels(truth.refs)
    size = detector.card.images.size
    annotated = to_network(truth.xy[:, points], predicted.regions[:, None], size)
    return float(100 * np.linalg.norm(predicted.xy - annotated, axis=-1).mean() / size)


# --- start -------------------------------------------------------------------------------------------------


def measure_start(
    truth: AnnotatedObjects, runs: Path, landmarks: int, iterations: int, seeds: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of iterations, with the errors for both starts and all seeds."""
    order = np.random.default_rng(0).permutation(len(truth))
    first, second, test = (np.sort(part) for part in np.array_split(order, 3))
    train(truth.select(first), runs / "first", landmarks, iterations)
    for count in ITERATIONS:
        errors: dict[str, list[float]] = {"random": [], "started": []}
        for seed in range(seeds):
            for kind, start in (("random", ""), ("started", str(runs / "first"))):
                folder = runs / f"second-{kind}-{count}-{seed}"
                train(truth.select(second), folder, landmarks, count, seed, start)
                fit = truth.select(np.sort(np.concatenate([first, second])))
                error, mean_shape_error = measure_forward_error(
                    Detector.load(folder), fit, truth.select(test)
                )
                errors[kind].append(error)
        rounded = {kind: [round(error, 3) for error in values] for kind, values in errors.items()}
        yield {"iterations": count, **rounded, "guessing": round(mean_shape_error, 3)}


def measure_forward_error(
    detector: Detector, fit: AnnotatedObjects, test: AnnotatedObjects
) -> tuple[float, float]:
    """Return the errors of regression and of the mean shape on test images, in percent of the normalizer."""
    examples = []
    for part in (fit, test):
        predicted = detector.predict_network_pixels(part.refs)
        xy, spec = predicted.xy.astype(np.float64), choose_normalizer(part)
        examples.append(build_examples(part, xy, predicted.regions, spec, detector.card.images.size))
    fitted, tested = examples
    fitter = RegressorFitter.of_one(partial(fit_ridge, ridge=Config().evaluation.ridge))
    (points,) = forward_predictions(fitted.landmarks, fitted.truth, fitted.visible, tested.landmarks, fitter)
    guessed = np.broadcast_to(mean_shape(fitted.truth, fitted.visible), tested.truth.shape)
    error, guessing = (
        nme(prediction, tested.truth, tested.visible, tested.normalizer) for prediction in (points, guessed)
    )
    return error, guessing


if __name__ == "__main__":
    main()
