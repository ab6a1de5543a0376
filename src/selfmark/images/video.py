"""Frames of a video, numbered in the order they are shown, whatever the codec.

PyAV reads them where it is installed (`pip install selfmark[video]`), else OpenCV, which every installation
has. PyAV is the better of the two: it knows when each frame is shown and keeps the numbers right behind a
damaged part. On sound videos both give the same frames.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.images import video_av, video_opencv
from selfmark.images.decode import Pixels


@dataclass(frozen=True)
class VideoInfo:
    """What is known of a video before its frames are decoded.

    frames:  how many it should have; damaged ones and those cut off at its end count too
    rate:    frames per second on average, 0 where nobody knows
    size:    width and height of an upright frame
    seconds: [frames] float64, when each is shown, counted from the first
    """

    frames: int
    rate: float
    size: tuple[int, int]
    seconds: npt.NDArray[np.float64]


def probe_video(path: Path) -> VideoInfo:
    """Count a video's frames and find out when they are shown; none of them is decoded for that."""
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return _probe_video(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _probe_video(path: Path, changed: int, size: int) -> VideoInfo:
    """Remembered until the file changes: counting reads all of it."""
    video: VideoInfo = VideoInfo(*video_reader().probe_video(path))
    if video.frames == 0:
        raise InputError(f"{path} holds no frames that can be read; convert it, for example to MP4 (H.264)")
    return video


def count_frames(path: Path) -> int:
    """How many frames the video should have; `read_frames` yields fewer where it is damaged."""
    return probe_video(path).frames


def read_frames(path: Path, frames: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
    """Yield (frame, [H, W, 3] uint8 RGB, upright) for the wanted 0-based frames, ascending, each once.

    Frames that cannot be read are not yielded.
    """
    yield from video_reader().read_frames(path, frames)


def video_reader() -> ModuleType:
    """The module that reads videos on this machine."""
    return video_av if importlib.util.find_spec("av") is not None else video_opencv
