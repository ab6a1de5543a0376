"""Read video frames, numbered in display order regardless of the codec.

PyAV is used if it is installed (`pip install selfmark[video]`), otherwise OpenCV, which is always installed.
PyAV is the better of the two: it gives the display time of each frame, and it numbers frames correctly after
a damaged part. Both return the same frames of intact videos; OpenCV refuses mirrored ones.
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
from selfmark.run.guarded_files import FileState, get_file_state


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video.

    frames:  expected number of frames, including damaged frames and frames missing at the end of the file
    rate:    average number of frames per second; 0 if unknown
    size:    width and height of an upright frame, pixels
    seconds: [frames] float64, display time of each frame, relative to the first
    """

    frames: int
    rate: float
    size: tuple[int, int]
    seconds: npt.NDArray[np.float64]


def probe_video(path: Path) -> VideoInfo:
    """Return the number of frames, the frame rate, and the size and the display times of the frames."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return _probe_video(path, get_file_state(status))


@lru_cache(maxsize=16)
def _probe_video(path: Path, state: FileState) -> VideoInfo:
    """Probe a video. The result is cached until the file changes, because counting frames reads the file."""
    video: VideoInfo = VideoInfo(*video_reader().probe_video(path))
    if video.frames == 0:
        raise InputError(f"{path} has no readable frames; convert it, for example to MP4 (H.264)")
    return video


def count_frames(path: Path) -> int:
    """Return the expected number of frames of a video; `read_frames` yields fewer if the file is damaged."""
    return probe_video(path).frames


def read_frames(path: Path, frames: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
    """Yield the given 0-based frames with their numbers, in ascending order, each once.

    Pixels are [H, W, 3] uint8 RGB and upright. Frames that cannot be read are not yielded.
    """
    yield from video_reader().read_frames(path, frames)


def video_reader() -> ModuleType:
    """Return the module that reads videos: `video_av` if PyAV is installed, otherwise `video_opencv`."""
    return video_av if importlib.util.find_spec("av") is not None else video_opencv
