"""Read .npy and .npz files; reject files whose headers claim larger arrays than the files contain."""

from __future__ import annotations

import math
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from selfmark.errors import InputError

MAX_COMPRESSION = 1_100
"""Largest number of array bytes per byte of the file; DEFLATE reaches at most 1,032."""


def load_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """Return a mapping from names to the arrays of a file; the array of an .npy file has an empty name.

    Raises:
        InputError: The file is damaged, contains Python objects, or claims larger arrays than it can hold.
    """
    try:
        size = path.stat().st_size
        # Pickled objects are rejected (allow_pickle=False), because they can execute code.
        with open(path, "rb") as handle:
            if handle.read(len(npy_format.MAGIC_PREFIX)) == npy_format.MAGIC_PREFIX:
                handle.seek(0)
                _check_header(handle, size)
                handle.seek(0)
                return {"": np.asarray(np.load(handle, allow_pickle=False))}
        with np.load(path, allow_pickle=False) as archive:
            for entry in archive.zip.infolist():
                if entry.file_size > size * MAX_COMPRESSION:
                    raise ValueError("an entry is longer than the file can hold")
                with archive.zip.open(entry) as content:
                    _check_header(content, entry.file_size)
            return dict(archive)
    except Exception as error:  # NumPy raises errors of every kind for damaged files.
        raise InputError(f"{path} is not a file of plain NumPy arrays, or it is damaged") from error


def _check_header(handle: IO[Any], size: int) -> None:
    """Raise a ValueError if the header of an array claims more than `size` bytes."""
    version = npy_format.read_magic(handle)
    read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, _, dtype = read_header(handle)
    if math.prod(shape) * max(dtype.itemsize, 1) > size:
        raise ValueError(f"its header claims an array of shape {shape}")
