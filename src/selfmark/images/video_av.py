"""Videos read by PyAV.

A frame's number is the rank of its time among all times in the file. So numbers follow the order of showing
where frames are stored in another order, they stay right behind a frame that cannot be decoded, and a frame
far ahead can be reached by a leap to the key frame before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.images.decode import Pixels

_LEAP = 50  # frames not worth decoding one by one to reach the next wanted one
_TIMELESS = ("avi",)  # containers that say when frames are decoded, not when they are shown
_INDEXED = ("mov", "matroska")  # containers in which leaps are reliable


@dataclass(frozen=True)
class _Index:
    """Where the frames of a file are, from one look at its packets.

    frames: how many there should be
    times:  [found] int64, ascending; units of the stream; empty where packets have none or share some
    keys:   [keys] int64, ranks of key frames, ascending
    rate:   frames per second on average, 0 where not known
    unit:   seconds of one unit of time
    size:   width and height as stored
    """

    frames: int
    times: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    rate: float
    unit: float
    size: tuple[int, int]


def probe_video(path: Path) -> tuple[int, float, tuple[int, int], npt.NDArray[np.float64]]:
    """Frames, rate, size and times. What the header promises beyond the end of the file is counted too."""
    index = _indexed(path)
    first = next(
        read_frames(path, range(min(index.frames, 1000))), None
    )  # the header knows nothing of turning
    if first is None:
        return 0, index.rate, index.size, np.zeros(0)
    size = (first[1].shape[1], first[1].shape[0])
    seconds = np.asarray((index.times - index.times[:1]) * index.unit, dtype=np.float64)
    beyond = np.arange(1, index.frames - len(seconds) + 1) / (index.rate or 1.0)
    if len(seconds):
        seconds = np.concatenate([seconds, seconds[-1] + beyond])
    else:
        seconds = np.arange(index.frames) / (index.rate or 1.0)
    return index.frames, index.rate, size, seconds


def read_frames(path: Path, frames: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
    """As `video.read_frames`."""
    from av.video.reformatter import VideoReformatter

    index = _indexed(path)
    left = sorted(frame for frame in set(frames) if 0 <= frame < index.frames)
    wanted = iter(left)
    target = next(wanted, None)
    with _opened(path) as container:
        stream = container.streams.best("video")
        stream.thread_type = "AUTO"
        converter = VideoReformatter()
        leaps = len(index.times) > 0 and any(name in container.format.name for name in _INDEXED)
        here = -1
        while target is not None:
            start = _key_before(index, target) if leaps else 0
            leapt = start > here + _LEAP
            if leapt:
                if here < 0:  # the first packet may say how to decode all the others
                    next(_numbered(container, stream, index, here), None)
                container.seek(int(index.times[start]), stream=stream)
            for number, frame in _numbered(container, stream, index, here):
                if leapt and number != start:  # not a place to begin at, or not where the index has it
                    leaps, here = False, -1
                    container.seek(int(index.times[0]), stream=stream)
                    break
                here, leapt = number, False
                while target is not None and target < here:  # could not be decoded
                    target = next(wanted, None)
                if target == here:
                    # One converter for all frames: making one for each takes longer than decoding.
                    yield here, _upright(converter.reformat(frame, format="rgb24").to_ndarray(), frame)
                    target = next(wanted, None)
                if target is None or (leaps and _key_before(index, target) > here + _LEAP):
                    break
            else:
                return


def _numbered(container: Any, stream: Any, index: _Index, here: int) -> Iterator[tuple[int, Any]]:
    """Frames as they are decoded, with their numbers; damaged ones are left out, but counted."""
    import av

    number = here
    for packet in itertools.chain(_packets(container, stream), [None]):  # None: what the decoder still holds
        try:
            decoded = stream.decode(packet)
        except av.FFmpegError:
            continue
        for frame in decoded:
            number = _number(index, frame, number)
            if not frame.is_corrupt:
                yield number, frame


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """Compressed frames up to the end of the file, or to where it cannot be followed any more."""
    import av

    try:
        yield from (packet for packet in container.demux(stream) if packet.size)
    except av.FFmpegError:
        return


def _number(index: _Index, frame: Any, before: int) -> int:
    """The rank of a frame's time; where times say nothing, one more than the frame before."""
    if frame.pts is not None and len(index.times):
        rank = int(np.searchsorted(index.times, frame.pts))
        if rank < len(index.times) and index.times[rank] == frame.pts:
            return rank
    return before + 1


def _key_before(index: _Index, frame: int) -> int:
    rank = int(np.searchsorted(index.keys, frame, side="right")) - 1
    return int(index.keys[rank]) if rank >= 0 else 0


def _upright(rgb: Any, frame: Any) -> Pixels:
    """Pixels turned and mirrored as the frame's display matrix says (phones film on their side)."""
    pixels: Pixels = rgb
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return pixels
    across, down = np.frombuffer(matrix, np.int32).reshape(3, 3)[:2, :2].astype(np.float64)
    # The two rows say where the picture's right and down go to, as (right, down) on the display.
    if abs(across[1]) > abs(across[0]):
        pixels = pixels.swapaxes(0, 1)
        across, down = down, across
    if across[0] < 0:
        pixels = pixels[:, ::-1]
    if down[1] < 0:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


# --- files -----------------------------------------------------------------------------------------


def _indexed(path: Path) -> _Index:
    state = path.stat() if path.exists() else None
    return _index(path, state.st_mtime_ns if state else 0, state.st_size if state else 0)


@lru_cache(maxsize=16)
def _index(path: Path, changed: int, size: int) -> _Index:
    """Remembered until the file changes."""
    times: list[int | None] = []
    keys: list[int | None] = []
    discarded = 0
    with _opened(path) as container:
        stream = container.streams.best("video")
        for packet in _packets(container, stream):
            if packet.is_discard:  # an edit list cuts it off
                discarded += 1
                continue
            times.append(packet.pts)
            if packet.is_keyframe:
                keys.append(packet.pts)
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        unit = float(stream.time_base or 0)
        if "mov" in container.format.name:  # has an exact table of its frames
            stated = stream.frames - discarded
        else:
            stated = len(times) + _missing(container, stream, times)
        ordered = container.format.name not in _TIMELESS
        shape = (stream.codec_context.width, stream.codec_context.height)
    known = [time for time in times if time is not None]
    ranked = np.array(sorted(known), dtype=np.int64)
    if not ordered or len(known) < len(times) or (np.diff(ranked) == 0).any():
        ranked, keys = ranked[:0], []
    ranks = np.searchsorted(ranked, np.array(sorted(key for key in keys if key is not None), dtype=np.int64))
    return _Index(max(stated, len(times)), ranked, ranks, rate, unit, shape)


def _missing(container: Any, stream: Any, times: Sequence[int | None]) -> int:
    """About how many frames a file lacks at its end, by the length its header states."""
    last = max((time for time in times if time is not None), default=None)
    if last is None:
        return 0
    # Without the index at its end, an AVI file is as long as what was found; its header counts units of time.
    length = (stream.frames if container.format.name == "avi" else 0) or stream.duration
    if length is not None:
        seconds = (length + (stream.start_time or 0) - last) * float(stream.time_base)
    elif len(container.streams) == 1 and container.duration is not None:  # else another stream may be longer
        seconds = (container.duration + container.start_time) / 1e6 - last * float(stream.time_base)
    else:
        return 0
    # The last frame may be shown for long, so less than a second says nothing.
    return round(seconds * float(stream.average_rate or 0)) - 1 if seconds > 1 else 0


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import av

    try:
        container = av.open(str(path))
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as a video; convert it, for example to MP4 (H.264)"
        ) from error
    with container:
        if not container.streams.video:
            raise InputError(f"{path} holds no video; see that the path is right")
        yield container
