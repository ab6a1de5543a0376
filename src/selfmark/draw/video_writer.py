"""Write MP4 videos: as H.264 if PyAV can encode it, otherwise as MPEG-4."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np

from selfmark.errors import DiskError
from selfmark.images import video_av
from selfmark.images.decode import Pixels
from selfmark.images.video import video_reader
from selfmark.images.video_container import ffmpeg_path

_CODECS = ("libx264", "libopenh264", "mpeg4")  # the first available codec is used; mpeg4 always exists
_CODEC_OPTIONS = {"libx264": {"crf": "20", "preset": "veryfast"}, "mpeg4": {"qmax": "4"}}
_TICKS_PER_SECOND = 90_000  # the usual time base of video files


class VideoWriter(Protocol):
    """A video of even width and height that is written frame by frame."""

    def write(self, frame: Pixels, seconds: float) -> None:
        """Append a frame [H, W, 3] RGB, which is shown from the time `seconds` on."""

    def close(self) -> None:
        """Finish the file."""


def open_video_writer(path: Path, size: tuple[int, int], rate: float) -> VideoWriter:
    """Create an MP4 file.

    Args:
        path: File to write.
        size: Width and height of the frames in pixels; both even.
        rate: Approximate number of frames per second.
    """
    # PyAV is installed if and only if videos are read with it.
    return _PyAVWriter(path, size, rate) if video_reader() is video_av else _OpenCVWriter(path, size, rate)


class _PyAVWriter:
    """A writer that shows each frame at its given time, even if the frame rate varies.

    H.264 rounds times to 1/90,000 s. MPEG-4 rounds them to multiples of the average frame duration.
    """

    def __init__(self, path: Path, size: tuple[int, int], rate: float) -> None:
        import av

        codec = next(name for name in _CODECS if name in av.codecs_available)
        self._av: Any = av
        # The index goes to the front of the file, so that playback can start before all of it is loaded.
        self._file: Any = av.open(ffmpeg_path(path), "w", options={"movflags": "faststart"})
        nominal_rate = Fraction(rate).limit_denominator(1001)
        stream: Any = self._file.add_stream(codec, rate=nominal_rate, options=_CODEC_OPTIONS.get(codec, {}))
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        # MPEG-4 cannot express times finer than 1/65535 s.
        self._time_base = Fraction(1, _TICKS_PER_SECOND) if codec != "mpeg4" else 1 / nominal_rate
        stream.codec_context.time_base = self._time_base
        self._stream = stream
        self._last_tick = -1
        self._has_failed = False

    def write(self, frame: Pixels, seconds: float) -> None:
        picture = self._av.VideoFrame.from_ndarray(frame, format="rgb24")
        self._last_tick = max(self._last_tick + 1, round(seconds / self._time_base))
        picture.pts, picture.time_base = self._last_tick, self._time_base
        self._mux(self._stream.encode(picture))

    def close(self) -> None:
        if not self._has_failed:
            self._mux(self._stream.encode(None))
        self._file.close()

    def _mux(self, packets: Any) -> None:
        try:
            self._file.mux(packets)
        except OSError:
            self._has_failed = True  # If the header could not be written, FFmpeg crashes at the next packet.
            raise


class _OpenCVWriter:
    """A writer with a constant frame rate."""

    def __init__(self, path: Path, size: tuple[int, int], rate: float) -> None:
        self._writer = cv2.VideoWriter(ffmpeg_path(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, size)
        if not self._writer.isOpened():
            raise DiskError(f"cannot write the video {path}; check that its folder is writable")

    def write(self, frame: Pixels, seconds: float) -> None:
        self._writer.write(np.asarray(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)))

    def close(self) -> None:
        self._writer.release()
