"""Test the lengths of normalizers on small examples, and spellings of point names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.evaluation.normalizers import (
    NAMED_SPECS,
    canonicalize_name,
    choose_normalizer,
    group_by_part,
    is_available,
    measure_lengths,
    measure_unchecked_lengths,
)
from selfmark.image_ref import ImageRef

BODY = ("left_eye", "right_eye", "left_shoulder", "right_shoulder", "right_hip")


def make_objects(xy: Any, names: tuple[str, ...] = BODY, missing: Any = (), **more: Any) -> AnnotatedObjects:
    """Return objects with all points annotated except the (object, point) pairs in `missing`."""
    points = np.array(xy, np.float64)
    count = len(points)
    visible = np.ones(points.shape[:2], bool)
    for index in missing:
        visible[index] = False
    return AnnotatedObjects(
        refs=tuple(ImageRef(Path(f"{n}.jpg")) for n in range(count)),
        names=names,
        xy=np.where(visible[..., None], points, np.nan),
        hidden=np.zeros_like(visible),
        boxes=np.array(more.pop("boxes", [[0, 0, 4, 9]] * count), np.float64),
        normalizer=more.pop("normalizer", ""),
        source=Path("test.json"),
        where=tuple(f"test.json: annotations[{n}]" for n in range(count)),
    )


ONE_OBJECT = [[[0, 0], [3, 4], [0, 10], [8, 10], [12, 15]]]
REGIONS = np.array([[5.0, 5.0, 50.0, 50.0]])


@pytest.mark.parametrize(
    ("spec", "length"),
    [
        ("box", np.sqrt(12 * 15)),
        ("bbox", 6.0),
        ("inter_ocular", 5.0),
        ("shoulders", 8.0),
        ("torso", 13.0),
        ("side", 50.0),
        ("points:left_eye,right_eye", 5.0),
        ("points:LeftShoulder, hip_r", 13.0),
        ("points:2,3", 8.0),
        ("points:left_eye,2", 10.0),
    ],
)
def test_each_spec_measures_its_length(spec: str, length: float) -> None:
    assert measure_lengths(make_objects(ONE_OBJECT), spec, REGIONS).tolist() == pytest.approx([length])
    assert is_available(make_objects(ONE_OBJECT), spec)


def test_only_visible_points_span_the_box() -> None:
    truth = make_objects(ONE_OBJECT, missing=[(0, 4), (0, 0)])
    assert measure_lengths(truth, "box", REGIONS).tolist() == pytest.approx([np.sqrt(8 * 6)])


def test_an_eye_with_many_points_is_at_the_mean_of_the_visible_ones() -> None:
    names = ("left_eye_0", "left_eye_1", "left_eye_2", "RightEye10", "right_eye_11", "left_eyebrow_0")
    xy = [[[0, 0], [2, 0], [90, 90], [10, 0], [14, 0], [70, 70]]] * 2
    truth = make_objects(xy, names, missing=[(0, 2), (1, 2), (1, 0)])
    lengths = measure_lengths(truth, "inter_ocular", np.repeat(REGIONS, 2, axis=0))
    assert lengths.tolist() == [11.0, 10.0]


def test_names_may_be_numbers_or_contain_commas() -> None:
    truth = make_objects([[[0, 0], [0, 7], [0, 9]]], ("1", "tip, left", "2"))
    assert measure_lengths(truth, "points:1,2", REGIONS).tolist() == [9.0]  # names, not indices
    assert measure_lengths(truth, "points:tip, left,2", REGIONS).tolist() == [2.0]


@pytest.mark.parametrize(
    ("spec", "missing", "boxes"),
    [
        ("inter_ocular", [(1, 0), (2, 1)], [[0, 0, 4, 9]] * 4),
        ("points:0,1", [(1, 0), (2, 1)], [[0, 0, 4, 9]] * 4),
        ("bbox", [], [[0, 0, 4, 9], [np.nan] * 4, [0, 0, 0, 9], [0, 0, 1, 1]]),
        ("box", [(1, n) for n in range(5)] + [(2, n) for n in range(4)], [[0, 0, 4, 9]] * 4),
    ],
)
def test_objects_that_cannot_be_measured_are_errors(spec: str, missing: Any, boxes: Any) -> None:
    truth = make_objects(ONE_OBJECT * 4, missing=missing, boxes=boxes)
    regions = np.repeat(REGIONS, 4, axis=0)
    with pytest.raises(InputError, match=r"annotations\[1\].*1 other entry.*choose another normalizer"):
        measure_lengths(truth, spec, regions)
    usable = measure_unchecked_lengths(truth, spec, regions) > 0
    assert usable.tolist() == [True, False, False, True]
    assert (measure_lengths(truth.select(usable), spec, regions[usable]) > 0).all()


def test_an_unknown_spec_lists_the_choices() -> None:
    for call in (
        lambda: measure_lengths(make_objects(ONE_OBJECT), "ocular", REGIONS),
        lambda: is_available(make_objects(ONE_OBJECT), "ocular"),
    ):
        with pytest.raises(InputError, match="'ocular'") as caught:
            call()
        assert all(word in str(caught.value) for word in (*NAMED_SPECS, "points:A,B"))


@pytest.mark.parametrize(
    "spec", ["points:left_eye", "points:", "points:left_eye,tail", "points:0,5", "points:0,-1"]
)
def test_missing_points_are_errors(spec: str) -> None:
    assert not is_available(make_objects(ONE_OBJECT), spec)
    with pytest.raises(InputError, match="does not name the points"):
        measure_lengths(make_objects(ONE_OBJECT), spec, REGIONS)


def test_a_wrong_shape_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="regions"):
        measure_lengths(make_objects(ONE_OBJECT), "box", REGIONS[0])


@pytest.mark.parametrize(
    ("names", "declared", "spec"),
    [
        (BODY, "bbox", "bbox"),
        (BODY, "", "inter_ocular"),
        (("l_eye", "x", "l_shoulder", "r_shoulder", "y"), "", "shoulders"),
        (("l_eye", "x", "l_shoulder", "y", "z"), "", "box"),
    ],
)
def test_the_default_is_the_declared_spec_or_follows_from_the_names(
    names: Any, declared: str, spec: str
) -> None:
    assert choose_normalizer(make_objects(ONE_OBJECT, names, normalizer=declared)) == spec


@given(st.text(max_size=12) | st.text("0123,lefty_ ", max_size=12))
def test_any_points_spec_is_measured_or_raises_an_input_error(text: str) -> None:
    spec = f"points:{text}"
    if is_available(make_objects(ONE_OBJECT), spec):
        assert np.isfinite(measure_unchecked_lengths(make_objects(ONE_OBJECT), spec, REGIONS)).all()
    else:
        with pytest.raises(InputError, match="does not name the points"):
            measure_unchecked_lengths(make_objects(ONE_OBJECT), spec, REGIONS)


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        ("LeftEye,left eye,eye_left,leye,left.eye,LEFT_EYE,eyeL,eye-l,L Eye,lEye,lefteye", "left_eye"),
        ("RightEye,right eye,eye_right,reye,Eye.R,REye,R.eye", "right_eye"),
        ("L_Shoulder,lshoulder,leftShoulder,LShoulder,shoulder_l", "left_shoulder"),
        ("rhip,RHip,right_hip,Hip_R", "right_hip"),
        ("left_eye_3,leftEye3,eyeL3,left eye 3", "left_eye_3"),
        ("forelegL1", "left_foreleg_1"),
        ("left_eye_right_corner", "left_eye_right_corner"),
        ("rear", "rear"),
        ("lip,Lip", "lip"),
        ("leg", "leg"),
        ("tail_base,TailBase,tail base", "tail_base"),
        ("鼻", "鼻"),
        ("œilGauche", "œil_gauche"),
    ],
)
def test_all_spellings_have_one_canonical_name(spellings: str, name: str) -> None:
    assert {canonicalize_name(spelling) for spelling in spellings.split(",")} == {name}


@given(st.text("lrLReyEYp01_ .", max_size=10))
def test_a_canonical_name_does_not_change(name: str) -> None:
    canonical = canonicalize_name(name)
    assert canonicalize_name(canonical) == canonical


def test_points_are_grouped_by_part() -> None:
    names = ["left_eye", "nose", "right_eye", "jaw_0", "jaw_16", "left_mouth_corner", "mouthCornerR"]
    names += ["forelegL1", "forelegR3", "wingL", "L1", "nose_bridge_2"]
    assert list(group_by_part(names).items()) == [
        ("eye", (0, 2)),
        ("nose", (1,)),
        ("jaw", (3, 4)),
        ("mouth_corner", (5, 6)),
        ("foreleg", (7, 8)),
        ("wing", (9,)),
        ("L1", (10,)),
        ("nose_bridge", (11,)),
    ]


@given(st.lists(st.text(max_size=8)))
def test_every_point_is_in_one_group(names: list[str]) -> None:
    assert sorted(i for members in group_by_part(names).values() for i in members) == list(range(len(names)))
