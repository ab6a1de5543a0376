"""Test the reader of DeepLabCut labels on files written here with pandas, as DeepLabCut does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.evaluation import label_files
from selfmark.image_ref import ImageRef

pandas: Any = pytest.importorskip("pandas")

PARTS = ["nose", "left, ear", "œil"]
IMAGES = [
    ("labeled-data", "m1", "img01.png"),
    ("labeled-data", "m2", "img01.png"),
    ("labeled-data", "m2", "7.png"),
]
REFS = [ImageRef(Path("/project", *image)) for image in IMAGES]


def _make_columns(individuals: list[str], coordinates: tuple[str, ...] = ("x", "y")) -> Any:
    if not individuals:
        return pandas.MultiIndex.from_product(
            [["Ann"], PARTS, coordinates], names=["scorer", "bodyparts", "coords"]
        )
    return pandas.MultiIndex.from_product(
        [["Ann"], individuals, PARTS, coordinates], names=["scorer", "individuals", "bodyparts", "coords"]
    )


def _draw_values(columns: int) -> Any:
    values = np.random.default_rng(0).uniform(0, 60, (len(IMAGES), columns))
    values[1, 2:4] = np.nan  # the second point of the second image is not labeled
    return values


def _save(frame: Any, folder: Path, kind: str) -> Path:
    """Write the table; a row names its image by one path, or by folders and file name in three columns."""
    path = folder / "CollectedData_Ann.csv"
    if kind == "paths":  # as in Lightning Pose, and in DeepLabCut before 2.2.1
        frame = frame.set_axis(["/".join(index) for index in frame.index])
    frame.to_csv(path)
    return path


EACH_KIND_OF_INDEX = pytest.mark.parametrize("kind", ["folders", "paths"])


def _read(path: Path, **more: int) -> AnnotatedObjects:
    return label_files.read_ground_truth(path, REFS, **more)


@EACH_KIND_OF_INDEX
def test_points_names_and_images_are_read(kind: str, tmp_path: Path) -> None:
    values = _draw_values(6)
    frame = pandas.DataFrame(values, index=pandas.MultiIndex.from_tuples(IMAGES), columns=_make_columns([]))
    truth = _read(_save(frame, tmp_path, kind))
    assert truth.names == tuple(PARTS)
    assert truth.refs == tuple(REFS)
    np.testing.assert_allclose(truth.xy, values.reshape(3, 3, 2))
    assert truth.visible.tolist() == [[True] * 3, [True, False, True], [True] * 3]
    assert np.isnan(truth.boxes).all()


@EACH_KIND_OF_INDEX
def test_each_individual_is_an_object(kind: str, tmp_path: Path) -> None:
    values = np.random.default_rng(1).uniform(0, 60, (3, 12))
    values[1, 6:] = np.nan  # the second image has one animal
    values[2] = np.nan  # the third image has none
    frame = pandas.DataFrame(
        values, index=pandas.MultiIndex.from_tuples(IMAGES), columns=_make_columns(["a", "b"])
    )
    points = values.reshape(3, 2, 3, 2)
    # Boxes are measured from pixel corners, points from pixel centers.
    boxes = [(*xy.min(0) + 0.5, *np.ptp(xy, axis=0)) for xy in points[0]]
    images = [*(ImageRef(REFS[0].path, None, box) for box in boxes), *REFS[1:]]
    truth = label_files.read_ground_truth(_save(frame, tmp_path, kind), images)
    assert truth.refs == tuple(images[:3])
    np.testing.assert_allclose(truth.xy, [points[0, 0], points[0, 1], points[1, 0]])
    np.testing.assert_allclose(truth.boxes[:2], boxes, atol=1e-9)


@EACH_KIND_OF_INDEX
def test_likelihood_is_ignored_and_visibility_is_read(kind: str, tmp_path: Path) -> None:
    index = pandas.MultiIndex.from_tuples(IMAGES)
    values = np.random.default_rng(2).uniform(0, 60, (3, 3, 3))
    values[..., 2] = 1e-3
    with_likelihood = _make_columns([], ("x", "y", "likelihood"))
    truth = _read(
        _save(pandas.DataFrame(values.reshape(3, 9), index=index, columns=with_likelihood), tmp_path, kind)
    )
    np.testing.assert_allclose(truth.xy, values[..., :2])
    values[..., 2] = [2, 1, 0]
    with_visibility = _make_columns([], ("x", "y", "visible"))
    path = _save(pandas.DataFrame(values.reshape(3, 9), index=index, columns=with_visibility), tmp_path, kind)
    assert _read(path).visible.tolist() == [[True, True, False]] * 3
    assert _read(path, min_visibility=2).visible.tolist() == [[True, False, False]] * 3


HEADER = "scorer,Ann,Ann\nbodyparts,nose,nose\ncoords,x,y\n"
INVALID = {
    "no header": ("image,x,y\na.png,1,2\n", "is not a table of DeepLabCut"),
    "empty": ("", "is not a table of DeepLabCut"),
    "no rows": (HEADER, "annotates no objects"),
    "a word": (f"{HEADER}m1/img01.png,1,much\n", "line 4: 'nose' must be a number, not 'much'"),
    "half a point": (f"{HEADER}m1/img01.png,1,\n", "line 4: 'nose' has only one of x and y"),
    "a short row": (f"{HEADER}m1/img01.png,1\n", "line 4 has 2 columns but the first line has 3"),
    "infinite": (f"{HEADER}m1/img01.png,1,inf\n", "'nose' has no usable coordinates"),
    "frame numbers": (f"{HEADER}12,1,2\n", "each row must name an image file, not '12'"),
    "twice": (f"{HEADER}a/b.png,1,2\na\\b.png,1,2\n", "'a/b.png' is also labeled in .*line 4"),
    "other images": (f"{HEADER}elsewhere/cat.png,1,2\n", "'elsewhere/cat.png' is not among the given images"),
    "two scorers": (
        f"{HEADER.replace('Ann,Ann', 'Ann,Bob')}a.png,1,2\n",
        "labels of the scorers Ann and Bob",
    ),
    "no y": (f"{HEADER.replace('x,y', 'x,z')}a.png,1,2\n", "'nose' must have one column y"),
    "a v of 3": (
        "scorer,A,A,A\nbodyparts,n,n,n\ncoords,x,y,visible\nm1/img01.png,1,2,3\n",
        "'n' has a visibility v other than 0, 1 and 2",
    ),
}


@pytest.mark.parametrize(("text", "message"), INVALID.values(), ids=INVALID)
def test_an_unusable_table_is_a_one_line_error(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        _read(path)
    assert "\n" not in str(caught.value)


def test_hdf5_is_not_opened(tmp_path: Path) -> None:
    """An HDF5 label file contains pickles, and opening a pickle can run any code."""
    path = tmp_path / "CollectedData_Ann.h5"
    path.write_bytes(b"whatever is in it")
    with pytest.raises(InputError, match="give the CSV file"):
        _read(path)
