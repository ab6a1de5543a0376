"""Read tensors from the binary files of Torch 7 (.t7), for which there is no maintained reader.

A tensor is stored as these parts, in order: the number 4, which stands for an object of a Torch class; the
index of the object in the file; a version; the name of the class; the number of dimensions; the sizes; the
strides; the first position in the storage; and the storage. The storage begins with the same first four
parts, followed by the number of values and the values. Only tensors of numbers are read. Anything else is an
error, and nothing in the file is executed.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError

_TORCH_OBJECT = 4  # number that stands for an object of a Torch class
_DTYPES = {"Double": "<f8", "Float": "<f4", "Long": "<i8", "Int": "<i4", "Short": "<i2", "Byte": "u1"}
_MAX_DIMENSIONS = 8  # damaged files may have a huge number here


def read_tensor(path: Path) -> npt.NDArray[np.float64]:
    """Read the tensor of a .t7 file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _Parser(content).read_tensor()
    except (struct.error, ValueError) as error:
        raise InputError(f"{path} does not contain a Torch 7 tensor: {error}") from error


class _Parser:
    """Parser of the bytes of a file; raises ValueError or struct.error if they are not as expected."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def read_tensor(self) -> npt.NDArray[np.float64]:
        """Read the tensor that begins at the current position."""
        number_type = self._read_class("Tensor")
        dimensions = self._read_integers("<i", 1)[0]
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"it has {dimensions} dimensions")
        sizes = self._read_integers("<q", dimensions)
        strides = self._read_integers("<q", dimensions)
        first = self._read_integers("<q", 1)[0] - 1  # Torch is 1-based.
        if self._read_class("Storage") != number_type:
            raise ValueError("its storage has another type")
        values = self._read_values(number_type)
        if min(sizes) < 1 or min(strides) < 0 or math.prod(sizes) > len(values):
            raise ValueError(
                f"its sizes {sizes} and strides {strides} do not fit the {len(values)} values in its storage"
            )
        last = first + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if first < 0 or last >= len(values):
            raise ValueError("it extends beyond its storage")
        offsets = np.array(first)
        for size, stride in zip(sizes, strides, strict=True):
            offsets = offsets[..., None] + np.arange(size) * stride
        tensor: npt.NDArray[np.float64] = values[offsets].astype(np.float64)
        return tensor

    def _read_class(self, expected: str) -> str:
        """Read the first four parts of a tensor or storage and return its type of numbers, e.g. "Double".

        Args:
            expected: "Tensor" or "Storage".
        """
        if self._read_integers("<i", 1)[0] != _TORCH_OBJECT:
            raise ValueError(f"expected a {expected.lower()}")
        self._read_integers("<i", 1)  # skip the index of the object
        name = self._read_string()
        if name.startswith("V "):  # This is the version; the name follows. Files before version 1 have none.
            name = self._read_string()
        number_type = name.removeprefix("torch.").removesuffix(expected)
        if name != f"torch.{number_type}{expected}" or number_type not in _DTYPES:
            raise ValueError(f"it contains '{name[:40]}'")
        return number_type

    def _read_values(self, number_type: str) -> npt.NDArray[np.number]:
        count = self._read_integers("<q", 1)[0]
        dtype = np.dtype(_DTYPES[number_type])
        remaining = len(self._content) - self._position
        if not 0 <= count * dtype.itemsize <= remaining:
            raise ValueError(
                f"it states {count} values of {dtype.itemsize} bytes, but {remaining} bytes are left"
            )
        return np.frombuffer(self._content, dtype, count, self._position)

    def _read_string(self) -> str:
        length = self._read_integers("<i", 1)[0]
        if not 0 <= length <= len(self._content) - self._position:
            raise ValueError("a name in it is incomplete")
        text = self._content[self._position : self._position + length]
        self._position += length
        return text.decode("ascii", errors="replace")

    def _read_integers(self, code: str, count: int) -> list[int]:
        size = struct.calcsize(code)
        if self._position + count * size > len(self._content):
            raise ValueError("it ends too early")
        values = [struct.unpack_from(code, self._content, self._position + i * size)[0] for i in range(count)]
        self._position += count * size
        return values
