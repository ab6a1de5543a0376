"""Predict many video frames in one process and watch its memory, descriptors, threads and temporary files.

    python benchmarks/soak.py --frames 100000 --out soak.json

A short video is predicted again and again, from opening the file to writing a table, as a program does that
runs for a day. The network is small and untrained, so that the frames pass quickly; what could leak is the
same. The first quarter is left out, in which buffers and caches grow.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import provenance
import torch

from selfmark.config import Images, Network
from selfmark.demo.scene import generate_scene
from selfmark.detector import Detector, Prediction
from selfmark.export import get_writer
from selfmark.images.sources import list_images
from selfmark.model.card import ModelCard
from selfmark.model.network import Psi
from selfmark.run.files import write_json

SIZE, LANDMARKS, VIDEO_FRAMES = 64, 5, 250
MAX_BYTES_PER_FRAME = 100.0  # a row of the table that is kept by mistake would take more
FORMATS = ("csv", "coco")


def main() -> None:
    """Run until all frames are predicted; exit with 1 if something grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = str(Path(folder) / "temporary")
        os.makedirs(tempfile.tempdir)
        started = time.monotonic()
        samples = np.array(list(_predict(Path(folder), arguments.frames)), dtype=np.float64)
        seconds = time.monotonic() - started
    result = summarize(samples) | {
        "script": "benchmarks/soak.py",
        "seconds": round(seconds),
        "frames_per_second": round(float(samples[-1, 0]) / seconds, 1),
        "hardware": provenance.processor(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "commit": provenance.commit(),
    }
    if arguments.out:
        write_json(result, arguments.out)
    print(result)
    if not result["is_flat"]:
        sys.exit(1)


def summarize(samples: np.ndarray) -> dict[str, object]:
    """Describe samples [N, 5]: frames done, resident bytes, descriptors, threads, temporary files.

    Args:
        samples: one row per video.
    """
    steady = samples[samples[:, 0] > samples[-1, 0] / 4]
    done, memory, descriptors, threads, files = steady.T
    slope = float(np.polyfit(done, memory, 1)[0])
    return {
        "frames": int(samples[-1, 0]),
        "videos_opened": len(samples),
        "megabytes_start": round(float(memory[0]) / 2**20, 1),
        "megabytes_end": round(float(memory[-1]) / 2**20, 1),
        "megabytes_by_tenth": [
            round(float(part.mean()) / 2**20, 1) for part in np.array_split(samples[:, 1], 10)
        ],
        "bytes_per_frame": round(slope, 1),
        "descriptors": [int(descriptors.min()), int(descriptors.max())],
        "threads": [int(threads.min()), int(threads.max())],
        "temporary_files": [int(files.min()), int(files.max())],
        "is_flat": bool(
            slope < MAX_BYTES_PER_FRAME
            and descriptors.max() <= descriptors[0]
            and threads.max() <= threads[0]
            and files.max() == 0
        ),
    }


def _predict(folder: Path, frames: int) -> Iterator[tuple[float, ...]]:
    """Predict a video repeatedly; yield the frames done and the use of resources after each time."""
    video, output = folder / "video.mp4", folder / "output"
    output.mkdir()
    _write_video(video)
    detector = _build_detector()
    done = 0
    while done < frames:
        counted: list[int] = []

        def count(predictions: Iterator[Prediction], counted: list[int] = counted) -> Iterator[Prediction]:
            for prediction in predictions:
                counted.append(len(prediction.refs))
                yield prediction

        writer = get_writer(FORMATS[(done // VIDEO_FRAMES) % len(FORMATS)])
        writer(count(detector.predict(list_images([video]))), detector.card, output)
        done += sum(counted)
        yield (done, *_used_resources())


def _used_resources() -> tuple[int, int, int, int]:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    files = sum(len(names) for _, _, names in os.walk(tempfile.gettempdir()))
    return resident, len(os.listdir("/proc/self/fd")), threading.active_count(), files


def _write_video(path: Path) -> None:
    scene = generate_scene(VIDEO_FRAMES, SIZE, seed=0)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25, (SIZE, SIZE))
    for image in scene.images:
        writer.write(np.ascontiguousarray(image[..., ::-1]))
    writer.release()


def _build_detector() -> Detector:
    torch.manual_seed(0)
    network = Network(channels=16, depth=2, descriptor=16, norm_groups=2)
    names = tuple(f"landmark_{number}" for number in range(LANDMARKS))
    mirror = tuple(range(LANDMARKS))
    card = ModelCard(names, mirror, (), Images(size=SIZE), network, "centroid", False, {"seed": 0})
    return Detector(Psi(network, LANDMARKS), card)


if __name__ == "__main__":
    main()
