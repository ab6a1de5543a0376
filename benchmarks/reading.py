"""Measure how fast selfmark reads and crops small images and large photographs.

    PYTHONPATH=src python benchmarks/reading.py --out docs/results/reading.json

There are three kinds of rows. Those with `workers` give images per second with this number of threads or
processes. The first tenth of the images does not count, because processes start during it. Rows `as_built`
give images per second of `load_store` as selfmark uses it, including the start of processes. Rows with
`ms_cpu` give CPU milliseconds per image over all threads, which hardly depend on other work on the machine:
`as_built` decodes large JPEGs at a reduced size, `in_full` at full size. The script prints the result as
JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
import PIL
import provenance

from selfmark.config import Images, preset
from selfmark.image_ref import ImageRef
from selfmark.images import crop_readers
from selfmark.images.crop import compute_crop_regions, extract_crop
from selfmark.images.decode import Pixels, read_image
from selfmark.images.store import iterate_crops, load_store
from selfmark.run.files import write_json

PHOTO, SMALL, CROP = (4000, 3000), (128, 128), (176, 176)  # width and height, pixels
COUNTS = {SMALL: 12_000, CROP: 12_000, PHOTO: 320}  # number of images of each size
PER_WORKER = {SMALL: 1_500, CROP: 1_500, PHOTO: 24}  # number of images per worker
WORKERS = (1, 2, 4, 8, 16)
FEW = 60  # images of a small set, for which no process should be started
JPEG_QUALITY = 90
NETWORK = "fast"  # preset whose network size the speeds are for


def main() -> None:
    """Measure all sizes, print the results and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="read this fraction of the images")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for size, count in COUNTS.items():
            refs = write_images(Path(folder), size, max(FEW, int(count * arguments.scale)))
            per_worker = max(FEW, int(PER_WORKER[size] * arguments.scale))
            rows += measure_speed(size, refs, per_worker)
            rows += measure_cpu_time(size, refs[: min(len(refs), 24 if size == PHOTO else 400)])
    record = {
        "script": "benchmarks/reading.py",
        "hardware": provenance.describe_processor(),
        "load_average_before": round(os.getloadavg()[0], 1),
        "versions": {
            "python": platform.python_version(),
            "pillow": PIL.__version__,
            "opencv": cv2.__version__,
            "numpy": np.__version__,
        },
        "commit": provenance.read_commit(),
        "seed": 0,
        "network": preset(NETWORK).images.size,
        "rows": rows,
    }
    print(json.dumps(record, indent=1))
    if arguments.out is not None:
        write_json(record, arguments.out)


def write_images(folder: Path, size: tuple[int, int], count: int) -> list[ImageRef]:
    """Write a JPEG of blotches and grain, with about as many bytes as a photograph, under many names."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{size[0]}-{number:05}.jpg" for number in range(count)]
    blotches = cv2.resize(rng.integers(0, 256, (94, 125, 3), dtype=np.uint8), size)
    grain = rng.normal(0, 5, (size[1], size[0], 3))
    pixels = np.clip(blotches + grain, 0, 255).astype(np.uint8)
    encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
    paths[0].write_bytes(encoded)
    for path in paths[1:]:
        path.hardlink_to(paths[0])
    return [ImageRef(path) for path in paths]


def measure_speed(size: tuple[int, int], refs: list[ImageRef], per_worker: int) -> list[dict[str, Any]]:
    """Measure images per second for each number of threads and processes, and as built."""
    images = preset(NETWORK).images
    rows = []
    for kind, use in (("threads", use_threads), ("processes", use_processes)):
        for workers in WORKERS:
            with use(workers):
                rate = measure_steady_rate(refs[: per_worker * workers], images)
            rows.append({"workers": workers, "kind": kind, "images_per_s": round(rate, 1)})
    for count in (FEW, len(refs)):
        started = time.monotonic()
        load_store(refs[:count], images, 64.0, None)
        rate = count / (time.monotonic() - started)
        rows.append({"as_built": True, "images": count, "images_per_s": round(rate, 1)})
    for row in rows:
        row["jpeg"] = f"{size[0]} x {size[1]}"
        print(row, flush=True)
    return rows


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Read with this number of threads."""
    settings = {"THREADS": count, "PREFETCH": 4 * count, "_MIN_SECONDS": np.inf}
    with mock.patch.multiple(crop_readers, **settings):
        yield


@contextlib.contextmanager
def use_processes(count: int) -> Iterator[None]:
    """Read with this number of processes; the first 33 images are read before they start."""
    # After `_TRIAL_IMAGES` images, processes start if at least one image has been taken from the threads. The
    # threads read at most 32 images ahead (`PREFETCH`), so one has been taken before image 33.
    settings = {"MAX_PROCESSES": count, "_MIN_SECONDS": 0.0, "_MIN_CORES": 0, "_TRIAL_IMAGES": 33}
    with mock.patch.multiple(crop_readers, **settings, _count_cores=lambda: count):
        yield


def measure_steady_rate(refs: list[ImageRef], images: Images) -> float:
    """Return images per second, not counting the first tenth of the images."""
    done, first, started = 0, 0, 0.0
    for store in iterate_crops(refs, images, 8):
        done += len(store)
        if not first and done >= len(refs) / 10:
            first, started = done, time.monotonic()
    return (done - first) / (time.monotonic() - started)


def measure_cpu_time(size: tuple[int, int], refs: list[ImageRef]) -> list[dict[str, Any]]:
    """Measure CPU milliseconds per image of selfmark's loader, and of decoding at full size."""
    rows = []
    for name in ("fast", "tiny"):
        images = preset(name).images
        with use_threads(1):
            as_built = _measure_milliseconds(lambda: load_store(refs, images, 4.0, None), len(refs))  # noqa: B023
        in_full = _measure_milliseconds(lambda: read_full_size(refs, images), len(refs))  # noqa: B023
        row = {"jpeg": f"{size[0]} x {size[1]}", "network": images.size}
        rows.append(row | {"ms_cpu_as_built": as_built, "ms_cpu_in_full": in_full})
        print(rows[-1], flush=True)
    return rows


def read_full_size(refs: list[ImageRef], images: Images) -> list[Pixels]:
    """Decode images at full size, then crop them."""
    crops = []
    for ref in refs:
        pixels = read_image(ref.path, images.max_megapixels)
        region = compute_crop_regions([pixels.shape[1::-1]], [[np.nan] * 4], images)[0]
        crops.append(extract_crop(pixels, region, images.size))
    return crops


def _measure_milliseconds(work: Callable[[], object], count: int) -> float:
    work()  # warm up the file cache
    started = time.process_time()
    work()
    return round(1000 * (time.process_time() - started) / count, 2)


if __name__ == "__main__":
    main()
