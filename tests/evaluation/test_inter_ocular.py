"""Test both definitions of the inter-ocular distance of 68 facial points, on faces of known size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from selfmark.evaluation.inter_ocular import measure_by_definition
from selfmark.evaluation.nme import IntArray
from selfmark.evaluation.normalizers import list_inter_ocular_specs
from selfmark.paper.datasets.face_points import FIVE, SIXTY_EIGHT
from selfmark.points import FloatArray
from tests.evaluation.test_normalizers import make_objects


def _make_face(missing: tuple[int, ...] = ()) -> Any:
    """Return 68 points with y = 10; the centers of the eyes are 60 apart, points 41 and 46 are 70 apart."""
    xy = np.full((68, 2), 10.0)
    xy[36:42, 0] = [10, 20, 30, 40, 30, 20]  # the mean is 25, and point 41 is at 20
    xy[42:48, 0] = [70, 80, 90, 100, 90, 80]  # the mean is 85, and point 46 is at 90
    xy[list(missing)] = np.nan
    return xy


def _measure(faces: list[Any], regions: FloatArray, size: int) -> dict[str, Any]:
    missing = [
        (image, point) for image, xy in enumerate(faces) for point in np.flatnonzero(np.isnan(xy[:, 0]))
    ]
    truth = make_objects(np.nan_to_num(faces), SIXTY_EIGHT, missing)

    def measure(spec: str, rows: IntArray, lengths: FloatArray) -> dict[str, Any]:
        return {"rows": rows.tolist(), "lengths": lengths.tolist()}

    return measure_by_definition(truth, regions, size, measure)


def test_lengths_of_both_definitions_are_in_network_pixels() -> None:
    regions = np.array([[0.0, 0.0, 200.0, 200.0], [5.0, 5.0, 100.0, 100.0]])
    measured = _measure([_make_face(), _make_face()], regions, 100)
    assert list(measured) == ["eye_centers", "points_41_46"]
    assert measured["eye_centers"]["lengths"] == pytest.approx([30.0, 60.0])
    assert measured["points_41_46"]["lengths"] == pytest.approx([35.0, 70.0])
    assert measured["eye_centers"]["normaliser"] == "inter_ocular"
    assert measured["points_41_46"]["normaliser"] == "points:right_eye_5,left_eye_4"


def test_only_images_with_both_distances_are_used() -> None:
    """Without point 41, the center of the eye is still known, but the distance of points 41 and 46 is not."""
    regions = np.tile([0.0, 0.0, 100.0, 100.0], (3, 1))
    measured = _measure(
        [_make_face(missing=(41,)), _make_face(), _make_face(missing=tuple(range(42, 48)))], regions, 100
    )
    assert [entry["rows"] for entry in measured.values()] == [[1], [1]]
    assert {entry["test_images_used"] for entry in measured.values()} == {1}
    assert _measure([_make_face(missing=(46,))], regions[:1], 100) == {}


@pytest.mark.parametrize(
    "names",
    [FIVE, SIXTY_EIGHT[:67], (*SIXTY_EIGHT[1:], "jaw_0"), tuple(f"point_{n}" for n in range(68))],
    ids=["five points", "67 points", "another order", "no names"],
)
def test_other_point_sets_have_neither_definition(names: tuple[str, ...]) -> None:
    assert list_inter_ocular_specs(names) == {}
