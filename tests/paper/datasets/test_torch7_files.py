"""Test reading tensors of Torch 7.

The files that `write_t7` writes can also be read with the package torchfile 0.1.0.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfmark.errors import InputError
from selfmark.paper.datasets.torch7_files import read_tensor
from tests.paper.datasets.face_miniatures import write_t7

# File with the matrix [[1, 2], [3, 4]] of doubles. The fields are kind, index, version, class, number of
# dimensions, sizes, strides, offset and storage.
HANDWRITTEN = (
    b"\x04\0\0\0" b"\x01\0\0\0" b"\x03\0\0\0V 1" b"\x12\0\0\0torch.DoubleTensor" b"\x02\0\0\0"
    b"\x02\0\0\0\0\0\0\0" b"\x02\0\0\0\0\0\0\0" b"\x02\0\0\0\0\0\0\0" b"\x01\0\0\0\0\0\0\0"
    b"\x01\0\0\0\0\0\0\0"
    b"\x04\0\0\0" b"\x02\0\0\0" b"\x03\0\0\0V 1" b"\x13\0\0\0torch.DoubleStorage" b"\x04\0\0\0\0\0\0\0"
    + struct.pack("<4d", 1, 2, 3, 4)
)  # fmt: skip


def test_a_handwritten_tensor_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.t7").write_bytes(HANDWRITTEN)
    assert read_tensor(tmp_path / "a.t7").tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("kind", ["Float", "Double"])
def test_a_written_tensor_is_read_back(tmp_path: Path, kind: str) -> None:
    values = np.arange(204, dtype=np.float64).reshape(68, 3) / 4
    write_t7(tmp_path / "a.t7", values, kind)
    np.testing.assert_array_equal(read_tensor(tmp_path / "a.t7"), values)


def test_strides_and_offset_are_applied(tmp_path: Path) -> None:
    """Read a transposed tensor, whose strides are swapped, and a tensor that starts at the second row."""
    sizes_at = HANDWRITTEN.index(struct.pack("<qqqq", 2, 2, 2, 1))
    strides_at, offset_at, storage_at = sizes_at + 16, sizes_at + 32, sizes_at + 40
    swapped = HANDWRITTEN[:strides_at] + struct.pack("<qq", 1, 2) + HANDWRITTEN[offset_at:]
    (tmp_path / "a.t7").write_bytes(swapped)
    assert read_tensor(tmp_path / "a.t7").tolist() == [[1, 3], [2, 4]]
    # The sizes are 1 and 2, the strides 2 and 1. The offset counts from 1, so the second row starts at 3.
    second_row = HANDWRITTEN[:sizes_at] + struct.pack("<qqqqq", 1, 2, 2, 1, 3) + HANDWRITTEN[storage_at:]
    (tmp_path / "a.t7").write_bytes(second_row)
    assert read_tensor(tmp_path / "a.t7").tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"\x04\0\0\0", b"\x03\0\0\0", "expected a tensor"),  # 3 marks a table.
        # The length of a name precedes it in the file, so the invalid names are as long as the original ones.
        (b"DoubleTensor", b"HalfedTensor", "it contains 'torch.HalfedTensor'"),
        (b"DoubleStorage", b"FloatsStorage", "it contains 'torch.FloatsStorage'"),
        (struct.pack("<q", 4), struct.pack("<q", 5), "it states 5 values of 8 bytes, but 32 bytes are left"),
        (struct.pack("<q", 4), struct.pack("<q", -1), "it states -1 values of 8 bytes"),
        (
            struct.pack("<qq", 2, 2),
            struct.pack("<qq", 2, 3),
            r"its sizes \[2, 3\] and strides \[2, 1\] do not fit the 4 values",
        ),
        (
            struct.pack("<qqqq", 2, 2, 2, 1),
            struct.pack("<qqqq", 2, 2, -2, 1),
            r"strides \[-2, 1\] do not fit",
        ),
        (struct.pack("<qqqq", 2, 2, 2, 1), struct.pack("<qqqq", 2, 2, 9, 1), "extends beyond its storage"),
        (struct.pack("<qqqq", 2, 2, 2, 1), struct.pack("<qqqq", 1 << 40, 2, 0, 1), "do not fit the 4 values"),
        (b"\x02\0\0\0" + struct.pack("<q", 2), b"\xff\0\0\0" + struct.pack("<q", 2), "it has 255 dimensions"),
    ],
)
def test_invalid_content_raises_with_the_reason(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    assert old in HANDWRITTEN
    (tmp_path / "a.t7").write_bytes(HANDWRITTEN.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"a\.t7 does not contain a Torch 7 tensor: .*{message}"):
        read_tensor(tmp_path / "a.t7")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_files_raise_input_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.t7"
    content = bytearray(HANDWRITTEN[: data.draw(st.integers(0, len(HANDWRITTEN)))])
    if content:
        positions = data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3))
        for position in positions:
            content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        size = read_tensor(path).size
    except InputError:
        return
    assert size <= 4
