"""Test exports and videos whose writing fails, for example because the disk is full.

The error is one sentence, and no file is left.
"""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from selfmark.draw import labeled_video, video_writer
from selfmark.draw.labeled_video import draw_videos
from selfmark.errors import InputError
from selfmark.export import FORMATS, hdf5_files, nwb, sleap
from selfmark.export.hdf5_files import save_hdf5
from selfmark.export.output_files import output_file
from selfmark.image_ref import ImageRef
from tests.export.fakes import CARD, make_predictions

OBJECTS = 1500


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Mount a file system of 64 KiB, which is too small for what the tests write."""
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=100", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs permission to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def _invented_videos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invent the number of frames and the times of videos that do not exist."""
    for module in (sleap, nwb):
        monkeypatch.setattr(module, "count_frames", lambda path: OBJECTS)
    info = SimpleNamespace(rate=25.0, seconds=np.arange(OBJECTS) / 25, frames=OBJECTS)
    monkeypatch.setattr(nwb, "probe_video", lambda path: info)


@pytest.mark.usefixtures("_invented_videos")
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_no_format_leaves_a_file_on_a_full_disk(name: str, full_disk: Path) -> None:
    uses_images = name in ("ultralytics", "label-studio", "lightning-pose")
    refs = [
        (ImageRef(Path(f"set/{i}.jpg")) if uses_images else ImageRef(Path("x.mp4"), i), (320, 200))
        for i in range(OBJECTS)
    ]
    (full_disk / "old.txt").write_text("old")
    with pytest.raises((InputError, OSError)) as caught:
        FORMATS[name](make_predictions(refs, 500), CARD, full_disk)
    message = str(caught.value)
    assert "No space left on device" in message
    assert "\n" not in message
    assert [path.name for path in full_disk.iterdir()] == ["old.txt"]


@pytest.mark.parametrize("writer", ["PyAV", "OpenCV"])
def test_no_labeled_video_is_left_on_a_full_disk(
    writer: str, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, frames = (64, 64), 60
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    info = SimpleNamespace(rate=25.0, seconds=np.arange(frames) / 25, frames=frames)
    probe_video = labeled_video.probe_video
    clip = Path("clip.mp4")
    monkeypatch.setattr(
        labeled_video, "probe_video", lambda path: info if path == clip else probe_video(path)
    )
    monkeypatch.setattr(labeled_video, "read_frames", lambda path, numbers: ((i, pixels) for i in numbers))
    if writer == "OpenCV":
        monkeypatch.setattr(labeled_video, "open_video_writer", video_writer._OpenCVWriter)
    refs = [ImageRef(clip, frame) for frame in range(frames)]
    predictions = make_predictions([(ref, size) for ref in refs], 10)
    with (
        pytest.raises((InputError, OSError)) as caught,
        closing(draw_videos(predictions, refs, replace(CARD, trust=()), full_disk, 1, 0.0)) as drawn,
    ):
        list(drawn)
    assert "\n" not in str(caught.value)
    assert not list(full_disk.glob("*.mp4"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_video_on_a_full_disk_raises_an_error_and_does_not_crash(tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / "clip.mp4").symlink_to("/dev/full")
    writer = video_writer._PyAVWriter(tmp_path / "clip.mp4", (64, 64), 25.0)
    pixels = np.zeros((64, 64, 3), np.uint8)

    def write() -> None:
        for frame in range(200):
            writer.write(pixels, frame / 25)

    with pytest.raises(OSError, match="No space left on device"):
        write()
    writer.close()


def test_a_crash_of_the_hdf5_library_and_an_unreadable_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="crashed \\(SIGKILL\\)"):
        save_hdf5(tmp_path / "a.h5", lambda path: os.kill(os.getpid(), 9))
    with pytest.raises(OSError, match="cannot read it back"):
        save_hdf5(tmp_path / "a.h5", lambda path: path.write_text("not HDF5") and None)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        save_hdf5(tmp_path / "a.h5", lambda path: 1 / 0 and None)


def test_an_operating_system_error_inside_an_hdf5_error_is_reported(tmp_path: Path) -> None:
    """h5py raises a RuntimeError if it cannot write the rest of a file when it closes the file."""

    def fail(path: Path) -> None:
        raise RuntimeError(f"Can't decrement id ref count (errno = {errno.EFBIG}, error message = '...')")

    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        save_hdf5(tmp_path / "a.h5", fail)


_SAVE_IMAGES = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from selfmark.export.frame_files import save_image

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
for path in sys.argv[1:]:
    try:
        save_image(pixels, Path(path))
        print("saved")
    except OSError as error:
        print(error.errno)
"""


def test_an_incompletely_written_picture_raises_an_error(tmp_path: Path) -> None:
    """Write pictures in a process in which files may have at most 2,000 bytes."""
    paths = [str(tmp_path / name) for name in ("a.jpg", "a.png")]
    command = [sys.executable, "-c", _SAVE_IMAGES, *paths]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert finished.stdout.split() == [str(errno.EFBIG)] * 2


def test_a_silent_child_process_is_stopped_and_not_reported_as_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5_files, "_MAX_SILENT_SECONDS", 0.1)
    target = tmp_path / "a.h5"
    with pytest.raises(InputError) as caught, output_file(target) as temporary:
        save_hdf5(temporary, lambda path: time.sleep(60))
    assert str(caught.value) == (
        f"cannot write {target}: writing made no progress for 0.1 seconds and was stopped"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the CPU times of processes")
def test_a_child_process_that_computes_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5_files, "_MAX_SILENT_SECONDS", 0.6)

    def save(path: Path) -> None:
        while time.process_time() < 1.3:  # the CPU time of a new child starts at 0
            pass
        _save_number(path)

    save_hdf5(tmp_path / "a.h5", save)


def test_a_child_process_frees_no_object_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object may wait for its threads when it is freed, but a child process lacks these threads."""
    parent = os.getpid()

    class Decoder:
        def __init__(self) -> None:
            self.cycle = self  # only the garbage collector can free it

        def __del__(self) -> None:
            if os.getpid() != parent:
                time.sleep(60)

    monkeypatch.setattr(hdf5_files, "_MAX_SILENT_SECONDS", 0.3)
    Decoder()

    def save(path: Path) -> None:
        gc.collect()
        _save_number(path)

    save_hdf5(tmp_path / "a.h5", save)
    assert gc.isenabled()


def _save_number(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["number"] = 1
