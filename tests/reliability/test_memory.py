"""Test that prediction over many images takes constant memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selfmark.detector import Detector, Prediction
from selfmark.export import get_writer
from selfmark.images.sources import list_images

IMAGES = 5_000
# Maximum growth of the memory for each image. Keeping the crop of an image would take 12,000 bytes.
MAX_BYTES = 2_000


def measure_resident_memory() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_prediction_over_many_images_runs_in_constant_memory(quick_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (16, 16), "blue").save(folder / "00000.png")
    for number in range(1, IMAGES):
        os.link(folder / "00000.png", folder / f"{number:05d}.png")
    refs = list_images([folder])
    assert len(refs) == IMAGES
    samples: list[tuple[int, int]] = []

    def record_memory(predictions: Iterator[Prediction]) -> Iterator[Prediction]:
        done = 0
        for prediction in predictions:
            done += len(prediction.refs)
            samples.append((done, measure_resident_memory()))
            yield prediction

    loaded = Detector.load(quick_run)
    # Without mirroring, the test takes half the time and keeps the same data in memory.
    detector = Detector(loaded.psi, replace(loaded.card, flip_test=False), runtime=loaded.runtime)
    path = get_writer("csv")(record_memory(detector.predict(refs, 64)), detector.card, tmp_path)
    assert sum(1 for _ in path.open()) == 1 + 4 * IMAGES
    done, used = np.array(samples, dtype=float).T
    is_steady = done > IMAGES / 4  # At first, buffers and caches grow.
    slope = np.polyfit(done[is_steady], used[is_steady], 1)[0]
    print(f"{slope:.0f} bytes per image")
    assert slope < MAX_BYTES
