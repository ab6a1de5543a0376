"""Prediction on a CPU: images per second of torch and ONNX Runtime, and what int8 costs in accuracy.

    python benchmarks/predict_cpu.py --out docs/results/predict_cpu.json
    python benchmarks/predict_cpu.py --out docs/results/predict_cpu.json --loss toy runs/demo/run \\
        --train runs/demo/data/train/images runs/demo/data/train/labels.json \\
        --test runs/demo/data/test/images runs/demo/data/test/labels.json --visibility 2

Speed is that of `locate`: network images to landmarks, decoding of files apart. Networks have random weights,
and norms scaled as training leaves them. Contestants take turns in random order, each turn after a call that
does not count; while others are at work on the machine a turn waits, for a while. Two kinds of rows, each
with ratios that compare the runtimes at their best batch:

- images/s on all cores: the fastest of all calls, because other work only ever slows a call down. Believe it
  only where `_others` is small: a busy core slows torch, whose threads wait for each other, more.
- `_one_core`: images per second of processor time with one thread, median of all turns.

`--loss` adds rows for a trained run: how far int8 moves landmarks of the test images (network pixels), none
of which were used to find its ranges, and the forward and backward errors of both (ridge 0.01, percent).
"""

from __future__ import annotations

import os

import provenance

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as `selfmark predict` does; read when torch is imported

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
FAR = 4.0  # pixels of the network, one cell; farther means that another place is the highest
QUIET = 0.05  # share of the machine that other programs may take for a turn to begin
TURN = 0.5  # seconds a turn takes at least
NETWORKS = {"tiny": "tiny", "full": "paper"}  # the preset each is taken from
BATCHES = {"tiny": (1, 16, 64), "full": (1, 4)}
RATIO = "x eager torch fp32"
Rows = dict[str, tuple[float, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--turns", type=int, default=8, help="turns of each contestant")
    parser.add_argument("--patience", type=float, default=300, help="seconds to wait for others, per network")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--loss", nargs=2, metavar=("NAME", "RUN"), help="accuracy instead of speed")
    parser.add_argument("--train", type=Path, nargs=2, metavar=("IMAGES", "LABELS"))
    parser.add_argument("--test", type=Path, nargs=2, metavar=("IMAGES", "LABELS"))
    parser.add_argument("--visibility", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.loss is not None:
        name, run = arguments.loss
        rows = losses(name, Path(run), arguments.train, arguments.test, arguments.visibility)
    else:
        rows = {}
        for name in arguments.networks:
            config = preset(NETWORKS[name])
            rows |= speeds(name, config, BATCHES[name], arguments.turns, arguments.patience)
    write_rows(rows, arguments.threads, arguments.out)


# --- speed --------------------------------------------------------------------------------------------


def speeds(name: str, config: Config, batches: tuple[int, ...], turns: int, patience: float) -> Rows:
    """Images per second for every runtime and batch, with and without the mirror image."""
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
            rows |= _rows(name, f"{suffix}_one_core", used, "images/s of processor time")
            torch.set_num_threads(threads)
            detectors = make_detectors(config, mirrored, images, Path(folder))
            taken = _race(detectors, images, batches, turns, patience / 4)
            fastest = {one: max(turn.rate for turn in taken[one]) for one in taken}
            rows |= _rows(name, suffix, fastest, "images/s")
            others = statistics.mean(turn.others for several in taken.values() for turn in several)
            rows[f"predict_cpu_{name}_others{suffix}"] = 100 * others, "% of the machine taken by others"
    return rows


def _rows(name: str, suffix: str, rates: dict[tuple[str, int], float], unit: str) -> Rows:
    """Each runtime at each batch and at its best one, and how they compare."""
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
    """Images per second, in the fastest call; per second of processor time; the share others took."""

    rate: float
    per_core: float
    others: float


def _race(
    detectors: dict[str, Detector], images: Tensor, batches: tuple[int, ...], turns: int, patience: float
) -> dict[tuple[str, int], list[Turn]]:
    """The turns of each detector at each batch."""
    contestants = [(name, batch) for name in detectors for batch in batches]
    taken: dict[tuple[str, int], list[Turn]] = {one: [] for one in contestants}
    order = random.Random(SEED)
    end = time.monotonic() + patience
    for _ in range(turns):
        for name, batch in order.sample(contestants, len(contestants)):
            _wait_for_quiet(end)
            taken[name, batch].append(_turn(detectors[name], images[:batch]))
    return taken


def _wait_for_quiet(end: float) -> None:
    """Do nothing while other programs are busy, but not beyond `end`."""
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
        began = time.perf_counter()
        detector.locate(images)
        durations.append(time.perf_counter() - began)
    elapsed, used = time.perf_counter() - started, time.process_time() - own
    others = (_busy() - everyone - used) / elapsed / (os.cpu_count() or 1)
    return Turn(len(images) / min(durations), len(images) * len(durations) / used, max(0.0, others))


def _busy() -> float:
    """Seconds that all processors together have worked so far; Linux alone tells."""
    ticks = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    _, _, _, idle, waiting, *_ = ticks
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


# --- accuracy -----------------------------------------------------------------------------------------


def losses(name: str, run: Path, train: list[Path], test: list[Path], visibility: int) -> Rows:
    """What int8 changes, for a trained run on labeled images."""
    eager = Detector.load(run)
    with tempfile.TemporaryDirectory() as folder:
        exact, small = (OnnxDetector(eager, path) for path in export_onnx(run, True, Path(folder)))
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
        raise SystemExit(f"{len(truth) - len(store)} images of {labels} cannot be read")
    located = detector.locate(store.pixels)
    size = card.images.size
    return Examples(
        located.xy.double().numpy(),
        located.score.double().numpy(),
        to_network(truth.xy, store.regions[:, None], size),
        truth.visible,
        normalizer_lengths(truth, default_normalizer(truth), store.regions) * (size / store.regions[:, 2]),
    )


# --- where it goes ------------------------------------------------------------------------------------


def write_rows(rows: Rows, threads: int, path: Path) -> None:
    """Print rows and keep them; of the same name they are replaced, others in the file stay."""
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
    """What the processor calls itself, and whether it multiplies bytes."""
    facts = provenance.processor_facts()
    name = facts.get("model name", platform.processor())
    return f"{name}, {'with' if 'vnni' in facts.get('flags', '') else 'without'} VNNI"


if __name__ == "__main__":
    main()
