"""Check the tables in the header of an MP4 or QuickTime file before a library allocates memory for them.

A file consists of nested boxes: 4 bytes of length, 4 bytes of type, then the content. A few bytes in a table
can claim any number of samples (frames or pieces of sound), and ffmpeg allocates memory for each of them when
it opens the file. A real sample takes at least one byte of the file, and a real frame at least
`input_files.MIN_FRAME_BYTES`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.images.input_files import check_frame_count

# Types of boxes that a file may start with, and of boxes that contain other boxes.
_FIRST_BOXES = (b"ftyp", b"styp", b"moov", b"moof", b"mdat", b"free", b"skip", b"wide", b"pnot", b"uuid")
_CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"edts")
_MAX_DEPTH = 16  # levels of nested boxes; the tables are 5 levels below the outermost boxes
_MAX_BOXES = 5_000_000
_TRUN_FIELDS = 0x0F00  # flags of the fields that a fragment stores for each sample


class _Box(NamedTuple):
    kind: bytes
    start: int  # position of the content
    stop: int


def check_mp4_header(path: Path) -> None:
    """Raise if the tables of an MP4 or QuickTime file claim more samples than the file can contain.

    Files of other formats and damaged files pass this check; opening them raises an error later.

    Raises:
        InputError: if a table claims too many samples, or if the header is compressed.
    """
    try:
        with open(path, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if handle.read(8)[4:] in _FIRST_BOXES:
                _check_samples(handle, size, path)
    except (OSError, struct.error):
        return


def is_mirrored(path: Path) -> bool:
    """Return True if a video track of an MP4 or QuickTime file is mirrored for display.

    Files of other formats and damaged files count as not mirrored.
    """
    try:
        with open(path, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if handle.read(8)[4:] not in _FIRST_BOXES:
                return False
            matrix = np.eye(3)
            for number, box in enumerate(_walk(handle, 0, size, _MAX_DEPTH)):
                if number > _MAX_BOXES:
                    return False
                if box.kind == b"tkhd":
                    matrix = _read_matrix(handle, box)
                elif box.kind == b"hdlr" and _read(handle, box.start + 8, 4) == b"vide":
                    return bool(np.linalg.det(matrix[:2, :2]) < 0)
    except (OSError, struct.error):
        pass
    return False


def _read_matrix(handle: BinaryIO, box: _Box) -> npt.NDArray[np.float64]:
    """Return the matrix [3, 3] that places a track on the display, from the header of the track."""
    (version,) = _read(handle, box.start, 1) or b"\0"
    values = struct.unpack(">9i", _read(handle, box.start + (52 if version == 1 else 40), 36))
    return np.array(values, np.float64).reshape(3, 3)


def _check_samples(handle: BinaryIO, size: int, path: Path) -> None:
    num_fragment_samples = 0
    is_video = False
    for number, box in enumerate(_walk(handle, 0, size, _MAX_DEPTH)):
        if number > _MAX_BOXES:
            raise InputError(f"{path} has more than {_MAX_BOXES:,} boxes; convert it to MP4 (H.264)")
        if box.kind == b"trak":
            is_video = False
        elif box.kind == b"hdlr":
            is_video = is_video or _read(handle, box.start + 8, 4) == b"vide"
        elif box.kind == b"cmov":
            raise InputError(f"{path} has a compressed header; convert it, for example to MP4 (H.264)")
        count = _count_samples(handle, box, size)
        if box.kind == b"trun":
            count = num_fragment_samples = num_fragment_samples + count
        if count > size or (is_video and box.kind != b"trun"):
            check_frame_count(path, count)


def _count_samples(handle: BinaryIO, box: _Box, size: int) -> int:
    """Return the number of samples that a box claims; 0 for boxes without a table.

    For tables that do not list samples, return the number of entries. If a table of samples claims more
    entries than its box has room for, return a number above `size` (the bytes of the file), so that the file
    is refused.
    """
    if box.kind == b"stsz":  # one size for all samples, or the size of each
        sample_size, count = struct.unpack(">II", _read(handle, box.start + 4, 8))
        return int(count if sample_size or 4 * count <= box.stop - box.start else count + size)
    if box.kind in (b"stts", b"ctts"):  # pairs of a number of samples and their duration or offset
        (entries,) = struct.unpack(">I", _read(handle, box.start + 4, 4))
        if 8 * entries > box.stop - box.start:
            return int(entries + size)
        table = _read(handle, box.start + 8, 8 * entries)
        # The file may end inside the table, so leave out an incomplete pair.
        table_counts = np.frombuffer(table[: len(table) // 8 * 8], ">u4")[::2]
        return int(table_counts.sum(dtype=np.uint64))
    if box.kind == b"trun":  # the samples of a fragment
        flags, count = struct.unpack(">II", _read(handle, box.start, 8))
        fields = bin(flags & _TRUN_FIELDS).count("1")
        return int(count if 4 * fields * count <= box.stop - box.start else count + size)
    if box.kind in (b"stco", b"co64", b"stsc", b"stss", b"stps", b"elst"):  # entries of 4 bytes or more
        (entries,) = struct.unpack(">I", _read(handle, box.start + 4, 4))
        return int(entries)
    return 0


def _walk(handle: BinaryIO, start: int, stop: int, depth: int) -> Iterator[_Box]:
    """Yield the boxes between two positions, and boxes inside them up to `depth` levels, in file order."""
    while start + 8 <= stop:
        length, kind = struct.unpack(">I4s", _read(handle, start, 8))
        content = start + 8
        if length == 1:
            (length,) = struct.unpack(">Q", _read(handle, content, 8))
            content += 8
        end = stop if length == 0 else min(start + length, stop)
        if end < content:  # damaged
            return
        yield _Box(kind, content, end)
        if kind in _CONTAINERS and depth > 0:
            yield from _walk(handle, content, end, depth - 1)
        start = end


def _read(handle: BinaryIO, position: int, length: int) -> bytes:
    handle.seek(position)
    return handle.read(length)
