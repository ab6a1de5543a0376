r"""Measure prediction on a CPU: images per second of torch and ONNX Runtime, and the accuracy of int8.

    python benchmarks/predict_cpu.py --out docs/results/predict_cpu.json
    python benchmarks/predict_cpu.py --out docs/results/predict_cpu.json \
        --accuracy toy runs/demo/run --train runs/demo/data/train/images runs/demo/data/train/labels.json \
        --test runs/demo/data/test/images runs/demo/data/test/labels.json --visibility 2

The script times `Detector.locate`, from network images to landmarks, without decoding files. The networks
have random weights, and their norm layers are scaled as after training. Each combination of runtime and batch
size is measured several times, in random order. Before each measurement, the script waits until the machine
is idle and makes a warm-up call. It waits at most `--max-wait` seconds in total for each network. The rows
give two speeds:

- images/s on all cores: the fastest of all calls, because other programs can only slow a call down. Trust it
  only if `_others`, the load from other programs, is small: a busy core slows torch down more than ONNX
  Runtime, because the threads of torch wait for each other.
- `_one_core`: images per second of CPU time with one thread, median of all measurements.

For both speeds, `_ratio` compares the runtimes at their best batch sizes. Rows with `_plain` are without
averaging over the mirror image.

With `--accuracy`, the script measures a trained run instead: how far int8 moves the landmarks of the test
images (network pixels), and the forward and backward errors of float32 and int8 (ridge 0.01, percent). The
test images were not used to calibrate int8.
"""

from __future__ import annotations

import os

# `selfmark predict` sets the variable in the same way. torch reads it when it is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import argparse
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import torch
from cpu_rows import SEED, Rows, write_rows
from torch import Tensor, nn

from selfmark.config import Config, preset
from selfmark.demo.scene import generate_scene
from selfmark.detector import Detector
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.nme import mean_error
from selfmark.evaluation.normalizers import choose_normalizer, measure_lengths
from selfmark.evaluation.protocol import Examples, backward_errors, forward_errors
from selfmark.evaluation.regression import fit_ridge
from selfmark.export.onnx_detector import OnnxDetector
from selfmark.export.onnx_export import export_onnx, write_float32, write_int8
from selfmark.images.crop import to_network
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.model.card import ModelCard
from selfmark.model.network import Psi
from selfmark.run.process_tuning import tune_process

# Network pixels, one heatmap cell. A landmark that moved farther is at a different peak of the heatmap.
FAR_PIXELS = 4.0
MAX_OTHER_LOAD = 0.05  # maximum fraction of the machine used by other programs before a measurement
MIN_SECONDS = 0.5  # minimum duration of a measurement
NETWORKS = {"tiny": "tiny", "full": "paper"}  # name in the rows: preset
BATCHES = {"tiny": (1, 16, 64), "full": (1, 4)}
RATIO_UNIT = "x eager torch fp32"


def main() -> None:
    """Measure speed or accuracy and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--repeats", type=int, default=8, help="measurements of each runtime and batch size")
    parser.add_argument(
        "--max-wait", type=float, default=300, help="seconds to wait for an idle machine, per network"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--accuracy", nargs=2, metavar=("NAME", "RUN"), help="measure accuracy instead of speed"
    )
    parser.add_argument("--train", type=Path, nargs=2, metavar=("IMAGES", "LABELS"))
    parser.add_argument("--test", type=Path, nargs=2, metavar=("IMAGES", "LABELS"))
    parser.add_argument(
        "--visibility", type=int, default=1, help="use annotated points with at least this COCO visibility"
    )
    arguments = parser.parse_args()
    tune_process()  # `selfmark predict` does the same.
    torch.set_num_threads(arguments.threads)
    if arguments.accuracy is not None:
        name, run = arguments.accuracy
        rows = measure_accuracy(name, Path(run), arguments.train, arguments.test, arguments.visibility)
    else:
        rows = {}
        for name in arguments.networks:
            config = preset(NETWORKS[name])
            rows |= measure_speed(name, config, BATCHES[name], arguments.repeats, arguments.max_wait)
    write_rounded(rows, arguments.threads, arguments.out)


# --- speed --------------------------------------------------------------------------------------------


def measure_speed(name: str, config: Config, batches: tuple[int, ...], repeats: int, max_wait: float) -> Rows:
    """Measure the images per second of every runtime and batch size, with and without the mirror image."""
    images = torch.from_numpy(generate_scene(max(batches), config.images.size, SEED).images).permute(
        0, 3, 1, 2
    )
    images = images.contiguous()
    threads = torch.get_num_threads()
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for suffix, mirrored in (("", True), ("_plain", False)):
            torch.set_num_threads(1)
            detectors = make_detectors(config, mirrored, images, Path(folder))
            measured = _measure_detectors(detectors, images, batches[:2], repeats, max_wait / 4)
            medians = {
                key: statistics.median(measurement.cpu_rate for measurement in repeated)
                for key, repeated in measured.items()
            }
            rows |= _build_speed_rows(name, f"{suffix}_one_core", medians, "images/s of CPU time")
            torch.set_num_threads(threads)
            detectors = make_detectors(config, mirrored, images, Path(folder))
            measured = _measure_detectors(detectors, images, batches, repeats, max_wait / 4)
            best_rates = {
                key: max(measurement.rate for measurement in repeated) for key, repeated in measured.items()
            }
            rows |= _build_speed_rows(name, suffix, best_rates, "images/s")
            load = statistics.mean(
                measurement.other_load for repeated in measured.values() for measurement in repeated
            )
            rows[f"predict_cpu_{name}_others{suffix}"] = 100 * load, "% of the machine used by other programs"
    return rows


def _build_speed_rows(name: str, suffix: str, rates: dict[tuple[str, int], float], unit: str) -> Rows:
    """Return a row per runtime and batch size, a row per runtime at its best batch size, and the ratios."""
    rows: Rows = {}
    best_rates: dict[str, float] = {}
    for (runtime, batch), rate in rates.items():
        rows[f"predict_cpu_{name}_{runtime}{suffix}_batch{batch}"] = rate, unit
        best_rates[runtime] = max(rate, best_rates.get(runtime, 0.0))
    for runtime, rate in best_rates.items():
        rows[f"predict_cpu_{name}_{runtime}{suffix}"] = rate, unit
    rows[f"predict_cpu_{name}_ratio{suffix}"] = best_rates["onnx"] / best_rates["torch"], RATIO_UNIT
    rows[f"predict_cpu_{name}_int8_ratio{suffix}"] = best_rates["int8"] / best_rates["torch"], RATIO_UNIT
    return rows


def make_detectors(config: Config, mirrored: bool, images: Tensor, folder: Path) -> dict[str, Detector]:
    """Make a detector with random weights for torch, ONNX Runtime in float32, and ONNX Runtime in int8."""
    eager = make_random_detector(config, mirrored)
    return {
        "torch": eager,
        "onnx": OnnxDetector(eager, write_float32(eager, folder / "model.onnx")),
        "int8": OnnxDetector(eager, write_int8(eager, images[:2], folder / "model-int8.onnx")),
    }


def make_random_detector(config: Config, mirrored: bool) -> Detector:
    """Make a detector with random weights. The scales of its norm layers are like those after training."""
    torch.manual_seed(SEED)
    psi = Psi(config.network, config.K)
    for module in psi.modules():
        if isinstance(module, nn.GroupNorm):
            nn.init.uniform_(module.weight, 0.7, 1.1)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    names = tuple(f"landmark_{index}" for index in range(config.K))
    mirror, refine = tuple(range(config.K)), config.stage2.refine
    return Detector(psi, ModelCard(names, mirror, (), config.images, config.network, refine, mirrored, {}))


class SpeedMeasurement(NamedTuple):
    """Speed of one detector at one batch size.

    Attributes:
        rate: Images per second in the fastest call.
        cpu_rate: Images per second of CPU time.
        other_load: Fraction of the machine that other programs used.
    """

    rate: float
    cpu_rate: float
    other_load: float


def _measure_detectors(
    detectors: dict[str, Detector], images: Tensor, batches: tuple[int, ...], repeats: int, max_wait: float
) -> dict[tuple[str, int], list[SpeedMeasurement]]:
    """Measure each detector several times at each batch size, in random order."""
    candidates = [(name, batch) for name in detectors for batch in batches]
    measured: dict[tuple[str, int], list[SpeedMeasurement]] = {key: [] for key in candidates}
    order = random.Random(SEED)
    deadline = time.monotonic() + max_wait
    for _ in range(repeats):
        for name, batch in order.sample(candidates, len(candidates)):
            _wait_until_idle(deadline)
            measured[name, batch].append(_measure_detector(detectors[name], images[:batch]))
    return measured


def _wait_until_idle(deadline: float) -> None:
    """Wait until other programs are idle or the deadline has passed."""
    while time.monotonic() < deadline:
        before = _read_busy_seconds()
        time.sleep(MIN_SECONDS)
        if _read_busy_seconds() - before < MAX_OTHER_LOAD * MIN_SECONDS * (os.cpu_count() or 1):
            return


def _measure_detector(detector: Detector, images: Tensor) -> SpeedMeasurement:
    detector.locate(images)
    started, cpu_before, busy_before = time.perf_counter(), time.process_time(), _read_busy_seconds()
    durations: list[float] = []
    while sum(durations) < MIN_SECONDS:
        call_started = time.perf_counter()
        detector.locate(images)
        durations.append(time.perf_counter() - call_started)
    elapsed, used = time.perf_counter() - started, time.process_time() - cpu_before
    other_load = (_read_busy_seconds() - busy_before - used) / elapsed / (os.cpu_count() or 1)
    return SpeedMeasurement(
        len(images) / min(durations), len(images) * len(durations) / used, max(0.0, other_load)
    )


def _read_busy_seconds() -> float:
    """Return the seconds that all cores together have been busy since boot (Linux only)."""
    ticks = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    _, _, _, idle, waiting, *_ = ticks
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


# --- accuracy -----------------------------------------------------------------------------------------


def measure_accuracy(name: str, run: Path, train: list[Path], test: list[Path], visibility: int) -> Rows:
    """Compare int8 with float32 for a trained run on labeled images."""
    eager = Detector.load(run)
    with tempfile.TemporaryDirectory() as folder:
        float32, int8 = (
            OnnxDetector(eager, path) for path in export_onnx(run, ("float32", "int8"), Path(folder))
        )
    rows: Rows = {}
    landmarks = {}
    for precision, detector in (("float32", float32), ("int8", int8)):
        train_examples, test_examples = (
            _predict_examples(detector, images, labels, visibility) for images, labels in (train, test)
        )
        landmarks[precision] = test_examples.landmarks
        ridge = partial(fit_ridge, ridge=0.01)
        for direction, errors in (("forward", forward_errors), ("backward", backward_errors)):
            rows[f"predict_cpu_{name}_{precision}_{direction}"] = (
                mean_error(errors(train_examples, test_examples, ridge)),
                "% of the normalizer",
            )
    distance = np.linalg.norm(landmarks["int8"] - landmarks["float32"], axis=-1)
    rows |= {
        f"predict_cpu_{name}_int8_moved_mean": (float(distance.mean()), "px"),
        f"predict_cpu_{name}_int8_moved_median": (float(np.median(distance)), "px"),
        f"predict_cpu_{name}_int8_moved_95": (float(np.percentile(distance, 95)), "px"),
        f"predict_cpu_{name}_int8_moved_far": (
            100 * float((distance > FAR_PIXELS).mean()),
            f"% by more than {FAR_PIXELS:g} px",
        ),
    }
    return rows


def _predict_examples(detector: Detector, images: Path, labels: Path, visibility: int) -> Examples:
    truth = read_ground_truth(labels, list_images([images]), visibility)
    card = detector.card
    store = load_store(truth.refs, card.images, np.inf, None)
    if len(store) != len(truth):
        raise SystemExit(f"cannot read {len(truth) - len(store)} images of {labels}")
    located = detector.locate(store.pixels)
    size = card.images.size
    return Examples(
        located.xy.double().numpy(),
        to_network(truth.xy, store.regions[:, None], size),
        truth.visible,
        measure_lengths(truth, choose_normalizer(truth), store.regions) * (size / store.regions[:, 2]),
    )


# --- output -------------------------------------------------------------------------------------------


def write_rounded(rows: Rows, threads: int, path: Path) -> None:
    """Round rows, print them and add them to a file."""
    rounded = {name: (round(value, 3), unit) for name, (value, unit) in rows.items()}
    versions = {"onnxruntime": onnxruntime.__version__}
    write_rows(rounded, path, "predict_cpu.py", f"{threads} cores", versions)


if __name__ == "__main__":
    main()
