"""Test that processes give the same crops, messages and order as threads, even if a process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest

from selfmark.config import Images
from selfmark.image_ref import ImageRef
from selfmark.images import crop_readers, reading_process
from selfmark.images.store import ImageStore, iterate_crops, load_store

IMAGES = Images(size=24)
needs_processes = pytest.mark.skipif(
    not reading_process.can_start_processes(), reason="needs memfd_create, which Linux has"
)


@dataclass
class Processes:
    """A record of the processes that were started."""

    started: list[subprocess.Popen[bytes]]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """Make two processes read all images after the first four."""
    monkeypatch.setattr(crop_readers, "_TRIAL_IMAGES", 4)
    monkeypatch.setattr(crop_readers, "PREFETCH", 2)
    monkeypatch.setattr(crop_readers, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(crop_readers, "_MIN_CORES", 1)
    monkeypatch.setattr(crop_readers, "MAX_PROCESSES", 2)
    monkeypatch.setattr(crop_readers, "_CHUNK", 3)
    record, real_popen = Processes([]), subprocess.Popen

    def start(*arguments, **options):  # type: ignore[no-untyped-def]
        record.started.append(real_popen(*arguments, **options))
        return record.started[-1]

    monkeypatch.setattr(reading_process.subprocess, "Popen", start)
    return record


@pytest.fixture
def refs(tmp_path: Path) -> list[ImageRef]:
    """References to images of several kinds, and to files that cannot be read."""
    rng = np.random.default_rng(0)
    refs = []
    for number in range(24):
        path = tmp_path / f"{number:02}.{'jpg' if number % 2 else 'png'}"
        cv2.imwrite(str(path), rng.integers(0, 256, (30 + number, 200 - number, 3), dtype=np.uint8))
        if number % 5 == 4:
            path.write_bytes(path.read_bytes()[:60])
        boxes = [(3.5, 2.0, 11.0, 20.0), (500.0, 0.0, 5.0, 5.0), (0.0, 0.0, 9.0, 9.0)]
        refs += [ImageRef(path, box=box) for box in boxes] if number % 4 == 3 else [ImageRef(path)]
    # More boxes of one image than fit into the shared memory of a process.
    many_boxes = [(float(x), 0.0, 8.0, 8.0) for x in range(reading_process.CAPACITY + 3)]
    refs += [ImageRef(tmp_path / "00.png", box=box) for box in many_boxes]
    return [*refs, ImageRef(tmp_path / "missing.png"), *refs[10:20], ImageRef(tmp_path / "20.png")]


def _assert_equal(store: ImageStore, expected: ImageStore) -> None:
    assert store.refs == expected.refs
    assert store.skipped == expected.skipped
    for name in ("pixels", "sizes", "regions", "bounds", "video", "frame", "track"):
        np.testing.assert_array_equal(getattr(store, name), getattr(expected, name))


@pytest.fixture
def expected(refs: list[ImageRef]) -> ImageStore:
    """Read the images in threads; tests must request this fixture before `processes`."""
    return load_store(refs, IMAGES, 1.0, None)


@needs_processes
def test_processes_read_the_same_as_threads(
    refs: list[ImageRef], expected: ImageStore, processes: Processes
) -> None:
    assert {item.reason for item in expected.skipped} > {"the box is empty or outside the image"}
    _assert_equal(load_store(refs, IMAGES, 1.0, None), expected)
    assert [process.returncode for process in processes.started] == [0, 0]


@needs_processes
def test_images_of_a_killed_process_are_read_in_threads(
    refs: list[ImageRef], expected: ImageStore, processes: Processes
) -> None:
    def kill_processes(parts: Iterator[ImageStore]) -> Iterator[ImageStore]:
        for part in parts:
            for process in processes.started:
                process.send_signal(signal.SIGKILL)
            yield part

    parts = list(kill_processes(iterate_crops(refs, IMAGES, 1)))
    assert tuple(ref for part in parts for ref in part.refs) == expected.refs
    np.testing.assert_array_equal(np.concatenate([part.pixels for part in parts]), expected.pixels)
    assert {process.returncode for process in processes.started} == {-signal.SIGKILL}


@needs_processes
def test_processes_end_if_reading_stops_early_or_the_main_process_dies(
    refs: list[ImageRef], processes: Processes
) -> None:
    parts = iterate_crops(refs, IMAGES, 1)
    for _ in range(12):
        next(parts)
    assert processes.started
    for process in processes.started:
        process.send_signal(signal.SIGINT)  # Ctrl-C also reaches these processes, but they must ignore it
    parts.close()
    assert {process.returncode for process in processes.started} == {0}
    orphan = reading_process.ReadingProcess(IMAGES)
    orphan._connection.close()  # as when the main process is killed
    assert processes.started[-1].wait(20) == 0
    os.close(orphan._memory)


@needs_processes
def test_without_a_usable_python_program_images_are_read_in_threads(
    refs: list[ImageRef], expected: ImageStore, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_process.sys, "executable", "/nonexistent/python3")
    _assert_equal(load_store(refs, IMAGES, 1.0, None), expected)


def test_few_images_start_no_process(refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crop_readers, "ReadingProcess", None)  # calling it would raise
    load_store(refs, IMAGES, 1.0, None)
