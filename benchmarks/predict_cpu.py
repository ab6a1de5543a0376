r"""Measure prediction on a CPU: images per second of torch and ONNX Runtime, and the accuracy of int8.

    python benchmarks/predict_cpu.py --out docs/results/predict_cpu.json
    python benchmarks/predict_cpu.py --out docs/results/predict_cpu.json --loss toy runs/demo/run \
        --train runs/demo/data/train/images runs/demo/data/train/labels.json \
        --test runs/demo/data/test/images runs/demo/data/test/labels.json --visibility 2

Speed is that of `locate`, from network images to landmarks, without decoding of files. The networks have
random weights, and norms scaled as after training. The candidates take turns in random order. Each turn
starts with a call that does not count, and waits a limited time while the machine is busy. There are two
kinds of rows, each with ratios that compare the runtimes at their best batch:

- images/s on all cores: the fastest of all calls, because other work can only slow a call down. Trust it only
  if `_others` is small: a busy core slows torch down more, because its threads wait for each other.
- `_one_core`: images per second of CPU time with one thread, median of all turns.

`--loss` adds rows for a trained run: how far int8 moves the landmarks of the test images (network pixels),
and the forward and backward errors of both precisions (ridge 0.01, percent). The test images were not used to
find the int8 ranges.
"""

from __future__ import annotations

import os

import provenance

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as in `selfmark predict`; read when torch is imported

import argparse
import json
import platform
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
from torch import Tensor, nn

from selfmark.config import Config, preset
from selfmark.demo.scene import generate_scene
from selfmark.detector import Detector
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.nme import mean_error
from selfmark.evaluation.normalizers import default_normalizer, normalizer_lengths
from selfmark.evaluation.protocol import Examples, backward_errors, forward_errors
from selfmark.evaluation.regression import fit_ridge
from selfmark.export.onnx_detector import OnnxDetector
from selfmark.export.onnx_export import export_onnx, write_float32, write_int8
from selfmark.images.crop import to_network
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.model.card import ModelCard
from selfmark.model.network import Psi
from selfmark.run.files import write_json

SEED = 0
FAR = 4.0  # network pixels, one cell; a larger distance means that another peak is the highest
QUIET = 0.05  # maximum fraction of the machine that other programs may use when a turn starts
TURN = 0.5  # minimum duration of a turn, seconds
NETWORKS = {"tiny": "tiny", "full": "paper"}  # preset of each network
BATCHES = {"tiny": (1, 16, 64), "full": (1, 4)}
RATIO = "x eager torch fp32"
Rows = dict[str, tuple[float, str]]


def main() -> None:
    """Measure speed or accuracy and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--turns", type=int, default=8, help="turns of each candidate")
    parser.add_argument(
        "--patience", type=float, default=300, help="seconds to wait for a quiet machine, per network"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--loss", nargs=2, metavar=("NAME", "RUN"), help="measure accuracy instead of speed")
    parser.add_argument("--train", type=Path, nargs=2, metavar=("IMAGES", "LABELS"))
    parser.add_argument("--test", type=Path, nargs=2, metavar=("IMAGES", "LABELS"))
    parser.add_argument("--visibility", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.loss is not None:
        name, run = arguments.loss
        rows = measure_accuracy(name, Path(run), arguments.train, arguments.test, arguments.visibility)
    else:
        rows = {}
        for name in arguments.networks:
            config = preset(NETWORKS[name])
            rows |= measure_speed(name, config, BATCHES[name], arguments.turns, arguments.patience)
    write_rows(rows, arguments.threads, arguments.out)


# --- speed --------------------------------------------------------------------------------------------


def measure_speed(name: str, config: Config, batches: tuple[int, ...], turns: int, patience: float) -> Rows:
    """Measure the images per second of every runtime and batch, with and without the mirror image."""
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
            taken = _race(detectors, images, batches[:2], turns, patience / 4)
            used = {one: statistics.median(turn.per_core for turn in taken[one]) for one in taken}
            rows |= _rows(name, f"{suffix}_one_core", used, "images/s of CPU time")
            torch.set_num_threads(threads)
            detectors = make_detectors(config, mirrored, images, Path(folder))
            taken = _race(detectors, images, batches, turns, patience / 4)
            fastest = {one: max(turn.rate for turn in taken[one]) for one in taken}
            rows |= _rows(name, suffix, fastest, "images/s")
            others = statistics.mean(turn.others for several in taken.values() for turn in several)
            rows[f"predict_cpu_{name}_others{suffix}"] = 100 * others, "% of the machine used by others"
    return rows


def _rows(name: str, suffix: str, rates: dict[tuple[str, int], float], unit: str) -> Rows:
    """Return rows for each runtime at each batch and at its best batch, and their ratios."""
    rows: Rows = {}
    best: dict[str, float] = {}
    for (runtime, batch), rate in rates.items():
        rows[f"predict_cpu_{name}_{runtime}{suffix}_batch{batch}"] = rate, unit
        best[runtime] = max(rate, best.get(runtime, 0.0))
    for runtime, rate in best.items():
        rows[f"predict_cpu_{name}_{runtime}{suffix}"] = rate, unit
    rows[f"predict_cpu_{name}_ratio{suffix}"] = best["onnx"] / best["torch"], RATIO
    rows[f"predict_cpu_{name}_int8_ratio{suffix}"] = best["int8"] / best["torch"], RATIO
    return rows


def make_detectors(config: Config, mirrored: bool, images: Tensor, folder: Path) -> dict[str, Detector]:
    """Create the same detector with random weights for torch, ONNX Runtime, and int8."""
    eager = random_detector(config, mirrored)
    return {
        "torch": eager,
        "onnx": OnnxDetector(eager, write_float32(eager, folder / "model.onnx")),
        "int8": OnnxDetector(eager, write_int8(eager, images[:2], folder / "model-int8.onnx")),
    }


def random_detector(config: Config, mirrored: bool) -> Detector:
    """Return a detector with random weights, its norms scaled as training leaves them."""
    torch.manual_seed(SEED)
    psi = Psi(config.network, config.K)
    for module in psi.modules():
        if isinstance(module, nn.GroupNorm):
            nn.init.uniform_(module.weight, 0.7, 1.1)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    names = tuple(f"landmark_{index}" for index in range(config.K))
    mirror, refine = tuple(range(config.K)), config.stage2.refine
    return Detector(psi, ModelCard(names, mirror, (), config.images, config.network, refine, mirrored, {}))


class Turn(NamedTuple):
    """Images per second in the fastest call and per second of CPU time; the fraction that others used."""

    rate: float
    per_core: float
    others: float


def _race(
    detectors: dict[str, Detector], images: Tensor, batches: tuple[int, ...], turns: int, patience: float
) -> dict[tuple[str, int], list[Turn]]:
    """Return the turns of each detector at each batch."""
    candidates = [(name, batch) for name in detectors for batch in batches]
    taken: dict[tuple[str, int], list[Turn]] = {one: [] for one in candidates}
    order = random.Random(SEED)
    end = time.monotonic() + patience
    for _ in range(turns):
        for name, batch in order.sample(candidates, len(candidates)):
            _wait_for_quiet(end)
            taken[name, batch].append(_turn(detectors[name], images[:batch]))
    return taken


def _wait_for_quiet(end: float) -> None:
    """Wait while other programs are busy, but not beyond `end`."""
    while time.monotonic() < end:
        before = _busy()
        time.sleep(TURN)
        if _busy() - before < QUIET * TURN * (os.cpu_count() or 1):
            return


def _turn(detector: Detector, images: Tensor) -> Turn:
    detector.locate(images)
    started, own, everyone = time.perf_counter(), time.process_time(), _busy()
    durations: list[float] = []
    while sum(durations) < TURN:
        call_started = time.perf_counter()
        detector.locate(images)
        durations.append(time.perf_counter() - call_started)
    elapsed, used = time.perf_counter() - started, time.process_time() - own
    others = (_busy() - everyone - used) / elapsed / (os.cpu_count() or 1)
    return Turn(len(images) / min(durations), len(images) * len(durations) / used, max(0.0, others))


def _busy() -> float:
    """Return the busy seconds of all cores so far (Linux only)."""
    ticks = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    _, _, _, idle, waiting, *_ = ticks
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


# --- accuracy -----------------------------------------------------------------------------------------


def measure_accuracy(name: str, run: Path, train: list[Path], test: list[Path], visibility: int) -> Rows:
    """Compare int8 with float32 for a trained run on labeled images."""
    eager = Detector.load(run)
    with tempfile.TemporaryDirectory() as folder:
        exact, small = (
            OnnxDetector(eager, path) for path in export_onnx(run, ("float32", "int8"), Path(folder))
        )
    rows: Rows = {}
    found = {}
    for precision, detector in (("float32", exact), ("int8", small)):
        fit, judged = (_examples(detector, images, labels, visibility) for images, labels in (train, test))
        found[precision] = judged.landmarks
        ridge = partial(fit_ridge, ridge=0.01)
        for direction, errors in (("forward", forward_errors), ("backward", backward_errors)):
            rows[f"predict_cpu_{name}_{precision}_{direction}"] = (
                mean_error(errors(fit, judged, ridge)),
                "% of the normalizer",
            )
    away = np.linalg.norm(found["int8"] - found["float32"], axis=-1)
    rows |= {
        f"predict_cpu_{name}_int8_moved_mean": (float(away.mean()), "px"),
        f"predict_cpu_{name}_int8_moved_median": (float(np.median(away)), "px"),
        f"predict_cpu_{name}_int8_moved_95": (float(np.percentile(away, 95)), "px"),
        f"predict_cpu_{name}_int8_moved_far": (
            100 * float((away > FAR).mean()),
            f"% by more than {FAR:g} px",
        ),
    }
    return rows


def _examples(detector: Detector, images: Path, labels: Path, visibility: int) -> Examples:
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
        normalizer_lengths(truth, default_normalizer(truth), store.regions) * (size / store.regions[:, 2]),
    )


# --- output -------------------------------------------------------------------------------------------


def write_rows(rows: Rows, threads: int, path: Path) -> None:
    """Print rows and write them to a file, replacing rows of the same name and keeping the others."""
    for name, (value, unit) in rows.items():
        print(f"{name:52s} {value:10.3f} {unit}", flush=True)
    before = json.loads(path.read_text()) if path.exists() else {"rows": []}
    merged = {row["name"]: row for row in before["rows"]}
    for name, (value, unit) in rows.items():
        merged[name] = {"name": name, "value": round(value, 3), "unit": unit}
    content = {
        "script": "benchmarks/predict_cpu.py",
        "hardware": f"{threads} cores, {named_processor()}",
        "versions": {
            "torch": torch.__version__,
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "commit": provenance.commit(),
        "seed": SEED,
        "rows": list(merged.values()),
        **({"note": before["note"]} if "note" in before else {}),
    }
    write_json(content, path)


def named_processor() -> str:
    """Return the name of the processor and whether it has VNNI (8-bit multiplication)."""
    facts = provenance.processor_facts()
    name = facts.get("model name", platform.processor())
    return f"{name}, {'with' if 'vnni' in facts.get('flags', '') else 'without'} VNNI"


if __name__ == "__main__":
    main()
