"""Test that damaged files of data sets, and damaged point files of other detectors, raise InputError."""

from __future__ import annotations

import io
import json
import multiprocessing
import random
import struct
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from selfmark.errors import InputError
from selfmark.paper.datasets import celeba, lsp, mtfl
from selfmark.paper.datasets.detection_files import read_points
from selfmark.paper.datasets.matlab_files import load_matlab
from selfmark.paper.datasets.torch7_files import read_tensor
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.mutate import change_bytes, change_json
from tests.fuzz.readers import Reader
from tests.paper.datasets import body_miniatures, face_miniatures

TABLE = (
    b"image,x1,y1,x2,y2,x3,y3,x4,y4,x5,y5\r\na.png,1,2,3,4,5,6,7,8,9,10\r\nb.png,1,2,3,4,5,6,7,8,9,1e1\r\n"
)
COCO = json.dumps(
    {
        "images": [{"id": 1, "file_name": "a.mp4", "frame": 3}],
        "annotations": [{"image_id": 1, "category_id": 1, "keypoints": [1, 2, 2, 3, 4, 1, 0, 0, 0]}],
        "categories": [{"id": 1, "keypoints": ["a", "b", "c"], "flip_idx": [0, 2, 1]}],
    }
).encode()


def _make_npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, names=np.array(["a.png", "b.png"]), xy=np.ones((2, 5, 2)))
    return stream.getvalue()


def _make_npy(folder: Path) -> bytes:
    face_miniatures.write_lines(folder / "points.txt", ["a.png", "b.png"])
    stream = io.BytesIO()
    np.save(stream, np.ones((2, 5, 2), np.float32))
    return stream.getvalue()


def _make_t7(folder: Path) -> bytes:
    face_miniatures.write_t7(folder / "seed.t7", np.ones((4, 2)))
    return (folder / "seed.t7").read_bytes()


def _make_reader(kind: str, folder: Path) -> Reader:
    if kind == "celeba":
        root = face_miniatures.make_celeba(folder, images=4)
        path = "Anno/list_landmarks_align_celeba.txt"
        return Reader(path, lambda _: celeba.read(root), ((root / path).read_bytes(),), (change_bytes,))
    if kind == "mtfl":
        root = face_miniatures.make_mtfl(folder)
        seed = (root / "training.txt").read_bytes()
        return Reader("training.txt", lambda _: mtfl.read(root), (seed,), (change_bytes,))
    if kind == "t7":
        return Reader("points.t7", read_tensor, (_make_t7(folder),), (change_bytes,))
    seed = {"csv": TABLE, "json": COCO, "npz": _make_npz(), "npy": _make_npy(folder)}[kind]
    mutations = (change_bytes, change_json) if kind == "json" else (change_bytes,)
    return Reader(f"points.{kind}", read_points, (seed,), mutations)


@pytest.mark.parametrize("kind", ["celeba", "mtfl", "t7", "csv", "json", "npz", "npy"])
def test_damaged_files_raise_input_errors(kind: str, tmp_path: Path) -> None:
    reader = _make_reader(kind, tmp_path)
    (tmp_path / reader.file).write_bytes(reader.seeds[0])
    reader.read(tmp_path / reader.file)  # The undamaged file can be read.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally = fuzz(reader, tmp_path, 300, random.Random(f"8 {kind}"))
    assert tally.failures == []
    assert tally.refused > 30


def test_a_number_of_rows_with_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    root = face_miniatures.make_celeba(tmp_path, images=4)
    path = root / "Anno/list_landmarks_align_celeba.txt"
    path.write_text("9" * 5_000 + path.read_text()[1:])
    with pytest.raises(InputError, match=rf"^{path}, line 1: expected the number of rows, found '9{{40}}'$"):
        celeba.read(root)


@pytest.mark.parametrize("count", [0, 10_000])
def test_an_invalid_number_of_images_is_refused(count: int, tmp_path: Path) -> None:
    root = body_miniatures.make_lsp(tmp_path)
    scipy.io.savemat(root / "joints.mat", {"joints": np.zeros((3, 14, count))})
    with pytest.raises(
        InputError, match=f"joints.mat must have the joints of 1 to 9,999 images, not {count:,}"
    ):
        lsp.read(root)


def _make_element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def _make_matrix(kind: int, shape: tuple[int, ...], *parts: bytes) -> bytes:
    flags = _make_element(6, struct.pack("<II", kind, 0))
    name = _make_element(1, b"joints")
    return _make_element(
        14, flags + _make_element(5, struct.pack(f"<{len(shape)}i", *shape)) + name + b"".join(parts)
    )


def _write_matlab(path: Path, variable: bytes, is_compressed: bool) -> None:
    if is_compressed:
        packed = zlib.compress(variable)
        variable = struct.pack("<II", 15, len(packed)) + packed
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + variable)


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("kind", [1, 2, 4, 6])  # The kinds are cells, structs, text and numbers.
def test_matlab_files_whose_headers_claim_more_than_the_file_contains_are_refused(
    kind: int, is_nested: bool, is_compressed: bool, tmp_path: Path
) -> None:
    """Text without data is the worst: scipy fills the claimed length with spaces, here 8 GB."""
    variable = _make_matrix(kind, (1, 2**31 - 1), _make_element(16 if kind == 4 else 9, b""))
    path = tmp_path / "joints.mat"
    _write_matlab(path, _make_matrix(1, (1, 1), variable) if is_nested else variable, is_compressed)
    with pytest.raises(InputError, match=f"^{path} is not a readable MATLAB file: .* 1 x 2147483647 "):
        load_matlab(path)


def test_damaged_lengths_and_deep_nesting_in_matlab_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "joints.mat"
    variable = _make_matrix(6, (1, 1), struct.pack("<II", 9, 2**31) + bytes(8))
    _write_matlab(path, variable, True)
    with pytest.raises(InputError, match="an element extends beyond the end"):
        load_matlab(path)
    for _ in range(30):
        variable = _make_matrix(1, (1, 1), variable)
    _write_matlab(path, variable, True)
    with pytest.raises(InputError, match="nested too deeply"):
        load_matlab(path)


@pytest.fixture(scope="module")
def child() -> Iterator[ProcessPoolExecutor]:
    """Return an executor with one child process, whose crash is an error of its future."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_matlab_file_without_the_parts_that_its_flags_promise_is_refused(
    is_compressed: bool, tmp_path: Path, child: ProcessPoolExecutor
) -> None:
    """Without the imaginary part, or the dimensions, scipy crashes."""
    path, numbers = tmp_path / "joints.mat", _make_element(9, bytes(48))
    for variable, problem in (
        (_make_matrix(6 | 0x800, (3, 2), numbers), "fewer parts than its flags promise"),
        (_make_matrix(6 | 0x800, (3, 2), numbers, _make_element(9, b"")), "does not have the 6 numbers"),
        (_make_matrix(6, (3, 2), numbers, numbers), "more parts than it should have"),
        (_make_matrix(6, (), numbers), "has no dimensions"),
        (_make_matrix(2, (1, 1), _make_element(5, bytes(4)), _make_element(1, b"a")), "cannot have 0 bytes"),
        (_make_matrix(99, (3, 2), numbers), "has the unknown class 99"),
    ):
        _write_matlab(path, variable, is_compressed)
        with pytest.raises(InputError, match=f"^{path} is not a readable MATLAB file: .*{problem}"):
            child.submit(load_matlab, path).result()


def _count_refused_changes(path: Path, content: bytes) -> int:
    """Change each byte behind the header of a MATLAB file; return how many of these files are refused."""
    refused = 0
    for position in range(124, len(content)):
        for value in (0, 9, content[position] ^ 8):
            path.write_bytes(content[:position] + bytes([value]) + content[position + 1 :])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    load_matlab(path)
                except InputError:
                    refused += 1
    return refused


def test_no_changed_byte_of_a_matlab_file_crashes_the_process(
    tmp_path: Path, child: ProcessPoolExecutor
) -> None:
    path = tmp_path / "changed.mat"
    cells = np.array(["a", np.arange(2)], object)
    records = np.array([("b", 1.5)], [("name", object), ("x", object)])
    scipy.io.savemat(path, {"joints": np.ones((2, 3)), "c": cells, "r": records, "z": np.array([1j])})
    assert child.submit(_count_refused_changes, path, path.read_bytes()).result() > 500


def test_a_small_matlab_file_with_gigabytes_of_zeros_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "joints.mat"
    scipy.io.savemat(path, {"joints": np.zeros((3, 14, 150_000))}, do_compression=True)
    with pytest.raises(InputError, match="its compressed variables are far larger than the file"):
        load_matlab(path)


def test_variables_of_every_kind_pass_the_check_of_sizes(tmp_path: Path) -> None:
    variables = {
        "number": 1.5,
        "text": "jumping_jacks",
        "empty": "",
        "cells": np.array([np.zeros((2, 3)), "a", np.zeros((0, 5))], object),
        "records": {"inner": {"deep": np.arange(3)}, "complex": np.array([1j])},
        "flags": np.array([True, False]),
    }
    path = tmp_path / "all.mat"
    for is_compressed in (False, True):
        scipy.io.savemat(path, variables, do_compression=is_compressed)
        assert set(load_matlab(path)) >= set(variables)
    # These files were written by MATLAB. They belong to the tests of scipy, which are not always installed.
    for file in (Path(scipy.io.matlab.__file__).parent / "tests" / "data").glob("test[!h]*_[67].*GLNX86.mat"):
        load_matlab(file)
