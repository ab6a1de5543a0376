"""Measure the images per second of training, extraction and prediction, and the time to the first step.

    python benchmarks/speed.py --out docs/results/speed.json        # the paper's network at 256 pixels
    python benchmarks/speed.py --tiny --device cpu --out rows.json  # test the script quickly

A training step includes everything: fetch, augment, forward, losses, backward, update. Images and points are
generated and stay on the device. A warm-up is not measured: 10 training steps (three run without a CUDA
graph, the fourth is captured), or 3 passes over all images in extraction and prediction. Each rate is
the median over 5 stretches of consecutive steps or passes.

`cold_first_step_s` is the time from the start of a new process, with an empty compilation cache, to the end
of its fourth step. Kernels are compiled in other threads, as in a run. `warm_first_step_s` is the same for a
second process, which finds the compiled kernels.

Phi is the network that finds and describes keypoints (Stage 1), Psi the network that locates landmarks.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import provenance
import torch

from selfmark.config import Config, override, preset
from selfmark.correspondence.describe import describe_images
from selfmark.detector import Detector
from selfmark.images.feed import PixelFeed
from selfmark.model.card import ModelCard
from selfmark.model.network import Phi, Psi, prepare_network
from selfmark.run.files import write_json
from selfmark.train.engine import Phase, build_train_state, run_phase
from selfmark.train.kernel_compilation import compile_kernels
from selfmark.train.objectives import build_stage1_task, round_pair_settings
from selfmark.train.pairs import PairSource
from selfmark.train.point_table import PointTable

SEED = 0
POINTS = 30  # keypoints per image
WARM_UP_STEPS, WARM_UP_PASSES = 10, 3
STRETCHES = 5  # measurements, of which the median counts


def main() -> None:
    """Measure all rates, print them and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small network and few steps")
    parser.add_argument("--kernels", choices=["auto", "plain"], default="auto")
    parser.add_argument("--pairs", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--skip-first-step", action="store_true", help="do not measure the cold start")
    parser.add_argument("--only-first-step", action="store_true", help="used by the new process")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    config = override(preset("tiny" if arguments.tiny else "fast"), {"runtime.kernels": arguments.kernels})
    if arguments.only_first_step:
        with compile_kernels(config, device):
            time_training_steps(config, device, pairs=arguments.pairs[0], steps=4, images=64)
        return
    rows: list[dict[str, Any]] = []

    def add_row(name: str, value: float, unit: str) -> None:
        rows.append({"name": name, "value": round(value, 2), "unit": unit})
        print(f"{name:28s} {value:10.1f} {unit}", flush=True)

    if not arguments.skip_first_step:
        with tempfile.TemporaryDirectory() as cache:
            add_row("cold_first_step_s", _time_first_step(cache), "s")
            add_row("warm_first_step_s", _time_first_step(cache), "s")
    images, stretch = (64, 40) if arguments.tiny else (1024, 100)
    for pairs in arguments.pairs:
        _reset_memory(device)
        seconds = time_training_steps(
            config, device, pairs, WARM_UP_STEPS + STRETCHES * stretch, images, stretch
        )
        add_row(f"stage1_{pairs}_pairs", 2 * pairs / seconds, "images/s")
        add_row(f"stage1_{pairs}_pairs_step", 1e3 * seconds, "ms")
        add_row(f"stage1_{pairs}_pairs_memory", _read_peak_gigabytes(device), "GB")
    for name, measure in (("extract", _measure_extraction), ("predict_gpu", _measure_prediction)):
        _reset_memory(device)
        if device.type == "cpu":
            name = name.replace("gpu", "cpu_eager")
        add_row(name, measure(config, device, images), "images/s")
        add_row(f"{name}_memory", _read_peak_gigabytes(device), "GB")
    if arguments.out is not None:
        cuda = device.type == "cuda"
        write_json(
            {
                "hardware": torch.cuda.get_device_name() if cuda else f"CPU, {os.cpu_count()} cores",
                "versions": {"torch": torch.__version__, "python": platform.python_version()},
                "commit": provenance.read_commit(),
                "settings": {"preset": config.preset, "seed": SEED, "warm_up_steps": WARM_UP_STEPS},
                "rows": rows,
            },
            arguments.out,
        )


def _generate_images(config: Config, device: torch.device, images: int) -> torch.Tensor:
    """Generate images of random colored squares, [N, 3, S, S] uint8."""
    generator = torch.Generator(device).manual_seed(SEED)
    coarse = torch.rand((images, 3, 16, 16), generator=generator, device=device)
    size = config.images.size
    return (torch.nn.functional.interpolate(coarse, size=(size, size)) * 255).to(torch.uint8)


def time_training_steps(
    config: Config, device: torch.device, pairs: int, steps: int, images: int, stretch: int = 1
) -> float:
    """Return the seconds per training step: the median over stretches after the warm-up.

    Args:
        config: settings.
        device: device to train on.
        pairs: number of image pairs per step.
        steps: number of steps, including the warm-up.
        images: number of generated images.
        stretch: number of steps that are timed together.
    """
    config = override(
        config, {"runtime.batch": pairs, "runtime.log_every": stretch, "runtime.checkpoint_every": 10**9}
    )
    generator = torch.Generator(device).manual_seed(SEED)
    xy = torch.rand((images, POINTS, 2), generator=generator, device=device) * config.images.size
    valid = torch.ones((images, POINTS), dtype=torch.bool, device=device)
    label = torch.randint(config.M, (images, POINTS), generator=generator, device=device)
    table = PointTable(xy, valid, label, label, torch.arange(images, device=device))
    torch.manual_seed(SEED)
    phi = Phi(config.network)
    prepare_network(phi, device, config.runtime)
    state = build_train_state(phi, [(phi, 1.0)], config.optimizer, generator)
    feed = PixelFeed(_generate_images(config, device, images), device)
    source = PairSource(table, round_pair_settings(config, has_mirrored_labels=True))
    task = build_stage1_task(phi, feed, source, config, generator, SEED)
    log_times: list[float] = []

    def on_log(phase: Phase, iteration: int, means: dict[str, float], seconds: float) -> None:
        log_times.append(seconds)  # reading the means back has synchronized with the device

    # Choose the first iteration so that a line is logged at the end of the warm-up and after each stretch.
    state.iteration = -(WARM_UP_STEPS % stretch) % stretch
    stop = state.iteration + steps
    run_phase(state, Phase("speed", 0, 0, stop, ()), task, config.runtime, on_log, lambda: None)
    durations = np.diff(log_times)[-STRETCHES:]
    return float(np.median(durations)) / stretch if len(durations) else float("nan")


def _measure_rate(process_images: Callable[[], int], device: torch.device) -> float:
    """Return the images per second of a function that processes images and returns their number."""
    for _ in range(WARM_UP_PASSES):
        process_images()
    rates = []
    for _ in range(STRETCHES):
        _wait(device)
        started = time.perf_counter()
        done = sum(process_images() for _ in range(3))
        _wait(device)
        rates.append(done / (time.perf_counter() - started))
    return float(np.median(rates))


def _measure_extraction(config: Config, device: torch.device, images: int) -> float:
    """Return how many images per second get keypoints and descriptors, with two passes per image.

    The second pass processes the mirror image.
    """
    torch.manual_seed(SEED)
    phi = Phi(config.network)
    prepare_network(phi, device, config.runtime)
    feed = PixelFeed(_generate_images(config, device, images), device)

    def process_images() -> int:
        describe_images(phi, feed, config)
        return len(feed)

    return _measure_rate(process_images, device)


def _measure_prediction(config: Config, device: torch.device, images: int) -> float:
    """Return how many images per second get landmarks, with two passes per image.

    The second pass processes the mirror image.
    """
    names = tuple(f"landmark_{index}" for index in range(config.K))
    mirror = tuple(range(config.K))
    card = ModelCard(names, mirror, (), config.images, config.network, config.heatmaps.refine, True, {})
    torch.manual_seed(SEED)
    detector = Detector(Psi(config.network, config.K), card, device)
    batches = _generate_images(config, device, images).split(config.runtime.predict_batch)  # type: ignore[no-untyped-call]

    def process_images() -> int:
        return sum(len(detector.locate(batch).xy) for batch in batches)

    return _measure_rate(process_images, device)


def _time_first_step(cache: str) -> float:
    """Return the seconds from the start of a new process to the end of its fourth step.

    Args:
        cache: folder of compiled kernels, which the process reads and fills.
    """
    environment = os.environ | {"TRITON_CACHE_DIR": cache}
    started = time.perf_counter()
    subprocess.run([sys.executable, *sys.argv, "--only-first-step"], check=True, env=environment)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _reset_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _read_peak_gigabytes(device: torch.device) -> float:
    """Return the peak of the reserved GPU memory in GB; 0 on the CPU."""
    return torch.cuda.max_memory_reserved() / 1e9 if device.type == "cuda" else 0.0


if __name__ == "__main__":
    main()
