"""Read videos with PyAV.

A frame's number is the rank of its display time among all display times in the file. Numbers therefore follow
the display order even if frames are stored in another order, and they stay correct after a frame that cannot
be decoded. To reach a frame far ahead, the reader seeks to the key frame before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.images.decode import Pixels
from selfmark.images.input_files import check_frame_count
from selfmark.images.video_container import (
    ffmpeg_path,
    require_plausible_frame_size,
    require_video,
)
from selfmark.run.guarded_files import FileState, read_file_state

_MIN_SEEK = 50  # frames; a key frame at most this far ahead is reached by decoding instead of seeking
_WITHOUT_DISPLAY_TIMES = ("avi",)  # containers that store decoding times instead of display times
_SEEKABLE = ("mov", "matroska")  # containers in which seeking is reliable


@dataclass(frozen=True)
class _Index:
    """Positions of the frames of a file, from one pass over its packets.

    frames: expected number of frames
    times:  [stored] int64, ascending display times in stream units; empty if the container stores none, or if
            any time is unknown or repeated
    keys:   [keys] int64, numbers of the key frames, ascending; empty if `times` is empty
    rate:   average number of frames per second; 0 if unknown
    unit:   length of one unit of time, seconds
    size:   width and height as stored, pixels
    """

    frames: int
    times: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    rate: float
    unit: float
    size: tuple[int, int]


def probe_video(path: Path) -> tuple[int, float, tuple[int, int], npt.NDArray[np.float64]]:
    """Return the fields of `video.VideoInfo`; the number of frames includes those missing at the end."""
    index = _load_index(path)
    # Decode a frame to get the upright size, because the header does not say how frames are rotated. The
    # first frames may be damaged, so up to 1,000 frames are tried.
    first = next(read_frames(path, range(min(index.frames, 1000))), None)
    if first is None:
        return 0, index.rate, index.size, np.zeros(0)
    size = (first[1].shape[1], first[1].shape[0])
    seconds = np.asarray((index.times - index.times[:1]) * index.unit, dtype=np.float64)
    # Frames that are missing at the end of the file have no time; assume the average frame rate for them.
    missing_seconds = np.arange(1, index.frames - len(seconds) + 1) / (index.rate or 1.0)
    if len(seconds):
        seconds = np.concatenate([seconds, seconds[-1] + missing_seconds])
    else:
        seconds = np.arange(index.frames) / (index.rate or 1.0)
    return index.frames, index.rate, size, seconds


def read_frames(path: Path, frames: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
    """Yield frames as described in `video.read_frames`."""
    from av.video.reformatter import VideoReformatter

    index = _load_index(path)
    targets = iter(sorted(frame for frame in set(frames) if 0 <= frame < index.frames))
    target = next(targets, None)
    with _open(path) as container:
        stream = container.streams.best("video")
        stream.thread_type = "AUTO"
        converter = VideoReformatter()
        can_seek = len(index.times) > 0 and any(name in container.format.name for name in _SEEKABLE)
        current = -1  # number of the frame decoded last
        turn: _Turn | None = None
        # Each pass of this loop seeks to the key frame before the target, if the target is far ahead, and
        # decodes frames from there until the next target is far ahead again.
        while target is not None:
            start = _key_frame_before(index, target) if can_seek else 0
            has_jumped = start > current + _MIN_SEEK  # True until the frame after the jump is decoded
            if has_jumped:
                if current < 0:  # The first packet may contain parameters that all others need.
                    next(_decode(container, stream, index, current), None)
                container.seek(int(index.times[start]), stream=stream)
            for number, frame in _decode(container, stream, index, current):
                if has_jumped and number != start:  # The index is wrong, so read the file from its start.
                    can_seek, current = False, -1
                    container.seek(int(index.times[0]), stream=stream)
                    break
                current, has_jumped = number, False
                while target is not None and target < current:  # This target could not be decoded.
                    target = next(targets, None)
                if target == current:
                    # Reuse the converter, because creating one takes longer than decoding a frame.
                    rgb = converter.reformat(frame, format="rgb24").to_ndarray()
                    # Read the display matrix of the first frame only; it is the same in the whole file.
                    # Once the matrix of a frame is read, only the garbage collector frees the frame.
                    if turn is None:
                        turn = _read_turn(frame)
                    yield current, _rotate_upright(rgb, turn)
                    target = next(targets, None)
                if target is None or (can_seek and _key_frame_before(index, target) > current + _MIN_SEEK):
                    break
            else:
                return  # The file ended before the remaining targets.


def _decode(container: Any, stream: Any, index: _Index, previous_number: int) -> Iterator[tuple[int, Any]]:
    """Decode frames and yield them with their numbers; damaged frames are counted, but not yielded.

    `previous_number` is the number of the frame decoded last; -1 at the start.
    """
    import av

    number = previous_number
    for packet in itertools.chain(_packets(container, stream), [None]):  # None flushes the decoder
        try:
            decoded = stream.decode(packet)
        except av.FFmpegError:
            continue
        for frame in decoded:
            number = _frame_number(index, frame, number)
            if not frame.is_corrupt:
                yield number, frame


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """Yield packets up to the end of the file or up to the first packet that cannot be read."""
    import av

    try:
        yield from (packet for packet in container.demux(stream) if packet.size)
    except av.FFmpegError:
        return


def _frame_number(index: _Index, frame: Any, previous_number: int) -> int:
    """Return the rank of a frame's display time, or `previous_number` + 1 if its time is unknown."""
    if frame.pts is not None and len(index.times):
        rank = int(np.searchsorted(index.times, frame.pts))
        if rank < len(index.times) and index.times[rank] == frame.pts:
            return rank
    return previous_number + 1


def _key_frame_before(index: _Index, frame: int) -> int:
    """Return the number of the last key frame at or before a frame; 0 if none is known."""
    position = int(np.searchsorted(index.keys, frame, side="right")) - 1
    return int(index.keys[position]) if position >= 0 else 0


class _Turn(NamedTuple):
    """How decoded pixels are turned for display: first transpose, then mirror each axis."""

    is_transposed: bool = False
    mirrors_x: bool = False
    mirrors_y: bool = False


def _read_turn(frame: Any) -> _Turn:
    """Read a frame's display matrix, which phones use for sideways recordings."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return _Turn()
    # The two rows are the directions of the image's x and y axes on the display, as (right, down).
    x_axis, y_axis = np.frombuffer(matrix, np.int32).reshape(3, 3)[:2, :2].astype(np.float64)
    is_transposed = bool(abs(x_axis[1]) > abs(x_axis[0]))
    if is_transposed:
        x_axis, y_axis = y_axis, x_axis
    return _Turn(is_transposed, bool(x_axis[0] < 0), bool(y_axis[1] < 0))


def _rotate_upright(rgb: Any, turn: _Turn) -> Pixels:
    pixels: Pixels = rgb
    if turn.is_transposed:
        pixels = pixels.swapaxes(0, 1)
    if turn.mirrors_x:
        pixels = pixels[:, ::-1]
    if turn.mirrors_y:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


# --- files -----------------------------------------------------------------------------------------


def _load_index(path: Path) -> _Index:
    return _build_index(path, read_file_state(path))


@lru_cache(maxsize=16)
def _build_index(path: Path, state: FileState | None) -> _Index:
    """Build the index from all packets of a file; the result is cached until the file changes."""
    times: list[int | None] = []
    keys: list[int | None] = []
    num_discarded = 0
    with _open(path) as container:
        stream = container.streams.best("video")
        for packet in _packets(container, stream):
            if packet.is_discard:  # The file's edit list removes this frame.
                num_discarded += 1
                continue
            times.append(packet.pts)
            if packet.is_keyframe:
                keys.append(packet.pts)
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        unit = float(stream.time_base or 0)
        if "mov" in container.format.name:  # the header of MP4 and MOV has an exact table of all frames
            expected = stream.frames - num_discarded
        else:
            expected = len(times) + _estimate_missing(container, stream, times)
        has_display_times = container.format.name not in _WITHOUT_DISPLAY_TIMES
        frame_size = (stream.codec_context.width, stream.codec_context.height)
    expected = max(expected, len(times))
    check_frame_count(path, expected)
    known = [time for time in times if time is not None]
    display_times = np.array(sorted(known), dtype=np.int64)
    if not has_display_times or len(known) < len(times) or (np.diff(display_times) == 0).any():
        display_times, keys = display_times[:0], []
    key_times = np.array(sorted(key for key in keys if key is not None), dtype=np.int64)
    key_numbers = np.searchsorted(display_times, key_times)
    return _Index(expected, display_times, key_numbers, rate, unit, frame_size)


def _estimate_missing(container: Any, stream: Any, times: Sequence[int | None]) -> int:
    """Estimate from the duration in the header how many frames are missing at the end of a file."""
    last = max((time for time in times if time is not None), default=None)
    if last is None:
        return 0
    # A truncated AVI file, which lacks the index at its end, reports only the duration of the frames that are
    # left. Its header gives the number of frames, which equals the full duration in units of the stream.
    length = (stream.frames if container.format.name == "avi" else 0) or stream.duration
    if length is not None:
        seconds = (length + (stream.start_time or 0) - last) * float(stream.time_base)
    # The duration of the container is that of its longest stream. Some programs write the time at which the
    # last frame ends instead, so a start after 0 is not added: it may already be part of this number.
    elif len(container.streams) == 1 and container.duration is not None:
        end = container.duration + min(container.start_time, 0)
        seconds = end / 1e6 - last * float(stream.time_base)
    else:
        return 0
    # The last frame may be displayed for longer than others, so a gap below one second does not show that
    # frames are missing.
    return round(seconds * float(stream.average_rate or 0)) - 1 if seconds > 1 else 0


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    import av

    require_video(path)
    try:
        container = av.open(ffmpeg_path(path), options={"protocol_whitelist": "file"})
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as a video; convert it, for example to MP4 (H.264)"
        ) from error
    with container:
        if not container.streams.video:
            raise InputError(f"{path} contains no video stream; check that it is the right file")
        stream: Any = container.streams.best("video")
        if stream is None or stream.codec_context is None:
            raise InputError(f"{path} has an unknown codec; convert it, for example to MP4 (H.264)")
        require_plausible_frame_size(path, stream.codec_context.width, stream.codec_context.height)
        yield container
