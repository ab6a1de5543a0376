"""Check what the headers of a MATLAB file claim before scipy reads it.

scipy allocates the arrays that the headers describe. A compressed file of half a megabyte can describe half a
gigabyte, and a header of a few bytes can describe an array of any size.

A file of the formats 5 to 7 consists of a header of 128 bytes and a list of elements. An element consists of
a tag (type and number of bytes) and data. A matrix is an element that contains other elements: flags,
dimensions, a name, and the data. The data of cell arrays and structs are again matrices. A variable may be
compressed as a whole.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = 128  # bytes
_INT32, _UINT32, _MATRIX, _COMPRESSED = 5, 6, 14, 15  # types of elements
_SPARSE = 5  # class of sparse matrices, whose dimensions say nothing about their size
_MAX_DEPTH = 20  # largest depth of nested matrices
_MAX_COMPRESSION = 100  # bytes of content per byte of the file; about 10 for coordinates
_SMALL = 16_000_000  # bytes; a file may always have this much content


class WrongSize(ValueError):
    """A file that claims more than it can contain."""


class _Element(NamedTuple):
    """The type and the data of an element."""

    type: int
    data: memoryview


def check_matlab_sizes(content: bytes) -> None:
    """Raise if a file claims more than it can contain.

    Args:
        content: The bytes of a file of the formats 5 to 7.

    Raises:
        WrongSize: If a length, or a number of elements, cannot be right.
    """
    order = "<" if content[126:128] == b"IM" else ">"
    limit = max(_SMALL, _MAX_COMPRESSION * len(content))
    for variable in _iterate_elements(memoryview(content)[_HEADER:], order, padded=False):
        data = variable.data
        if variable.type == _COMPRESSED:
            data = memoryview(_decompress(data, limit))
            limit -= len(data)
            for element in _iterate_elements(data, order):
                _check_matrix(element, order)
        else:
            _check_matrix(variable, order)


def _decompress(data: memoryview, limit: int) -> bytes:
    try:
        content = zlib.decompressobj().decompress(data, limit + 1)
    except zlib.error as error:
        raise WrongSize(f"a variable is damaged: {error}") from error
    if len(content) > limit:
        raise WrongSize("its compressed variables are far larger than the file")
    return content


def _check_matrix(element: _Element, order: str, depth: int = 0) -> None:
    """Raise if a matrix, or a matrix inside it, claims more elements than it has bytes."""
    if element.type != _MATRIX or not len(element.data):
        return
    if depth > _MAX_DEPTH:
        raise WrongSize("its variables are nested too deeply")
    for number, part in enumerate(_iterate_elements(element.data, order)):
        if number == 0:
            is_sparse = len(part.data) >= 4 and struct.unpack_from(f"{order}I", part.data)[0] & 255 == _SPARSE
        elif number == 1 and part.type in (_INT32, _UINT32) and not is_sparse:
            shape = struct.unpack(f"{order}{len(part.data) // 4}i", part.data[: len(part.data) // 4 * 4])
            if min(shape, default=0) < 0 or math.prod(shape) > len(element.data):
                raise WrongSize(
                    f"it claims an array of {' x '.join(map(str, shape))} that it does not contain"
                )
        _check_matrix(part, order, depth + 1)


def _iterate_elements(content: memoryview, order: str, padded: bool = True) -> Iterator[_Element]:
    """Yield the elements of a list; raise if one extends beyond the end.

    Args:
        content: The bytes of the list.
        order: Byte order, "<" or ">".
        padded: Whether elements begin at multiples of 8 bytes.
    """
    position = 0
    while position + 8 <= len(content):
        kind, size = struct.unpack_from(f"{order}II", content, position)
        if kind >> 16:  # the short form: number of bytes, type, and up to four bytes of data
            kind, size, start, end = kind & 0xFFFF, kind >> 16, position + 4, position + 8
            if size > 4:
                raise WrongSize("an element has an impossible size")
        else:
            start = position + 8
            end = start + size + (-size % 8 if padded else 0)
            if start + size > len(content):
                raise WrongSize("an element extends beyond the end")
        yield _Element(kind, content[start : start + size])
        position = end
