"""Check what the headers of a MATLAB file claim before scipy reads it.

scipy allocates the arrays that the headers describe. A compressed file of half a megabyte can describe half a
gigabyte, and a header of a few bytes can describe an array of any size. scipy also reads the parts that the
flags of a matrix promise, such as an imaginary part, without noticing the end of the file: it crashes.

A file of the formats 5 to 7 consists of a header of 128 bytes and a list of elements. An element consists of
a tag (type and number of bytes) and data. A matrix is an element that contains other elements: flags,
dimensions, a name, and the parts that its class and its flags promise. The parts of cell arrays and structs
are again matrices. A variable may be compressed as a whole.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = 128  # bytes
_INT32, _UINT32, _MATRIX, _COMPRESSED = 5, 6, 14, 15  # types of elements
# Mapping from the types of numbers to their sizes in bytes, from int8 to uint64.
_NUMBER_SIZES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}
_TEXT_TYPES = {*_NUMBER_SIZES, 16, 17, 18}  # numbers, UTF-8, UTF-16 and UTF-32
# Classes of matrices. The dimensions of sparse matrices say nothing about their size.
_CELL, _STRUCT, _OBJECT, _TEXT, _SPARSE, _FUNCTION, _OPAQUE = 1, 2, 3, 4, 5, 16, 17
_NUMBERS = range(6, 16)  # classes of full matrices, from double to uint64
_COMPLEX = 0x800  # flag of matrices with an imaginary part
_SHAPE_SIZES = range(8, 132, 4)  # bytes; scipy has room for 2 to 32 dimensions
_MAX_DEPTH = 20  # largest depth of nested matrices
_MAX_COMPRESSION = 100  # bytes of content per byte of the file; about 10 for coordinates
_SMALL = 16_000_000  # bytes; a file may always have this much content


class WrongSize(ValueError):
    """A file that claims more than it contains, or a variable whose parts do not fit its flags."""


class _Element(NamedTuple):
    """The type and the data of an element."""

    type: int
    data: memoryview


def check_matlab_sizes(content: bytes) -> None:
    """Raise if a file claims more than it contains.

    Args:
        content: The bytes of a file of the formats 5 to 7.

    Raises:
        WrongSize: If a length, a number of elements, or the parts of a variable cannot be right.
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
    """Raise if a matrix, or a matrix inside it, has other parts or fewer elements than it promises.

    Unknown classes are refused, because nothing is known about their parts.
    """
    if element.type != _MATRIX:
        raise WrongSize(f"an element of type {element.type} is in the place of a matrix")
    if not len(element.data):
        return
    if depth > _MAX_DEPTH:
        raise WrongSize("its variables are nested too deeply")
    parts = _iterate_elements(element.data, order)
    kind, num_values = _read_flags(parts, order)
    if kind == _OPAQUE:  # It has three names and no dimensions.
        _skip_parts(parts, 3)
        num_matrices = 1
    else:
        shape = _read_shape(parts, order)
        count = math.prod(shape)
        if kind != _SPARSE and count > len(element.data):
            raise WrongSize(f"it claims an array of {' x '.join(map(str, shape))} that it does not contain")
        _skip_parts(parts, 1)  # the name
        num_matrices = _check_parts(parts, order, kind, count, num_values)
    for _ in range(num_matrices):
        _check_matrix(_take_part(parts), order, depth + 1)
    if next(parts, None) is not None:
        raise WrongSize("a variable has more parts than it should have")


def _check_parts(parts: Iterator[_Element], order: str, kind: int, count: int, num_values: int) -> int:
    """Check the parts between the name of a matrix and the matrices inside it.

    Args:
        parts: The parts that follow the name.
        order: Byte order.
        kind: Class of the matrix.
        count: Number of its elements.
        num_values: Number of lists of values: 2 for complex numbers.

    Returns:
        The number of matrices that must follow.
    """
    if kind in _NUMBERS:
        for _ in range(num_values):
            part = _take_part(parts)
            if part.type not in _NUMBER_SIZES or len(part.data) != count * _NUMBER_SIZES[part.type]:
                raise WrongSize(f"a variable does not have the {count} numbers that it claims")
    elif kind == _SPARSE:  # rows, starts of columns, values
        for _ in range(2 + num_values):
            if _take_part(parts).type not in _NUMBER_SIZES:
                raise WrongSize("a sparse matrix has parts that are not numbers")
    elif kind == _TEXT:
        if _take_part(parts).type not in _TEXT_TYPES:
            raise WrongSize("a text is stored as something else")
    elif kind in (_STRUCT, _OBJECT):
        if kind == _OBJECT:
            _skip_parts(parts, 1)  # the name of its class
        return count * _count_fields(parts, order)
    elif kind == _CELL:
        return count
    elif kind == _FUNCTION:
        return 1
    else:
        raise WrongSize(f"a variable has the unknown class {kind}")
    return 0


def _read_flags(parts: Iterator[_Element], order: str) -> tuple[int, int]:
    """Return the class of a matrix, and how many lists of values it has: 2 for complex numbers."""
    part = _take_part(parts)
    if part.type != _UINT32 or len(part.data) != 8:
        raise WrongSize("a variable has no flags")
    flags: int = struct.unpack_from(f"{order}I", part.data)[0]
    return flags & 255, 2 if flags & _COMPLEX else 1


def _read_shape(parts: Iterator[_Element], order: str) -> tuple[int, ...]:
    """Return the dimensions of a matrix."""
    part = _take_part(parts)
    if part.type not in (_INT32, _UINT32) or len(part.data) not in _SHAPE_SIZES:
        raise WrongSize("a variable has no dimensions")
    shape: tuple[int, ...] = struct.unpack(f"{order}{len(part.data) // 4}i", part.data)
    if min(shape) < 0:
        raise WrongSize(f"it claims an array of {' x '.join(map(str, shape))} that it does not contain")
    return shape


def _count_fields(parts: Iterator[_Element], order: str) -> int:
    """Return the number of fields of a struct, whose names all take the same number of bytes."""
    length, names = _take_part(parts), _take_part(parts)
    if length.type not in (_INT32, _UINT32) or len(length.data) != 4:
        raise WrongSize("the names of the fields of a struct have no length")
    size: int = struct.unpack(f"{order}i", length.data)[0]
    if size <= 0:
        raise WrongSize(f"the names of the fields of a struct cannot have {size} bytes")
    return len(names.data) // size


def _skip_parts(parts: Iterator[_Element], count: int) -> None:
    """Skip parts of a matrix; raise if there are fewer."""
    for _ in range(count):
        _take_part(parts)


def _take_part(parts: Iterator[_Element]) -> _Element:
    """Return the next part of a matrix; raise if there is none."""
    part = next(parts, None)
    if part is None:
        raise WrongSize("a variable has fewer parts than its flags promise")
    return part


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
