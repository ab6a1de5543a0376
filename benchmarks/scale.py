"""Measure whether time and memory per image stay constant for larger data sets, with generated images.

    python benchmarks/scale.py --images 1000 10000 50000 200000 --out scale.json

The benchmark times Stage 1 steps. The images are in host memory: copies of 500 images of random bytes, with
30 points each. `PixelFeed` with `device_fraction` 0 prefetches them, so the GPU holds only a few batches for
any number of images. For comparison, the smallest data set is also measured with the images on the device.
Rows give the peak memory of the process and of the GPU, and the bytes per image of the pixels, of the points,
and of the descriptors in a correspondence recovery.

Phi is the network that finds and describes keypoints (Stage 1).
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from selfmark.config import Config, override, preset
from selfmark.images.feed import PixelFeed
from selfmark.model.network import Phi, prepare_network
from selfmark.points import Keypoints
from selfmark.run.files import write_json
from selfmark.train.engine import Phase, build_train_state, run_phase
from selfmark.train.objectives import build_stage1_task, warmup_pair_settings
from selfmark.train.pairs import PairSource
from selfmark.train.point_table import PointTable, build_point_table, label_by_index

POINTS = 30  # points per image
WARM_UP_STEPS = 20  # before the measurement starts


def main() -> None:
    """Measure each size in a separate process and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--set", nargs="*", default=[], help="settings, e.g. images.size=64")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=("host", "device"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    changes: dict[str, Any] = dict(pair.split("=", 1) for pair in arguments.set)
    if arguments.one:
        config = override(preset("fast"), changes)
        print(json.dumps(measure(arguments.images[0], arguments.one, arguments.steps, config)))
        return
    # Each measurement gets its own process, so that the memory peaks are separate.
    jobs = [(min(arguments.images), "device"), *((count, "host") for count in arguments.images)]
    rows = []
    for count, where in jobs:
        words = [sys.executable, __file__, "--one", where, "--images", str(count)]
        words += ["--steps", str(arguments.steps), "--set", *arguments.set]
        result = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(result.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if arguments.out:
        write_json({"hardware": hardware, "versions": versions, "rows": rows}, arguments.out)


def measure(count: int, where: str, steps: int, config: Config) -> dict[str, Any]:
    """Measure images per second and memory of Stage 1 steps, after a warm-up.

    Args:
        count: number of images.
        where: "host" or "device", the memory that holds the images.
        steps: number of measured steps.
        config: settings.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pixels = torch.empty(count, 3, config.images.size, config.images.size, dtype=torch.uint8)
    block = torch.randint(0, 256, (min(count, 500), *pixels.shape[1:]), dtype=torch.uint8)
    for part in torch.split(pixels, len(block)):
        part.copy_(block[: len(part)])
    table = generate_table(count, config, device)
    seconds = time_steps(PixelFeed(pixels, device, 0.0 if where == "host" else 1.0), table, steps, config)
    point_bytes = sum(value.nbytes for value in vars(table).values())
    return {
        "name": f"scale_{count}_{where}",
        "value": round(2 * config.runtime.batch * steps / seconds, 1),
        "unit": "images/s",
        "gpu_peak_gib": _read_gpu_peak(device),
        "host_peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "pixel_bytes_per_image": pixels.nbytes // count,
        "point_bytes_per_image": point_bytes // count,
        "descriptor_bytes_per_image": POINTS * 2 * config.network.descriptor * 4,
    }


def time_steps(feed: PixelFeed, table: PointTable, steps: int, config: Config) -> float:
    """Return the seconds that some steps of Stage 1 take after a warm-up.

    Args:
        feed: the images.
        table: points of the images.
        steps: number of measured steps.
        config: settings.
    """
    phi = Phi(config.network)
    prepare_network(phi, feed.device, config.runtime)
    generator = torch.Generator(feed.device).manual_seed(0)
    state = build_train_state(phi, [(phi, 1.0)], config.optimizer, generator)
    source = PairSource(table, warmup_pair_settings(config))
    task = build_stage1_task(phi, feed, source, config, generator, seed=0)
    runtime = replace(config.runtime, log_every=10**9, checkpoint_every=10**9)
    seconds = 0.0
    # The second phase captures the CUDA graph again; the time of this capture is included in the measurement.
    for stop in (WARM_UP_STEPS, WARM_UP_STEPS + steps):
        started = time.monotonic()
        phase = Phase("warm-up", 0, state.iteration, stop, ())
        run_phase(state, phase, task, runtime, lambda *_: None, lambda: None)
        seconds = time.monotonic() - started
    return seconds


def _read_gpu_peak(device: torch.device) -> float | None:
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if device.type == "cuda" else None


def generate_table(count: int, config: Config, device: torch.device) -> PointTable:
    """Generate random points for all images."""
    generator = torch.Generator().manual_seed(0)
    xy = torch.rand(count * POINTS, 2, generator=generator) * (config.images.size - 1)
    image_index = torch.arange(count).repeat_interleave(POINTS)
    points = Keypoints(xy, image_index, torch.ones(len(xy)))
    return build_point_table(label_by_index(points, count), count, config.correspondence.min_points, device)


if __name__ == "__main__":
    main()
