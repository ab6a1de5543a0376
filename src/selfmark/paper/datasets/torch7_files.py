"""Tensors in the binary files of Torch 7 (.t7), which nothing of today reads.

A file is one object: a number that says what kind it is, for a tensor 4, then its index among the file's
objects, a version, the name of its class, how it lies in its storage, and the storage as another such object.
Only tensors of numbers are read; whatever else a file holds is refused, nothing of it is run.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError

_TORCH = 4  # the kind of object that has a class of Torch's
_DTYPES = {"Double": "<f8", "Float": "<f4", "Long": "<i8", "Int": "<i4", "Short": "<i2", "Byte": "u1"}
_DIMENSIONS = 8  # more no one writes; keeps a damaged file from asking for memory


def read_tensor(path: Path) -> npt.NDArray[np.float64]:
    """The tensor that a .t7 file consists of."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _Reader(content).tensor()
    except (struct.error, ValueError) as error:
        raise InputError(f"{path} is not a tensor of Torch 7: {error}") from error


class _Reader:
    """Walks through the bytes; ValueError or struct.error where they are not what was expected."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def tensor(self) -> npt.NDArray[np.float64]:
        kind = self._class("Tensor")
        dimensions = self._integers("<i", 1)[0]
        if not 1 <= dimensions <= _DIMENSIONS:
            raise ValueError(f"it has {dimensions} dimensions")
        sizes = self._integers("<q", dimensions)
        strides = self._integers("<q", dimensions)
        first = self._integers("<q", 1)[0] - 1  # Torch counts from 1
        if self._class("Storage") != kind:
            raise ValueError("its storage is of another type")
        values = self._values(kind)
        if min(sizes) < 1 or min(strides) < 0 or math.prod(sizes) > len(values):
            raise ValueError(f"its size is {sizes}")
        last = first + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if first < 0 or last >= len(values):
            raise ValueError("it reaches beyond its storage")
        offsets = np.array(first)
        for size, stride in zip(sizes, strides, strict=True):
            offsets = offsets[..., None] + np.arange(size) * stride
        tensor: npt.NDArray[np.float64] = values[offsets].astype(np.float64)
        return tensor

    def _class(self, wanted: str) -> str:
        """The type of numbers of the tensor or storage that begins here."""
        if self._integers("<i", 1)[0] != _TORCH:
            raise ValueError(f"no {wanted} begins where one should")
        self._integers("<i", 1)  # its index among the file's objects
        name = self._string()
        if name.startswith("V "):  # files before version 1 have the name only
            name = self._string()
        kind = name.removeprefix("torch.").removesuffix(wanted)
        if name != f"torch.{kind}{wanted}" or kind not in _DTYPES:
            raise ValueError(f"it holds '{name[:40]}'")
        return kind

    def _values(self, kind: str) -> npt.NDArray[np.number]:
        count = self._integers("<q", 1)[0]
        dtype = np.dtype(_DTYPES[kind])
        left = len(self._content) - self._at
        if not 0 <= count * dtype.itemsize <= left:
            raise ValueError(f"it ends after {left} of {count * dtype.itemsize} bytes")
        return np.frombuffer(self._content, dtype, count, self._at)

    def _string(self) -> str:
        length = self._integers("<i", 1)[0]
        if not 0 <= length <= len(self._content) - self._at:
            raise ValueError("a name in it has no end")
        text = self._content[self._at : self._at + length]
        self._at += length
        return text.decode("ascii", errors="replace")

    def _integers(self, code: str, count: int) -> list[int]:
        size = struct.calcsize(code)
        if self._at + count * size > len(self._content):
            raise ValueError("it ends too early")
        values = [struct.unpack_from(code, self._content, self._at + i * size)[0] for i in range(count)]
        self._at += count * size
        return values
