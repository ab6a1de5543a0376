"""Make runs of very different quality, and record their true errors and their checks, which use no labels.

    PYTHONPATH=src:benchmarks:benchmarks/quality:benchmarks/features \
        python benchmarks/trust/calibration_runs.py DATA WORK OUT NAME:VARIANT [NAME:VARIANT ...]

DATA contains the data sets (NAME.zip or NAME/). WORK gets the unzipped data and the run folders. OUT gets two
files for each run: its checks and errors as JSON, and an .npz file with its landmarks. If a second run
verified it, the .npz file also has the landmarks of the second run. `trust_model.py` fits trust and verdict
to the JSON files. NAME is a key of `NUM_LANDMARKS`, VARIANT a key of `build_variants`.

Each run trains on four fifths of the training images and is evaluated on the other fifth, as in
`default_command.py`. Test images are never read. Runs on `demo` train on generated images and are evaluated
on other generated images. Each run is verified by a second run, except with `--no-verify`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from default_command import Parts, select_parts
from quality_data import DATASETS, Dataset, prepare_working_copy

import selfmark
from selfmark import verification
from selfmark.cli.options import parse_settings
from selfmark.config import Evaluation, to_dict
from selfmark.demo.scene import generate_scene, write_scene
from selfmark.detector import Detector
from selfmark.errors import InputError, TrainingError
from selfmark.evaluation.curves import errors_by_point
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.labeled_run import build_examples
from selfmark.evaluation.nme import mean_error
from selfmark.evaluation.normalizers import choose_normalizer
from selfmark.evaluation.protocol import Examples, backward_errors, forward_errors, mean_shape_errors
from selfmark.evaluation.regression import fit_ridge
from selfmark.feature_discovery import feature_pipeline
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.run.files import read_json, write_json
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced

MAX_TRAINING_IMAGES = 400
MAX_LABELED_IMAGES = 300
MAX_CHECKED_IMAGES = 200
NUM_LANDMARKS = {
    "birds-cub": 20,
    "demo": 12,
    "faces-mtfl-aflw": 10,
    "faces-yt68": 20,
    "flies-dpk": 16,
    "flies-pair-video": 10,
    "mirror-mouse": 12,
    "mouse-openfield": 10,
}
MIRROR_MOUSE = Dataset(("images/train",), ("images",))  # not one of the data sets of benchmarks/quality
TURNED = {"flies-dpk", "flies-pair-video", "mouse-openfield"}  # data sets whose objects face any direction
OTHER_METHODS = ("mallis2020", "zhang2018", "jakab2018", "autolink")
SHORT = {"warmup.iterations": 20, "rounds.count": 1, "rounds.iterations": 10, "stage2.iterations": 20}


@dataclass(frozen=True)
class Variant:
    """A way to make a good or a bad run.

    Attributes:
        settings: settings that differ from the preset.
        features: name of the pretrained features, or "none".
        method: method of discovery; None: the default.
        preset: name of the preset.
        landmark_factor: number of landmarks, relative to `NUM_LANDMARKS`.
        max_images: maximum number of training images.
        is_mixed: whether to add the same number of images of another kind of object.
        shuffles_labels: whether to shuffle the found landmarks among the images before training.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    features: str = "efficientnet-lite0"
    method: Any = None
    preset: str = "tiny"
    landmark_factor: float = 1.0
    max_images: int = MAX_TRAINING_IMAGES
    is_mixed: bool = False
    shuffles_labels: bool = False


def build_variants(name: str) -> dict[str, Variant]:
    """Return a mapping from names to the variants of a data set."""
    wrong_orientation = "upright" if name in TURNED else "any"
    return {
        "default": Variant(),
        "zero-shot": Variant(method="zero-shot"),
        "no-features": Variant(features="none"),
        "wrong-orientation": Variant({"features.orientation": wrong_orientation}),
        "many-landmarks": Variant(landmark_factor=3.0),
        "few-images": Variant(max_images=20),
        "short": Variant(SHORT, features="none"),
        "random-points": Variant({"keypoints.random_fraction": 1.0}, features="none"),
        "shuffled-labels": Variant({"features.labels": "cells"}, shuffles_labels=True),
        "mixed": Variant(is_mixed=True),
        "full": Variant(preset="fast"),
        **{method: Variant(features="none", method=method) for method in OTHER_METHODS},
    }


def main() -> None:
    """Make the runs that are named on the command line, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", metavar="NAME:VARIANT")
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of all runs"
    )
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    common_settings = {"verification.enabled": not arguments.no_verify, **parse_settings(arguments.set)}
    for argument in arguments.runs:
        name, _, variant_name = argument.partition(":")
        started = time.monotonic()
        tag = f"{name}--{variant_name}"
        try:
            result = make_run(name, variant_name, arguments.data, arguments.work, out, common_settings)
        except (InputError, TrainingError) as error:
            result = {"error": str(error)}
        seconds = round(time.monotonic() - started, 1)
        write_json({"data": name, "variant": variant_name, "seconds": seconds, **result}, out / f"{tag}.json")
        print(tag, seconds, result.get("forward_share", result.get("error")), flush=True)


def make_run(
    name: str, variant_name: str, data: Path, work: Path, out: Path, common_settings: dict[str, Any]
) -> dict[str, Any]:
    """Make one run and return its checks and its true errors.

    Args:
        name: name of the data set.
        variant_name: name of the variant.
        data: folder of the data sets.
        work: folder for the unzipped data and the run folders.
        out: folder for the recorded landmarks.
        common_settings: settings that the variant does not override.
    """
    variant = build_variants(name)[variant_name]
    parts = find_parts(name, data, work)
    inputs = limit_inputs(parts.inputs, variant.max_images)
    if variant.is_mixed:
        inputs += limit_inputs(
            find_parts(_choose_other_kind(name), data, work).inputs, len(list_images(inputs))
        )
    folder = work / "runs" / f"{name}--{variant_name}"
    settings = common_settings | variant.settings
    with _shuffle_labels(variant.shuffles_labels), _keep_second_detectors() as second_detectors:
        detector = selfmark.discover(
            inputs,
            landmarks=round(variant.landmark_factor * NUM_LANDMARKS[name]),
            output=folder,
            preset=variant.preset,
            settings=settings,
            features=variant.features,
            method=variant.method,
        )
    run = Run.open(folder)
    refs = run.refs()
    checked_refs = [refs[row] for row in evenly_spaced(len(refs), MAX_CHECKED_IMAGES)]
    located = detector.predict_network_pixels(checked_refs)
    recorded = {
        "xy": located.xy.astype(np.float32),
        "score": located.score.astype(np.float32),
        "regions": located.regions,
        "names": np.array([f"{ref.name}|{json.dumps(ref.box)}" for ref in checked_refs]),
    }
    for second in second_detectors:
        recorded["second_xy"] = second.predict_network_pixels(checked_refs).xy.astype(np.float32)
    np.savez_compressed(out / f"{name}--{variant_name}.npz", **recorded)
    kinds = [parts]
    if variant.is_mixed:
        kinds.append(find_parts(_choose_other_kind(name), data, work))
    return measure_all_kinds(detector, kinds) | {
        "images": len(refs),
        "config": to_dict(run.config),
        "checks": read_json(folder / "metrics.json")["unlabelled"],
        "verification": read_json(run.verification_path) if run.verification_path.exists() else None,
        "mirror": list(detector.card.mirror),
        "seconds_by_step": _measure_steps(run),
    }


def _measure_steps(run: Run) -> dict[str, float]:
    """Return how long the run and its verification took, in seconds."""
    times = {event["event"]: event["time"] for event in run.events()}
    start = min(event["time"] for event in run.events())
    trained = times.get("verification", times["done"])
    return {"training": round(trained - start, 1), "verification": round(times["done"] - trained, 1)}


def find_parts(name: str, data: Path, work: Path) -> Parts:
    """Return the images and labels of a data set. Those of the demo are generated."""
    if name == "demo":
        folder = work / "data" / "demo"
        for part, count, seed in (("train", MAX_TRAINING_IMAGES, 1), ("held-out", 100, 3)):
            if not (folder / part).exists():
                write_scene(generate_scene(count, 96, seed), folder / part)
        train, held_out = (str(folder / part / "images") for part in ("train", "held-out"))
        labels = [folder / part / "labels.json" for part in ("train", "held-out")]
        return Parts([train], [train], labels[0], [held_out], labels[1])
    dataset = MIRROR_MOUSE if name == "mirror-mouse" else DATASETS[name]
    DATASETS.setdefault(name, dataset)
    return select_parts(dataset, prepare_working_copy(name, data, work).resolve(), "validation")


def _choose_other_kind(name: str) -> str:
    """Return the data set whose images are added to those of data set `name` in a mixed run."""
    return "faces-yt68" if name != "faces-yt68" else "flies-dpk"


def measure_all_kinds(detector: Detector, kinds: list[Parts]) -> dict[str, Any]:
    """Return the true errors, averaged over the kinds of objects that a run learned from."""
    measured = [measure_truth(detector, parts) for parts in kinds]
    return {key: np.mean([truth[key] for truth in measured], axis=0).tolist() for key in measured[0]}


def measure_truth(detector: Detector, parts: Parts) -> dict[str, Any]:
    """Return the true errors of a run and of each of its landmarks.

    Names with `share` are errors divided by those of guessing. Other errors are in percent of the normalizer.
    """
    train, test = (
        _read_examples(detector, images, labels)
        for images, labels in ((parts.train_images, parts.train_labels), (parts.images, parts.labels))
    )
    fit = partial(fit_ridge, ridge=Evaluation().ridge)
    guessing = mean_shape_errors(train, test)
    backward = errors_by_point(backward_errors(train, test, fit))
    offset = np.linalg.norm(test.landmarks - train.landmarks.mean(axis=0), axis=2)
    guessed = (100 * offset / test.normalizer[:, None]).mean(axis=0)
    forward = mean_error(forward_errors(train, test, fit))
    return {
        "forward": forward,
        "guessing_forward": guessing["forward"],
        "forward_share": forward / guessing["forward"],
        "backward_share": float(backward.mean()) / guessing["backward"],
        "backward": backward.tolist(),
        "landmark_shares": (backward / np.maximum(guessed, 1e-9)).tolist(),
    }


def _read_examples(detector: Detector, images: list[str], labels: Path) -> Examples:
    truth = read_ground_truth(labels, list_images(images))
    rows = evenly_spaced(len(truth), MAX_LABELED_IMAGES)
    truth = truth.select(rows)
    located = detector.predict_network_pixels(truth.refs)
    spec = choose_normalizer(truth)
    return build_examples(truth, located.xy, located.regions, spec, detector.card.images.size)


def limit_inputs(inputs: list[str], max_images: int) -> list[str]:
    """Return inputs with at most about `max_images` images.

    Image files are selected. COCO files with boxes are replaced by shorter copies in the same folder.
    """
    refs: list[ImageRef] = list_images(inputs)
    if len(refs) <= max_images:
        return list(inputs)
    chosen = [refs[row] for row in evenly_spaced(len(refs), max_images)]
    if all(ref.box is None for ref in chosen):
        return [str(ref.path) for ref in chosen]
    shortened = []
    for file in inputs:
        content = read_json(Path(file))
        images = content["images"]
        count = max(1, max_images * len(images) // len(refs))
        kept = [images[row] for row in evenly_spaced(len(images), count)]
        ids = {image["id"] for image in kept}
        entries = [entry for entry in content["annotations"] if entry["image_id"] in ids]
        target = Path(file).with_name(f"{Path(file).stem}-{max_images}.json")
        write_json({**content, "images": kept, "annotations": entries}, target)
        shortened.append(str(target))
    return shortened


@contextmanager
def _keep_second_detectors() -> Iterator[list[Detector]]:
    """Within the context, keep the detectors of second runs; `selfmark.discover` deletes their folders."""
    locate_both = verification._locate_both
    detectors: list[Detector] = []

    def locate_and_keep(run: Run, detector: Detector, other: Detector, store: Any) -> Any:
        detectors.append(other)
        return locate_both(run, detector, other, store)

    verification._locate_both = locate_and_keep
    try:
        yield detectors
    finally:
        verification._locate_both = locate_both


@contextmanager
def _shuffle_labels(is_on: bool) -> Iterator[None]:
    """Within the context, shuffle the found landmarks among the images if `is_on`."""
    build = feature_pipeline._build_table

    def build_shuffled(landmarks: Any, config: Any) -> Any:
        order = torch.randperm(len(landmarks.xy), generator=torch.Generator().manual_seed(0))
        shuffled = type(landmarks)(*(column[order.to(column.device)] for column in landmarks))
        return build(shuffled, config)

    feature_pipeline._build_table = build_shuffled if is_on else build
    try:
        yield
    finally:
        feature_pipeline._build_table = build


if __name__ == "__main__":
    main()
