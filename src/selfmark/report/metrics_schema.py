"""Check metrics.json against a schema, so that the report can rely on a file that anyone may have edited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfmark.report.metrics_text import EYES
from selfmark.report.verdict_text import VERDICTS
from selfmark.run.folder import VERIFICATION_FIELDS
from selfmark.run.json_schema import (
    Check,
    is_bool,
    is_count,
    is_dict_of,
    is_list_of,
    is_none_or,
    is_number,
    is_object,
    is_text,
    require_fields,
)

_NUMBER = is_none_or(is_number)  # NaN is written as null
_NUMBERS = is_list_of(_NUMBER)
_TEXTS = is_list_of(is_text)
_BOTH_DIRECTIONS = {"forward": _NUMBER, "backward": _NUMBER}


def _is_landmark(value: Any) -> bool:
    """Return True for the index of a landmark, or -1 for none."""
    return value == -1 or is_count(value)


_HEADER = {"landmarks": _TEXTS}
_OPTIONAL = {
    "notes": _TEXTS,
    "advice": _TEXTS,
    "images": _TEXTS,
    "verification": is_none_or(is_object(VERIFICATION_FIELDS)),
}

# --- checks without labels; each list has one value for each landmark ----------------------------------

_BY_LANDMARK = ("deformation", "stable", "symmetric", "separation", "trust")
# Files of earlier versions lack these checks.
_LATER_BY_LANDMARK = ("purity", "constellation", "appearance_error", "expected_error")
_CHECKS = dict.fromkeys(_BY_LANDMARK, _NUMBERS) | {"order": is_list_of(is_count)}
_LATER_CHECKS = dict.fromkeys(_LATER_BY_LANDMARK, _NUMBERS) | {
    "verdict": lambda value: isinstance(value, str) and value in VERDICTS,
    "expected_forward": is_number,
}
# A file that has the first field of a pair must also have the second.
_TOGETHER = (
    ("purity", "constellation"),
    ("expected_error", "appearance_error"),
    ("verdict", "expected_forward"),
)

# --- measurements with labels --------------------------------------------------------------------------

_CURVE = is_object(
    {"error": _NUMBER, "by_point": _NUMBERS, "cumulative": _NUMBERS, "within": _NUMBERS},
    {"guessing": _NUMBER, "guessing_by_point": _NUMBERS, "guessing_cumulative": _NUMBERS},
)
_DRAWS = is_object({"mean": _NUMBER, "spread": _NUMBER, "draws": is_count})
_HITS = is_object({"average": _NUMBER, "by_part": is_dict_of(_NUMBER)})
_ERRORS: dict[str, Check] = {
    "test_images_used": is_count,
    "normaliser": is_text,
    "errors": is_list_of(
        is_object(
            {
                "regressor": is_text,
                "images": is_count,
                "all": is_bool,
                "forward": _DRAWS,
                "backward": _DRAWS,
            }
        )
    ),
    "guessing": is_object(_BOTH_DIRECTIONS),
    "headline": is_object(
        {"regressor": is_text, "thresholds": is_list_of(is_number), "forward": _CURVE, "backward": _CURVE}
    ),
    "stage1": is_object(
        {
            "points_per_image": is_number,
            "errors": is_list_of(
                is_object({"regressor": is_text, **_BOTH_DIRECTIONS}, {"backward_found": _NUMBER})
            ),
        },
        {"guessing": is_object({}, {**_BOTH_DIRECTIONS, "backward_found": _NUMBER})},
    ),
}
_LABELED: dict[str, Check] = _ERRORS | {
    "points": _TEXTS,
    "matched": is_list_of(_is_landmark),
    "raw": is_dict_of(_HITS),
    "regressed": is_dict_of(_HITS),
    "oks": is_dict_of(is_number),
    "precision": is_dict_of(_NUMBER),
    "by": is_dict_of(
        is_dict_of(
            is_object(
                {"images": is_count, **_BOTH_DIRECTIONS},
                {"guessing_forward": _NUMBER, "guessing_backward": _NUMBER},
            )
        )
    ),
}


def require_metrics(metrics: Mapping[str, Any], num_landmarks: int) -> None:
    """Raise if metrics.json does not have the fields that an evaluation of the run writes.

    Args:
        metrics: content of the file.
        num_landmarks: number of landmarks of the run.

    Raises:
        ValueError: if a field is missing or not valid.
    """
    require_fields(metrics, {}, _OPTIONAL)
    if metrics.get("unlabelled") is None and "headline" not in metrics:
        return  # there are no results, for instance only a note that the file is outdated
    require_fields(metrics, _HEADER)
    if len(metrics["landmarks"]) != num_landmarks:
        raise ValueError(f"it has {len(metrics['landmarks'])} landmarks, not {num_landmarks}")
    if metrics.get("unlabelled") is not None:
        _require_checks(metrics["unlabelled"], num_landmarks)
    if "headline" in metrics:
        require_fields(metrics, _LABELED, {"inter_ocular": is_dict_of(is_object(_ERRORS))})
        _require_labeled(metrics, num_landmarks)


def _require_checks(checks: Any, num_landmarks: int) -> None:
    """Check the results of the label-free checks."""
    require_fields(checks, _CHECKS, _LATER_CHECKS)
    for name in (*_BY_LANDMARK, *_LATER_BY_LANDMARK):
        if name in checks and len(checks[name]) != num_landmarks:
            raise ValueError(f"'{name}' has {len(checks[name])} values, not {num_landmarks}")
    if None in checks["trust"]:
        raise ValueError("'trust' has a landmark without a value")
    if sorted(checks["order"]) != list(range(num_landmarks)):
        raise ValueError("'order' does not name each landmark once")
    for first, second in _TOGETHER:
        if first in checks and second not in checks:
            raise ValueError(f"'{second}' is missing")


def _require_labeled(metrics: Mapping[str, Any], num_landmarks: int) -> None:
    """Check the measurements with labels."""
    num_points = len(metrics["points"])
    if len(metrics["matched"]) != num_points or any(k >= num_landmarks for k in metrics["matched"]):
        raise ValueError("'matched' does not name a landmark for each point")
    if not set(metrics.get("inter_ocular", {})) <= set(EYES):
        raise ValueError("'inter_ocular' has an unknown definition")
    for entry in metrics.get("inter_ocular", {}).values():
        require_fields(entry["stage1"].get("guessing"), _BOTH_DIRECTIONS)
    for errors in (metrics, *metrics.get("inter_ocular", {}).values()):
        _require_errors(errors, num_points, num_landmarks)
    for kind in ("raw", "regressed"):
        parts = [list(row["by_part"]) for row in metrics[kind].values()]
        if not parts or any(part != parts[0] for part in parts):
            raise ValueError(f"'{kind}' does not measure the same parts everywhere")


def _require_errors(errors: Mapping[str, Any], num_points: int, num_landmarks: int) -> None:
    """Check that tables have no gaps, and that there is an error for each point and each threshold."""
    headline, rows = errors["headline"], errors["errors"]
    for direction, count in (("forward", num_points), ("backward", num_landmarks)):
        curve = headline[direction]
        by_point = [curve[key] for key in ("by_point", "guessing_by_point") if key in curve]
        if any(len(values) != count for values in by_point):
            raise ValueError(f"'{direction}' does not have {count} points")
        if len(curve["within"]) != len(headline["thresholds"]):
            raise ValueError(f"'{direction}' does not have a value for each threshold")
    regressors = {row["regressor"] for row in rows}
    numbers_of_images = {row["images"] for row in rows}
    pairs = {(row["images"], row["regressor"]) for row in rows}
    if not rows or len(pairs) != len(numbers_of_images) * len(regressors):
        raise ValueError("'errors' does not have each regressor for each number of images")
    fitted_on_all = {row["regressor"] for row in rows if row["all"]}
    stage1 = errors["stage1"]
    if not {row["regressor"] for row in stage1["errors"]} <= fitted_on_all:
        raise ValueError("'stage1' has a regressor that 'errors' lacks")
    if "backward_found" in stage1.get("guessing", {}) and not all(
        "backward_found" in row for row in stage1["errors"]
    ):
        raise ValueError("'backward_found' is missing")
