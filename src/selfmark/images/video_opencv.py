"""Videos read by OpenCV.

Seeking by frame number is off by some frames in many files (variable frame rate, sparse key frames), so
frames are always counted from the start: unwanted ones are grabbed and thrown away.
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

# Damaged videos make ffmpeg and OpenCV write pages to the terminal; what matters is said by our own errors.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


_COUNTED = (
    ".mp4",
    ".mov",
    ".m4v",
    ".avi",
)  # whose headers count frames; of others OpenCV's number is a guess


def probe_video(path: Path) -> tuple[int, float, tuple[int, int], npt.NDArray[np.float64]]:
    """Frames, rate, size and times. Where the header has no number of frames, they are counted."""
    with _opened(path) as capture:
        rate = float(capture.get(cv2.CAP_PROP_FPS))
        rate = rate if 0 < rate < float("inf") else 0.0
        frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        found, first = capture.read()
        size = (first.shape[1], first.shape[0]) if found else (0, 0)
        if frames <= 0 or path.suffix.lower() not in _COUNTED:
            frames = int(found)
            while capture.grab():
                frames += 1
    return (frames if found else 0), rate, size, np.arange(frames if found else 0) / (rate or 1.0)


def read_frames(path: Path, frames: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
    """As `video.read_frames`. Behind a damaged frame OpenCV stops."""
    wanted = set(frames)
    with _opened(path) as capture:
        for frame in range(max(wanted, default=-1) + 1):
            if not capture.grab():
                return
            if frame in wanted:
                found, image = capture.retrieve()
                if found:
                    yield frame, np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), dtype=np.uint8)


@contextmanager
def _opened(path: Path) -> Iterator[cv2.VideoCapture]:
    capture = cv2.VideoCapture(str(path))
    try:
        if not capture.isOpened():
            raise InputError(
                f"{path} cannot be read as a video; pip install av, which reads more kinds, or convert it"
            )
        yield capture
    finally:
        capture.release()
