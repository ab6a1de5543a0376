"""Read videos with OpenCV.

Seeking by frame number is off by a few frames in many files (variable frame rate, sparse key frames). This
reader therefore always counts frames from the start and discards those it does not need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.images.decode import Pixels
from selfmark.images.input_files import check_frame_count
from selfmark.images.mp4_header import is_mirrored
from selfmark.images.video_container import (
    ffmpeg_path,
    require_plausible_frame_size,
    require_video,
)

# For damaged videos, ffmpeg and OpenCV flood the terminal with messages; selfmark reports its own errors.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

# Files whose headers give the number of frames; for others, OpenCV's number is an estimate.
_SUFFIXES_WITH_FRAME_COUNT = (".mp4", ".mov", ".m4v", ".avi")


def probe_video(path: Path) -> tuple[int, float, tuple[int, int], npt.NDArray[np.float64]]:
    """Return the fields of `video.VideoInfo`; count the frames if the header does not give their number."""
    with _open(path) as capture:
        rate = float(capture.get(cv2.CAP_PROP_FPS))
        rate = rate if 0 < rate < float("inf") else 0.0
        frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        is_read, first = capture.read()
        size = (first.shape[1], first.shape[0]) if is_read else (0, 0)
        if frames <= 0 or path.suffix.lower() not in _SUFFIXES_WITH_FRAME_COUNT:
            frames = int(is_read)
            while capture.grab():
                frames += 1
    check_frame_count(path, frames)
    return (frames if is_read else 0), rate, size, np.arange(frames if is_read else 0) / (rate or 1.0)


def read_frames(path: Path, frames: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
    """Yield frames as described in `video.read_frames`; OpenCV stops at a damaged frame."""
    numbers = set(frames)
    with _open(path) as capture:
        for frame in range(max(numbers, default=-1) + 1):
            if not capture.grab():
                return
            if frame in numbers:
                is_read, image = capture.retrieve()
                if is_read:
                    yield frame, np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), dtype=np.uint8)


@contextmanager
def _open(path: Path) -> Iterator[cv2.VideoCapture]:
    require_video(path)
    if is_mirrored(path):
        raise InputError(f"{path} is mirrored, which OpenCV ignores: run 'pip install av' to read it")
    capture = cv2.VideoCapture(ffmpeg_path(path))
    try:
        if not capture.isOpened():
            raise InputError(
                f"{path} cannot be read as a video; run 'pip install av' to read more formats, or convert it"
            )
        width, height = (
            int(capture.get(key)) for key in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        )
        require_plausible_frame_size(path, width, height)
        yield capture
    finally:
        capture.release()
