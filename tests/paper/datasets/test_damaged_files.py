"""Damaged files of data sets, and damaged point files of other detectors, raise InputError."""

from __future__ import annotations

import io
import json
import random
import warnings
from pathlib import Path

import numpy as np
import pytest

from selfmark.paper.datasets import celeba, mtfl
from selfmark.paper.datasets.detection_files import read_points
from selfmark.paper.datasets.torch7_files import read_tensor
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.mutate import change_bytes, change_json
from tests.fuzz.readers import Reader
from tests.paper.datasets import face_miniatures

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
