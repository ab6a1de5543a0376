"""Compare float32 and bf16 for detectors with features on a CPU: time, and positions of the landmarks.

    PYTHONPATH=src:benchmarks python benchmarks/features/cpu_precision.py RUN IMAGES --out precision.json

RUN is a finished run with features. Its detector finds the landmarks of IMAGES in both precisions. Then a
detector of the preset `tiny` is trained for a few steps on random images. The precisions take turns, so that
other work on the machine affects both alike. Times are CPU seconds on one core, medians over the turns.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import provenance
import torch
from torch.nn import functional as F

import selfmark
from selfmark.config import DEFAULT_FEATURES, Runtime, preset, with_features
from selfmark.detector import Detector
from selfmark.features.loading import load_encoder
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.model.feature_network import FeaturePsi
from selfmark.model.landmark_network import prepare_landmark_network
from selfmark.run.files import write_json

PRECISIONS: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
TURNS = 5
CPU = torch.device("cpu")


def main() -> None:
    """Measure both precisions and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run folder of a detector with features")
    parser.add_argument("images", nargs="+", help="images whose landmarks are compared")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        "script": "benchmarks/features/cpu_precision.py",
        "hardware": f"1 of {provenance.describe_processor()}",
        "torch": torch.__version__,
        "commit": provenance.read_commit(),
        **compare_predictions(arguments.run, arguments.images),
        **compare_training_steps(),
    }
    print(results)
    if arguments.out:
        write_json(results, arguments.out)


def compare_predictions(run: str, images: list[str]) -> dict[str, float]:
    """Return CPU milliseconds per image, and by how many network pixels bf16 moves the landmarks."""
    loaded = selfmark.load(run, device="cpu")
    pixels = load_store(list_images(images), loaded.card.images, 1.0, None).pixels
    # Both detectors share one network, so each must be created anew before it is used.
    positions: dict[str, torch.Tensor] = {}

    def locate(precision: Literal["fp32", "bf16"]) -> None:
        detector = Detector(loaded.psi, loaded.card, CPU, Runtime(precision=precision))
        positions[precision] = detector.locate(pixels).xy

    seconds = _take_turns(locate)
    shift = (positions["bf16"] - positions["fp32"]).norm(dim=-1)
    return {
        **{f"predict_{name}_ms": round(1000 * seconds[name] / len(pixels), 2) for name in PRECISIONS},
        "shift_median_px": round(float(shift.median()), 4),
        "shift_95_percent_px": round(float(shift.quantile(0.95)), 4),
    }


def compare_training_steps() -> dict[str, float]:
    """Return the CPU seconds of a training step of the head: forward and backward passes of one batch."""
    student = with_features(preset("tiny"), DEFAULT_FEATURES).student
    torch.manual_seed(0)
    psi = FeaturePsi(load_encoder(DEFAULT_FEATURES, CPU), student, landmarks=30).train()
    psi.encoder.requires_grad_(False)
    images, target = torch.rand(student.batch, 3, 256, 256), torch.rand(student.batch, 30, 64, 64)

    def step(precision: Literal["fp32", "bf16"]) -> None:
        prepare_landmark_network(psi, CPU, Runtime(precision=precision))
        F.mse_loss(psi(images), target).backward()

    seconds = _take_turns(step)
    return {f"step_{name}_s": round(seconds[name], 4) for name in PRECISIONS}


def _take_turns(compute: Callable[[Literal["fp32", "bf16"]], None]) -> dict[str, float]:
    """Return the median CPU seconds of `compute` for each precision; the first turn is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in PRECISIONS}
    for _ in range(TURNS + 1):
        for name in PRECISIONS:
            start = time.process_time()
            compute(name)
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
