"""Train the paper's network on zero-shot landmarks and evaluate it. The network itself uses no features.

    PYTHONPATH=src:benchmarks:benchmarks/quality python benchmarks/features/start_only.py NAME ZERO_SHOT \
        --data-folder DATA --out RUN [--preset fast]

ZERO_SHOT is the --out folder of `default_command.py NAME --method zero-shot`. Stage 2 of the paper learns the
landmarks of that run, from random weights and without the encoder. As in runs with features, training uses
only the most confident predictions of each landmark (`student.confident_fraction`). Errors are measured on
the validation part. The script prints one line of JSON.

Phi is the network that finds and describes keypoints (Stage 1), Psi the network that locates landmarks.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import provenance
import torch
from default_command import compare_with_guessing, select_parts
from quality_data import DATASETS, prepare_working_copy
from single_run import describe_hardware

from selfmark.config import override, preset
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.detector import Detector
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.labeled_run import build_examples
from selfmark.evaluation.normalizers import choose_normalizer
from selfmark.evaluation.protocol import Examples, headline_errors, mean_shape_errors
from selfmark.images.feed import PixelFeed
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.model.card import landmarks_without_partner
from selfmark.model.network import Phi
from selfmark.pipeline import train_psi
from selfmark.pipeline_steps import build_card, seed_weights
from selfmark.run.folder import Run
from selfmark.train.objectives import LandmarkTable


def main() -> None:
    """Train, evaluate and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(DATASETS))
    parser.add_argument("zero_shot", type=Path)
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="Folder for the data and the run.")
    parser.add_argument("--preset", default="tiny")
    arguments = parser.parse_args()
    dataset = DATASETS[arguments.name]
    folder = prepare_working_copy(arguments.name, arguments.data_folder, arguments.out)
    parts = select_parts(dataset, folder.resolve(), "validation")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    started = time.monotonic()
    detector = train_from_zero_shot(
        arguments.zero_shot / "run", arguments.preset, arguments.out / "run", device
    )
    minutes = (time.monotonic() - started) / 60
    train, test = (
        predict_examples(detector, images, labels, dataset.normalizer)
        for images, labels in ((parts.train_images, parts.train_labels), (parts.images, parts.labels))
    )
    settings = preset(arguments.preset).evaluation
    forward = headline_errors(train, test, settings)["forward"]["error"]
    guessing_error = mean_shape_errors(train, test)["forward"]
    row = {
        "data": arguments.name,
        "part": "validation",
        "device": describe_hardware(),
        "k": len(detector.names),
        "features": "at the start only",
        **compare_with_guessing(forward, guessing_error),
        "minutes": round(minutes, 2),
        "preset": arguments.preset,
        "torch": torch.__version__,
        "commit": provenance.read_commit(),
    }
    print(json.dumps(row))


def train_from_zero_shot(zero_shot: Path, preset_name: str, output: Path, device: torch.device) -> Detector:
    """Train the paper's Stage 2 on the landmarks that a zero-shot run finds in its training images."""
    teacher, source = Detector.load(zero_shot, device), Run.open(zero_shot)
    changes = {"K": len(teacher.names), "M": max(preset(preset_name).M, len(teacher.names))}
    if source.config.features.orientation != "upright":
        changes["augment.rotation"] = 180
    config = override(preset(preset_name), changes)
    refs = source.refs()
    Run.create(output, config, [], refs)
    run = Run.open(output)
    store = load_store(refs, config.images, config.runtime.store_gigabytes, None)
    pixels = load_store(refs, teacher.card.images, config.runtime.store_gigabytes, None).pixels
    located = [teacher.locate(part) for part in torch.split(pixels, config.runtime.predict_batch)]
    xy, score = (torch.cat(column) for column in zip(*located, strict=True))
    present = score >= score.quantile(1 - config.student.confident_fraction, dim=0)
    scaled = (xy + 0.5) * (config.images.size / teacher.card.images.size) - 0.5
    unpaired = landmarks_without_partner(teacher.card)
    is_paired = tuple(index not in unpaired for index in range(len(teacher.names)))
    partners = LandmarkPartners(teacher.card.mirror, is_paired)
    table = LandmarkTable.from_partners(scaled, present, partners)
    with seed_weights(config, "Phi"):
        phi = Phi(config.network)
    psi = train_psi(run, phi, PixelFeed(store.pixels, device), table)
    return Detector(psi, build_card(run, partners, len(refs)), device, config.runtime)


def predict_examples(detector: Detector, images: list[str], labels: Path, normalizer: str) -> Examples:
    """Return annotated points and landmarks of labeled images."""
    truth = read_ground_truth(labels, list_images(images))
    store = load_store(truth.refs, detector.card.images, float("inf"), None)
    located = [detector.locate(part).xy for part in torch.split(store.pixels, detector.runtime.predict_batch)]
    xy: npt.NDArray[np.float64] = torch.cat(located).cpu().numpy().astype(np.float64)
    spec = normalizer or choose_normalizer(truth)
    return build_examples(truth, xy, store.regions, spec, detector.card.images.size)


if __name__ == "__main__":
    main()
