"""Test that every metric is read correctly from a handmade metrics.json."""

from __future__ import annotations

from typing import Any

import pytest

from selfmark.paper.reproduction.table_metrics import METRICS, parse_metric

RESULTS: dict[str, Any] = {
    "landmarks": ["a", "b", "c"],
    "points": ["head", "left_shoulder", "right_shoulder", "left_wrist", "right_wrist", "right_hand"],
    "headline": {
        "regressor": "ridge 0.01",
        "forward": {"error": 3.25, "cumulative": [1.0, 2.0]},
        "backward": {"error": 6.65, "cumulative": [3.0, 4.0], "guessing_cumulative": [8.0, 9.0]},
    },
    "guessing": {"forward": 11.0, "backward": 12.0},
    "stage1": {
        "points_per_image": 25.8,
        "errors": [
            {"regressor": "no bias", "forward": 9.0, "backward": 9.5},
            {"regressor": "ridge 0.01", "forward": 3.3, "backward": 6.7, "backward_found": 7.5},
        ],
        "guessing": {"backward": 8.5, "backward_found": 13.5},
    },
    "by": {"yaw_bucket": {"0-30": {"forward": 4.42}, "30-60": {"forward": None}}},
    "raw": {
        "within 6 px at 128 px": {"average": 50.0, "by_point": [10.0, 20.0, 40.0, 1.0, 2.0, None]},
        "within 0.2 of the inter-ocular distance": {"average": 1.0, "by_point": [7.0] * 6},
        "within 0.3 of the torso (PCK)": {"average": 2.0, "by_point": [90.0, 80.0, 60.0, 5.0, 5.0, 5.0]},
    },
    "regressed": {"within 6 px at 128 px": {"average": 55.5, "by_point": [30.0, 50.0, 70.0, 1.0, 1.0, 4.0]}},
    "oks": {"AP": 0.22, "AP 0.5": 0.84, "AR 0.4": 0.97},
    "precision": {"orb": 47.4},
    "rounds": [
        {
            "headline": {"regressor": "ridge 0.01"},
            "stage1": {"errors": [{"regressor": "ridge 0.01", "forward": value}]},
        }
        for value in (5.0, 4.0)
    ],
    "map": [[0.0, 1.0, -1]],
    "keypoint_sheet": "k.png",
    "landmark_sheet": "l.png",
    "pose_sheets": {"yaw_bucket": "p.png", "light": "i.png"},
    "matched_sheet": "m.png",
}

EXPECTED: dict[str, Any] = {
    "forward": 3.25,
    "backward": 6.65,
    "backward_guessing": 12.0,
    "forward_in yaw_bucket=0-30": 4.42,
    "forward_in yaw_bucket=60-90": None,
    "landmarks": 3.0,
    "stage1_forward": 3.3,
    "stage1_backward": 6.7,
    "stage1_backward_guessing": 8.5,
    "stage1_backward_found": 7.5,
    "stage1_backward_found_guessing": 13.5,
    "stage1_points": 25.8,
    "raw_accuracy head": 10.0,
    "raw_accuracy shoulders": 30.0,
    "raw_accuracy hands": 1.5,  # A point whose accuracy is None is ignored.
    "raw_accuracy head+shoulders": 20.0,  # This is the mean over body parts, not over points.
    "raw_accuracy knees": None,
    "raw_accuracy head+knees": None,
    "raw_pck shoulders": 70.0,
    "regressed_accuracy hands": 2.0,
    "regressed_average": 55.5,
    "oks AP": 0.22,
    "oks AP 0.5": 0.84,
    "oks AR 0.3": None,
    "precision orb": 47.4,
    "forward_curve": [1.0, 2.0],
    "forward_curve_spread": None,  # All images are used, so there is only one draw.
    "forward_curve_guessing": None,  # Earlier versions did not measure this curve.
    "backward_curve": [3.0, 4.0],
    "backward_curve_spread": None,
    "backward_curve_guessing": [8.0, 9.0],
    "forward_by_round": [5.0, 4.0],
    "raw_by_point": [7.0] * 6,
    "keypoint_map": [[0.0, 1.0, -1]],
    "descriptor_map": [[0.0, 1.0, -1]],
    "keypoint_sheet": "k.png",
    "landmark_sheet": "l.png",
    "pose_sheet yaw_bucket": "p.png",
    "pose_sheet light": "i.png",
    "matched_sheet": "m.png",
}


def test_every_metric_is_tested() -> None:
    assert {text.split()[0] for text in EXPECTED} == set(METRICS)


@pytest.mark.parametrize(("text", "value"), EXPECTED.items())
def test_each_metric_reads_its_value(text: str, value: Any) -> None:
    metric, argument = parse_metric(text)
    assert metric.read(RESULTS, argument) == value


def test_the_only_pose_sheet_of_an_earlier_version_is_read() -> None:
    metric, argument = parse_metric("pose_sheet yaw_bucket")
    assert metric.read({"landmark_sheet": "l.png", "pose_sheet": "p.png"}, argument) == "p.png"


def test_errors_over_draws_replace_those_of_all_images() -> None:
    rows = [
        {"regressor": regressor, "all": images > 300, "forward": {"mean": mean}, "backward": {"mean": 9.0}}
        for regressor, images, mean in (
            ("no bias", 300, 1.0),
            ("ridge 0.01", 300, 3.5),
            ("ridge 0.01", 900, 3.25),
        )
    ]
    curve = {"mean": [1.5, 2.5], "spread": [0.1, 0.2]}
    drawn = RESULTS | {"errors": rows, "curves": [{"forward": curve, "backward": curve}]}
    assert METRICS["forward"].read(drawn, "") == 3.5
    assert METRICS["forward_curve"].read(drawn, "") == [1.5, 2.5]
    assert METRICS["forward_curve_spread"].read(drawn, "") == [0.1, 0.2]


def test_older_results_have_no_errors_of_guessing_or_of_found_landmarks() -> None:
    stage1 = {"errors": [{"regressor": "ridge 0.01", "forward": 3.3, "backward": 6.7}]}
    for name in ("stage1_backward_guessing", "stage1_backward_found", "stage1_backward_found_guessing"):
        assert METRICS[name].read(RESULTS | {"stage1": stage1}, "") is None
