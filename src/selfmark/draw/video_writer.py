"""Frames into an MP4 file that browsers play: H.264 where PyAV can write it, else MPEG-4."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np

from selfmark.errors import InputError
from selfmark.images import video_av
from selfmark.images.decode import Pixels
from selfmark.images.video import video_reader

_CODECS = (
    "libx264",
    "libopenh264",
    "mpeg4",
)  # the first that this PyAV can write; the last is in all of them
_QUALITY = {"libx264": {"crf": "20", "preset": "veryfast"}, "mpeg4": {"qmax": "4"}}
_TICKS = 90_000  # units of time in a second, as video files like to have


class VideoWriter(Protocol):
    """A video that grows frame by frame, of even width and height."""

    def write(self, frame: Pixels, seconds: float) -> None:
        """Add a frame [H, W, 3] RGB that is shown from this time on."""

    def close(self) -> None:
        """Finish the file."""


def open_video_writer(path: Path, size: tuple[int, int], rate: float) -> VideoWriter:
    """A new MP4 file for frames of this width and height, about `rate` of them a second."""
    return _AvSink(path, size, rate) if video_reader() is video_av else _OpenCVSink(path, size, rate)


class _AvSink:
    """Frames are shown when those of the source were, also where its rate varies."""

    def __init__(self, path: Path, size: tuple[int, int], rate: float) -> None:
        import av

        codec = next(name for name in _CODECS if name in av.codecs_available)
        self._av: Any = av
        # The table of contents goes to the front, so that a browser can start before it has all of the file.
        self._file: Any = av.open(str(path), "w", options={"movflags": "faststart"})
        nominal = Fraction(rate).limit_denominator(1001)
        stream: Any = self._file.add_stream(codec, rate=nominal, options=_QUALITY.get(codec, {}))
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        # MPEG-4 knows no finer time than 1/65535 s.
        self._unit = Fraction(1, _TICKS) if codec != "mpeg4" else 1 / nominal
        stream.codec_context.time_base = self._unit
        self._stream = stream
        self._last = -1

    def write(self, frame: Pixels, seconds: float) -> None:
        picture = self._av.VideoFrame.from_ndarray(frame, format="rgb24")
        self._last = max(self._last + 1, round(seconds / self._unit))
        picture.pts, picture.time_base = self._last, self._unit
        self._file.mux(self._stream.encode(picture))

    def close(self) -> None:
        self._file.mux(self._stream.encode(None))
        self._file.close()


class _OpenCVSink:
    """Frames are shown at a constant rate."""

    def __init__(self, path: Path, size: tuple[int, int], rate: float) -> None:
        self._writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, size)
        if not self._writer.isOpened():
            raise InputError(f"cannot write the video {path}; see that its folder can be written to")

    def write(self, frame: Pixels, seconds: float) -> None:
        self._writer.write(np.asarray(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)))

    def close(self) -> None:
        self._writer.release()
