"""Measure the parts of a run with up to a million images: reading, features, training, one recovery.

    PYTHONPATH=src:benchmarks python benchmarks/scale_million.py --images 10000 100000 1000000 \
        --work scratch --out scale_million.json

The script first writes small, different JPEG files, 10,000 to a folder. Their number is the largest number of
images, or `--files` if that is smaller. Then it measures these parts for each number of images:

reading:  `load_store` into a memory-mapped file. The files were just written, so most of them are still in
          the page cache of the system.
encoder:  one pass of the default encoder over all images; the features are discarded
features: features of the images and of the mirror images that discovery uses (`features.max_images`)
steps:    steps of Stage 1, on random points
describe: keypoints and descriptors of all images and mirror images, by an untrained network
recovery: one correspondence recovery over these descriptors
survey:   the search for repeated images; it is only measured if `--stages` names it

Images stay in the file and are streamed to the GPU (`runtime.device_fraction` is 0). Descriptors are in host
memory. The filter copies the descriptors that it keeps. If descriptors and copies could take more than
`--host-gib` GiB, fewer points per image are used. The rows name the number of points.

Each stage of `--stages` runs in a process of its own. The stage `features` measures the parts encoder and
features; the stage `recovery` measures describe and recovery. The peaks of the memory are sampled 50 times
per second and do not include the processes that decode images. Anonymous memory is what the process
allocates. File memory is mapped from files; the system can reclaim it at any time. Each row is written as
soon as it is measured, so that an interruption loses no finished row.

Phi is the network that finds and describes keypoints (Stage 1).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count as count_up
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import provenance
import torch
from scale import POINTS, generate_table, time_steps

from selfmark.config import DEFAULT_FEATURES, Config, override, preset
from selfmark.correspondence.describe import describe_images
from selfmark.correspondence.recovery import recover_correspondence
from selfmark.errors import InputError
from selfmark.features.cells import describe_cells, describe_colors, remove_stored_cells
from selfmark.features.encoder import CELL, Encoder
from selfmark.features.loading import build_encoder, load_encoder
from selfmark.images.duplicates import find_duplicates, make_thumbnails
from selfmark.images.feed import PixelFeed
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.model.network import Phi, prepare_network
from selfmark.run.devices import uses_bf16
from selfmark.run.files import write_json
from selfmark.sampling import evenly_spaced

DEFAULTS = {  # on top of the preset `fast`
    "images.size": 96,
    "network.depth": 3,  # With more levels, the side of the images would have to be a multiple of 64.
    "heatmaps.max_points": POINTS,
    "heatmaps.nms_radius": 1,  # An untrained network then finds this many points.
    "features.name": DEFAULT_FEATURES,
    "runtime.device_fraction": 0.0,
}
FILE_SIDE = 96  # pixels
FILES_PER_FOLDER = 10_000
TEMPLATES = 300  # pictures that the files are variants of
JPEG_QUALITY = 90
CURVE_POINTS = 10  # progress marks while images are read
WARM_UP_IMAGES = 512
COPY_BYTES = 2**26  # bytes to copy at a time
SAMPLE_SECONDS = 0.02  # time between two measurements of the memory
GIB = 2**30

Row = dict[str, Any]
T = TypeVar("T")


def main() -> None:
    """Write the image files, measure all stages and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", required=True)
    parser.add_argument(
        "--files", type=int, help="number of files; larger numbers of images repeat their pixels"
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for image files and scratch files")
    parser.add_argument("--out", type=Path)
    default_stages = ["reading", "features", "steps", "recovery"]
    parser.add_argument("--stages", nargs="+", default=default_stages, choices=list(STAGES))
    parser.add_argument("--set", nargs="*", default=[], help="settings, e.g. images.size=64")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--host-gib", type=float, default=100.0, help="memory that descriptors may take, GiB")
    parser.add_argument("--one", choices=list(STAGES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.files = min(arguments.files or max(arguments.images), max(arguments.images))
    if arguments.one:
        for row in STAGES[arguments.one](arguments, build_config(arguments.set)):
            print(json.dumps(row), flush=True)
        return
    started = time.monotonic()
    write_files(arguments.work, arguments.files)
    print(f"{arguments.files:,} files written in {time.monotonic() - started:.1f} s", flush=True)
    rows: list[Row] = []
    for stage in arguments.stages:
        for row in run_stage(stage):
            rows.append(row)
            print(row, flush=True)
            if arguments.out:
                write_json(build_record(rows, arguments), arguments.out)


def build_config(changes: list[str]) -> Config:
    """Return the settings of the benchmark with some changes, each written as key=value."""
    chosen: dict[str, Any] = dict(pair.split("=", 1) for pair in changes)
    return override(preset("fast"), DEFAULTS | chosen)


def run_stage(stage: str) -> Iterator[Row]:
    """Run one stage in a new process and yield its rows; a row with `error` if the process fails."""
    words = [sys.executable, __file__, *sys.argv[1:], "--one", stage]
    started = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        yield {"name": stage, "error": f"the process ended with code {process.returncode}"}
    print(f"{stage} took {time.monotonic() - started:.1f} s in all", flush=True)


def build_record(rows: list[Row], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the content of the result file."""
    return {
        "script": "benchmarks/scale_million.py --images " + " ".join(map(str, arguments.images)),
        "settings": DEFAULTS | dict(pair.split("=", 1) for pair in arguments.set),
        "seed": 0,
        "files": arguments.files,
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "processor": provenance.describe_processor(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "commit": provenance.read_commit(),
        "rows": rows,
    }


# --- image files -------------------------------------------------------------------------------------


def write_files(work: Path, count: int) -> None:
    """Write JPEG files with all cores, unless they exist from an earlier call."""
    jobs = [
        (folder, min(FILES_PER_FOLDER, count - first))
        for first, folder in zip(range(0, count, FILES_PER_FOLDER), list_folders(work), strict=False)
    ]
    cv2.setNumThreads(1)
    # Forked processes start at once; no other thread or CUDA context exists yet.
    with multiprocessing.get_context("fork").Pool() as pool:
        pool.starmap(write_folder, jobs, chunksize=1)


def list_folders(work: Path) -> Iterator[Path]:
    """Yield the folders of the files in order, without end."""
    return (work / "files" / f"{number:04}" for number in count_up())


def write_folder(folder: Path, count: int) -> None:
    """Write the files of one folder: a template with a few blobs that no other file has."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / f"{count - 1:05}.jpg").exists():
        return
    templates = [draw_template(number) for number in range(TEMPLATES)]
    rng = np.random.default_rng(int(folder.name))
    numbers = rng.integers(0, TEMPLATES, count)
    blobs = rng.integers(0, FILE_SIDE, (count, 3, 2)).tolist()
    colors = rng.integers(0, 256, (count, 3, 3)).tolist()
    for file in range(count):
        image = templates[numbers[file]].copy()
        for center, color in zip(blobs[file], colors[file], strict=True):
            cv2.circle(image, center, 4, color, -1)
        encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
        (folder / f"{file:05}.jpg").write_bytes(encoded.tobytes())


def draw_template(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Draw ellipses on a background of soft blotches with grain, [FILE_SIDE, FILE_SIDE, 3] uint8."""
    rng = np.random.default_rng([1, number])
    blotches = cv2.resize(rng.integers(60, 200, (6, 6, 3), dtype=np.uint8), (FILE_SIDE, FILE_SIDE))
    for _ in range(8):
        center, axes = rng.integers(10, FILE_SIDE - 10, 2).tolist(), rng.integers(4, 20, 2).tolist()
        cv2.ellipse(
            blotches, center, axes, float(rng.uniform(0, 180)), 0, 360, rng.integers(0, 256, 3).tolist(), -1
        )
    grain = rng.normal(0, 4, blotches.shape)
    return np.clip(blotches + grain, 0, 255).astype(np.uint8)


# --- memory ------------------------------------------------------------------------------------------


def read_memory() -> dict[str, int]:
    """Return the bytes of anonymous and of file memory of this process, as far as the system reports them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines if line.startswith("Rss"))
    return {name: 1024 * int(value.split()[0]) for name, value in values.items()}


@contextmanager
def track(peaks: Row, device: torch.device) -> Iterator[None]:
    """Measure the seconds of a block and the peaks of its memory; store them in `peaks`."""
    peak_bytes: dict[str, int] = {}
    stopped = threading.Event()

    def sample() -> None:
        is_last = False
        while not is_last:
            is_last = stopped.wait(SAMPLE_SECONDS)
            for name, value in read_memory().items():
                peak_bytes[name] = max(value, peak_bytes.get(name, 0))

    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    started = time.monotonic()
    try:
        yield
        if is_cuda:
            torch.cuda.synchronize()
        peaks["seconds"] = round(time.monotonic() - started, 3)
    finally:
        stopped.set()
        thread.join()
    peaks["host_anon_peak_gib"] = _to_gib(peak_bytes.get("RssAnon"))
    peaks["host_file_peak_gib"] = _to_gib(peak_bytes.get("RssFile"))
    peaks["gpu_peak_gib"] = _to_gib(torch.cuda.max_memory_allocated() if is_cuda else None)


def _to_gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else round(num_bytes / GIB, 3)


def measure(
    name: str, images: int, work: Callable[[], T], device: torch.device, used: int | None = None
) -> tuple[Row, T]:
    """Run `work` once; return a row with images per second, seconds and memory, and the result of `work`.

    Args:
        name: name of the part.
        images: number of images of the run.
        work: the part.
        device: device to wait for.
        used: number of images that are processed; None for all.
    """
    peaks: Row = {}
    with track(peaks, device):
        result = work()
    num_processed = images if used is None else used
    rate = {"images": images, "value": round(num_processed / peaks["seconds"], 1), "unit": "images/s"}
    return {"name": f"{name}_{images}", **rate, "used": num_processed, **peaks}, result


# --- stages ------------------------------------------------------------------------------------------


def measure_reading(arguments: argparse.Namespace, config: Config) -> Iterator[Row]:
    """Measure listing and reading; the file with the pixels of the last, largest set remains.

    If there are fewer files than images, repeat the pixels of the files until there are enough.
    """
    scratch = arguments.work / "pixels"
    for count in sorted({min(images, arguments.files) for images in arguments.images}):
        folders = list(islice(list_folders(arguments.work), -(-count // FILES_PER_FOLDER)))
        started = time.monotonic()
        refs = list_images(folders)[:count]
        listing_seconds = round(time.monotonic() - started, 2)
        curve: list[tuple[int, float, float | None]] = []
        on_progress = _follow_progress(count, curve)
        read = partial(load_store, refs, config.images, 0.0, scratch, on_progress)
        yield {
            **measure("reading", count, read, torch.device("cpu"))[0],
            "listing_seconds": listing_seconds,
            "curve": curve,
        }
        del refs, read
    if arguments.files < max(arguments.images):
        repeat_pixels(scratch / "images.u8", -(-max(arguments.images) // arguments.files))


def repeat_pixels(path: Path, times: int) -> None:
    """Append copies of the content of a file, so that the content occurs `times` times."""
    length = path.stat().st_size
    with path.open("rb") as source, path.open("ab") as target:
        for _ in range(times - 1):
            source.seek(0)
            for first in range(0, length, COPY_BYTES):
                target.write(source.read(min(COPY_BYTES, length - first)))


def _follow_progress(count: int, curve: list[tuple[int, float, float | None]]) -> Callable[[int, int], None]:
    """Return a callback that appends images, seconds and GiB of anonymous memory after each tenth."""
    started = time.monotonic()

    def on_progress(done: int, total: int) -> None:
        if done * CURVE_POINTS >= (len(curve) + 1) * count:
            anonymous = _to_gib(read_memory().get("RssAnon"))
            curve.append((done, round(time.monotonic() - started, 2), anonymous))

    return on_progress


def open_feed(work: Path, count: int, config: Config, device: torch.device) -> PixelFeed:
    """Return a feed of the first images in the file that the stage `reading` has written."""
    path = work / "pixels" / "images.u8"
    shape = (3, config.images.size, config.images.size)
    num_stored = path.stat().st_size // int(np.prod(shape)) if path.exists() else 0
    if num_stored < count:
        raise SystemExit(f"{path} has {num_stored:,} images, not {count:,}: run the stage 'reading' first")
    pixels = np.memmap(path, np.uint8, "r+", shape=(num_stored, *shape))
    return PixelFeed(torch.from_numpy(pixels)[:count], device, config.runtime.device_fraction)


def measure_features(arguments: argparse.Namespace, config: Config) -> Iterator[Row]:
    """Measure a pass of the encoder over all images, and the features that discovery computes."""
    device = select_device()
    encoder, weights = load_default_encoder(config, device)
    # The first passes are slow: cuDNN plans the convolutions.
    encode_all(
        encoder, open_feed(arguments.work, min(WARM_UP_IMAGES, *arguments.images), config, device), config
    )
    feature_bytes = 2 * torch.float16.itemsize * encoder.part_channels * (config.images.size // CELL) ** 2
    for count in sorted(arguments.images):
        feed = open_feed(arguments.work, count, config, device)
        yield {
            **measure("encoder", count, partial(encode_all, encoder, feed, config), device)[0],
            "weights": weights,
        }
        compute = partial(compute_features, encoder, feed, config, arguments.work)
        used = min(count, config.features.max_images)
        yield {
            **measure("features", count, compute, device, used)[0],
            "feature_bytes_per_image": feature_bytes,
        }


def select_device() -> torch.device:
    """Return the GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_default_encoder(config: Config, device: torch.device) -> tuple[Encoder, str]:
    """Return the encoder and the origin of its weights. Random weights have the same speed."""
    try:
        return load_encoder(config.features.name, device), "published"
    except InputError:
        return build_encoder(config.features.name).to(device), "random"


@torch.no_grad()
def encode_all(encoder: Encoder, feed: PixelFeed, config: Config) -> None:
    """Describe all images and discard the result."""
    bf16 = uses_bf16(config.runtime, feed.device)
    for pixels in feed.sequential_batches(config.runtime.predict_batch):
        with torch.autocast(feed.device.type, torch.bfloat16, enabled=bf16):
            encoder.describe(pixels.float() / 255)


def compute_features(encoder: Encoder, feed: PixelFeed, config: Config, work: Path) -> None:
    """Choose images and compute the same features as discovery; hold all of them at the same time."""
    rows = torch.from_numpy(evenly_spaced(len(feed), config.features.max_images))
    pixels = feed.pixels if len(rows) == len(feed) else feed.pixels[rows]
    used_feed = PixelFeed(pixels, feed.device, config.runtime.device_fraction)
    all_rows = slice(0, len(used_feed))
    try:
        cells = [describe_cells(encoder, used_feed, all_rows, config, work, flip) for flip in (False, True)]
        describe_colors(used_feed, all_rows, config.runtime.predict_batch)
        del cells
    finally:
        remove_stored_cells(work)


def measure_steps(arguments: argparse.Namespace, config: Config) -> Iterator[Row]:
    """Measure steps of Stage 1 with random points."""
    device = select_device()
    used = 2 * config.runtime.batch * arguments.steps
    for count in sorted(arguments.images):
        feed = open_feed(arguments.work, count, config, device)
        table = generate_table(count, config, device)
        work = partial(time_steps, feed, table, arguments.steps, config)
        row, seconds = measure("steps", count, work, device, used)
        # The peaks of the memory are those of the warm-up and of the steps, but its time does not count.
        row |= {"seconds": round(seconds, 3), "value": round(used / seconds, 1)}
        point_bytes = sum(value.nbytes for value in vars(table).values())
        yield row | {"steps": arguments.steps, "point_bytes_per_image": point_bytes // count}


def measure_recovery(arguments: argparse.Namespace, config: Config) -> Iterator[Row]:
    """Measure the description of keypoints and one recovery, with an untrained network."""
    device = select_device()
    torch.manual_seed(0)
    phi = Phi(config.network)
    prepare_network(phi, device, config.runtime)
    warm_up_feed = open_feed(arguments.work, min(WARM_UP_IMAGES, *arguments.images), config, device)
    describe_images(phi, warm_up_feed, config)  # The first passes are slow: kernels are compiled.
    for count in sorted(arguments.images):
        limited_config, num_fitting = limit_points(count, config, arguments.host_gib)
        feed = open_feed(arguments.work, count, limited_config, device)
        row, described = measure(
            "describe", count, partial(describe_images, phi, feed, limited_config), device
        )
        vectors = [described.points.descriptor, described.mirrored]
        yield row | {
            "max_points": limited_config.heatmaps.max_points,
            "images_that_fit": num_fitting,
            "points_per_image": round(len(described.points) / count, 2),
            "descriptor_gib": _to_gib(sum(values.nbytes for values in vectors if values is not None)),
            "descriptors_on": described.points.xy.device.type,
        }
        generator = torch.Generator(device).manual_seed(0)
        settings = (limited_config.K, limited_config.M, limited_config.correspondence, generator)
        recover = partial(recover_correspondence, described, *settings)
        row, labeled = measure("recovery", count, recover, device)
        yield row | {"kept_per_image": round(len(labeled.points) / count, 2)}
        del described, vectors, recover, labeled  # before the next, larger number of images


def limit_points(count: int, config: Config, host_gib: float) -> tuple[Config, int]:
    """Lower `heatmaps.max_points` until the descriptors of all images fit into host memory.

    The filter copies the descriptors that it keeps, in the worst case all of them.

    Returns:
        The settings, and the number of images that would fit with the original number of points.
    """
    views = 1 + config.flip.finds_partners
    point_bytes = 2 * views * config.network.descriptor * torch.float32.itemsize
    points = config.heatmaps.max_points
    limited = max(1, min(points, int(host_gib * GIB / (count * point_bytes))))
    heatmaps = replace(config.heatmaps, max_points=limited)
    return replace(config, heatmaps=heatmaps), int(host_gib * GIB / (points * point_bytes))


def measure_survey(arguments: argparse.Namespace, config: Config) -> Iterator[Row]:
    """Measure the search for repeated images."""
    device = torch.device("cpu")
    for count in sorted(arguments.images):
        pixels = open_feed(arguments.work, count, config, device).pixels
        yield measure("survey", count, partial(_survey, pixels), device)[0]


def _survey(pixels: torch.Tensor) -> None:
    find_duplicates(pixels, make_thumbnails(pixels))


STAGES: dict[str, Callable[[argparse.Namespace, Config], Iterator[Row]]] = {
    "reading": measure_reading,
    "survey": measure_survey,
    "features": measure_features,
    "steps": measure_steps,
    "recovery": measure_recovery,
}


if __name__ == "__main__":
    main()
