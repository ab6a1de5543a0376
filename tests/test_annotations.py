"""Test annotated objects: their shapes are checked, and rows and points can be selected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef


@pytest.fixture
def objects() -> AnnotatedObjects:
    """Return three objects with two points; the second point of the second object is not annotated."""
    xy = np.arange(12.0).reshape(3, 2, 2)
    xy[1, 1] = np.nan
    refs = [ImageRef(Path("a.jpg")), ImageRef(Path("v.mp4"), 4), ImageRef(Path("c.jpg"))]
    annotated = build_annotated_objects(refs, ("left", "right"), xy, fields={"pose": (1, None, 3)})
    return replace(annotated, mirror=(1, 0), source=Path("labels.json"))


def test_omitted_fields_get_defaults(objects: AnnotatedObjects) -> None:
    assert np.isnan(objects.boxes).all()
    assert not objects.hidden.any()
    assert objects.visible.tolist() == [[True, True], [True, False], [True, True]]
    assert objects.paths == (Path("a.jpg"), Path("v.mp4"), Path("c.jpg"))
    assert objects.frames == (None, 4, None)
    assert objects.describe(1) == "v.mp4#4"
    assert replace(objects, where=("x", "y", "z")).describe(1) == "y"


def test_selected_rows_keep_their_values(objects: AnnotatedObjects) -> None:
    chosen = objects.select([2, 0])
    assert chosen.paths == (Path("c.jpg"), Path("a.jpg"))
    assert chosen.fields == {"pose": (3, 1)}
    np.testing.assert_array_equal(chosen.xy, objects.xy[[2, 0]])
    masked = objects.select(np.array([False, True, False]))
    assert masked.visible.tolist() == [[True, False]]
    assert len(objects.select(np.zeros(0, int))) == 0


def test_selected_points_keep_their_partners(objects: AnnotatedObjects) -> None:
    swapped = objects.select_points(["right", "left"])
    assert swapped.mirror == (1, 0)
    np.testing.assert_array_equal(swapped.xy, objects.xy[:, ::-1])
    assert objects.select_points(["left"]).mirror == ()
    with pytest.raises(InputError, match=r"labels\.json has no point 'nose'; it has left, right"):
        objects.select_points(["nose"])


@pytest.mark.parametrize(
    "change",
    [
        {"xy": np.zeros((3, 3, 2))},
        {"hidden": np.zeros((2, 2), bool)},
        {"boxes": np.zeros((3, 2))},
        {"names": ("left",)},
        {"mirror": (0, 0)},
        {"mirror": (0,)},
        {"fields": {"pose": (1, 2)}},
        {"where": ("x",)},
    ],
)
def test_shapes_must_agree(objects: AnnotatedObjects, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        replace(objects, **change)
