"""Predict many video frames in one process and check that memory, open files and threads do not grow.

    python benchmarks/soak.py --frames 100000 --out soak.json

Like a program that runs for a day, the script predicts a short video again and again. Each time, it opens the
video and writes the landmarks, as CSV and as COCO in turn. The network is small and untrained. This saves
time and does not change what could leak. The first quarter does not count, because buffers and caches still
grow then. The script also counts temporary files.
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

SIZE = 64  # side of the video and of the network images, pixels
LANDMARKS = 5
VIDEO_FRAMES = 250
MAX_BYTES_PER_FRAME = 100.0  # the landmarks of a frame take more, so keeping them by mistake is noticed
FORMATS = ("csv", "coco")


def main() -> None:
    """Predict all frames and write the result; exit with code 1 if something grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = str(Path(folder) / "temporary")
        os.makedirs(tempfile.tempdir)
        started = time.monotonic()
        samples = np.array(list(_predict_repeatedly(Path(folder), arguments.frames)), dtype=np.float64)
        seconds = time.monotonic() - started
    result = summarize(samples) | {
        "script": "benchmarks/soak.py",
        "seconds": round(seconds),
        "frames_per_second": round(float(samples[-1, 0]) / seconds, 1),
        "hardware": provenance.describe_processor(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "commit": provenance.read_commit(),
    }
    if arguments.out:
        write_json(result, arguments.out)
    print(result)
    if not result["is_flat"]:
        sys.exit(1)


def summarize(samples: np.ndarray) -> dict[str, object]:
    """Summarize the use of resources.

    Args:
        samples: [N, 5], one row per predicted video: frames done so far, resident bytes, open file
            descriptors, threads, temporary files.
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


def _predict_repeatedly(folder: Path, frames: int) -> Iterator[tuple[float, ...]]:
    """Predict a video repeatedly; after each time, yield the frames done so far and the use of resources."""
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
        yield (done, *_read_resources())


def _read_resources() -> tuple[int, int, int, int]:
    """Return resident bytes, open file descriptors, threads and temporary files of this process."""
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
