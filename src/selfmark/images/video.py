"""Frames of a video, in order and frame-accurate.

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

from selfmark.errors import InputError
from selfmark.images.decode import Pixels

# Damaged videos make ffmpeg and OpenCV write pages to the terminal; what matters is said by our own errors.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


def count_frames(path: Path) -> int:
    """How many frames the video says it has; where it does not say, how many it has.

    The header may promise a few more frames than can be read; `read_frames` then yields fewer.
    """
    with _opened(path) as capture:
        stated = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        if stated > 0:
            return stated
        count = 0
        while capture.grab():
            count += 1
    if count == 0:
        raise InputError(f"{path} holds no frames that can be read; convert it, for example to MP4 (H.264)")
    return count


def read_frames(path: Path, frames: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
    """Yield (frame, [H, W, 3] uint8 RGB) for the wanted 0-based frames, ascending, each once.

    Frames beyond the last one that can be read are not yielded.
    """
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
            raise InputError(f"{path} cannot be read as a video; convert it, for example to MP4 (H.264)")
        yield capture
    finally:
        capture.release()
