"""Define the metrics that experiment files can name, with functions that read them from metrics.json.

>>> parse_metric("raw_accuracy head+knees")[1]
'head+knees'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from selfmark.errors import InputError, suggest
from selfmark.evaluation.normalizers import group_by_part

# Content of metrics.json. Its entry `headline` has the errors with the ridge of the settings
# (`evaluation.ridge`) and with all images for fitting; the entry `errors` has those of all regressors.
Results = dict[str, Any]
Value = float | list[Any] | str | None
ExperimentKind = Literal["table", "curves", "bars", "map", "sheet"]
ValueKind = Literal["number", "line", "map", "picture"]
# `workspace` has a function for each kind of measurement. Keep the names, because digests contain them.
MeasurementKind = Literal[
    "keypoints",
    "stage1",
    "rounds",
    "detector",
    "keypoint map",
    "map",
    "keypoint sheet",
    "sheet",
    "matched sheet",
]
ReadValue = Callable[[Results, str], Value]  # reads a value from results, given the metric's argument

# Kinds of values that each kind of experiment can show.
VALUE_KINDS: dict[ExperimentKind, tuple[ValueKind, ...]] = {
    "table": ("number",),
    "curves": ("line",),
    "bars": ("line",),
    "map": ("map",),
    "sheet": ("picture",),
}

# The paper's body parts as groups of point names, see `normalizers.group_by_part`.
PARTS: dict[str, tuple[str, ...]] = {
    "head": ("head", "head_top", "nose"),
    "shoulders": ("shoulder",),
    "elbows": ("elbow",),
    "hands": ("wrist", "hand"),
    "waist": ("hip", "pelvis", "waist"),
    "knees": ("knee",),
    "legs": ("ankle", "foot"),
}


@dataclass(frozen=True)
class Metric:
    """A metric of experiment files.

    Attributes:
        measured_by: Kind of measurement whose results contain the metric.
        kind: Kind of value.
        read: Returns the value, given the results and the argument.
        argument: Placeholder for the argument, e.g. FIELD; empty if the metric takes no argument.
    """

    measured_by: MeasurementKind
    kind: ValueKind
    read: ReadValue
    argument: str = ""


def parse_metric(text: str) -> tuple[Metric, str]:
    """Return the metric that a file names, and its argument.

    Raises:
        InputError: The metric is unknown, or its argument is missing, superfluous or unknown.
    """
    name, _, argument = text.partition(" ")
    if name not in METRICS:
        hint = suggest(name, METRICS) or f" The metrics are {', '.join(METRICS)}"
        raise InputError(f"unknown metric '{name}'.{hint}")
    metric = METRICS[name]
    if bool(argument) != bool(metric.argument):
        raise InputError(f"the metric '{name}' takes {metric.argument or 'no argument'}, not '{argument}'")
    if metric.argument == "PART+PART":
        _split_parts(argument)
    return metric, argument


def list_required_inputs(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the inputs that a metric needs: annotation fields to group errors by, and keypoint detectors."""
    metric, argument = parse_metric(text)
    fields = (argument.split("=")[0],) if metric.argument.startswith("FIELD") else ()
    return fields, (argument,) if metric.argument == "DETECTOR" else ()


# --- functions that read a value ---------------------------------------------------------------------------


def _make_error_reader(direction: str) -> ReadValue:
    """Return a reader of Stage 2's error.

    If regressors are fitted on several random samples (draws) of images, the function reads the mean over the
    draws.
    """

    def read(results: Results, _: str) -> Value:
        headline: Results = results["headline"]
        means_over_draws = [
            row[direction]["mean"]
            for row in results.get("errors", ())
            if not row["all"] and row["regressor"] == headline["regressor"]
        ]
        return float(means_over_draws[-1] if means_over_draws else headline[direction]["error"])

    return read


def _make_curve_reader(direction: str) -> ReadValue:
    """Return a reader of a cumulative curve, or of the mean curve if there are several draws."""

    def read(results: Results, _: str) -> Value:
        drawn = results.get("curves") or ()
        line: Value = drawn[-1][direction]["mean"] if drawn else results["headline"][direction]["cumulative"]
        return line

    return read


def _make_spread_reader(direction: str) -> ReadValue:
    """Return a reader of a curve's standard deviation over draws; None if regressors are fitted only once."""

    def read(results: Results, _: str) -> Value:
        drawn = results.get("curves") or ()
        line: Value = drawn[-1][direction]["spread"] if drawn else None
        return line

    return read


def _make_guessing_reader(direction: str) -> ReadValue:
    """Return a reader of the curve of guessing the mean shape; None in results of an earlier version."""
    return lambda results, _: results["headline"][direction].get("guessing_cumulative")


def _make_stage1_reader(entry: str) -> ReadValue:
    """Return a reader of Stage 1's error with the regressor of `headline`."""

    def read(results: Results, _: str) -> Value:
        regressor = results["headline"]["regressor"]
        errors: list[Results] = results["stage1"]["errors"]
        value = next(row.get(entry) for row in errors if row["regressor"] == regressor)
        return None if value is None else float(value)

    return read


def _make_stage1_guessing_reader(entry: str) -> ReadValue:
    """Return a reader of the error of guessing Stage 1's landmarks; None in results of an earlier version."""
    return lambda results, _: results["stage1"].get("guessing", {}).get(entry)


def _read_forward_in_group(results: Results, argument: str) -> Value:
    field, _, value = argument.partition("=")
    group = results["by"][field].get(value)
    return None if group is None else group["forward"]


def _make_parts_reader(section: str, limit: str) -> ReadValue:
    """Return a reader that averages hit rates over the points of each body part, then over the parts.

    Args:
        section: "raw" or "regressed".
        limit: Word in the description of the limit, the largest distance that counts as a hit.
    """

    def read(results: Results, argument: str) -> Value:
        rates = _find_hit_rates(results, section, limit, "by_point")
        if rates is None:
            return None
        groups = group_by_part(results["points"])
        means = []
        for part in _split_parts(argument):
            points = [point for word in PARTS[part] for point in groups.get(word, ())]
            known = [rates[point] for point in points if rates[point] is not None]
            if not known:  # The data set does not have this part.
                return None
            means.append(float(np.mean(known)))
        return float(np.mean(means))

    return read


def _make_hits_reader(section: str, limit: str, entry: str) -> ReadValue:
    """Return a reader of hit rates: the rate of each point ("by_point"), or their mean ("average")."""
    return lambda results, _: _find_hit_rates(results, section, limit, entry)


def _find_hit_rates(results: Results, section: str, limit: str, entry: str) -> Any:
    """Find the first hit rates with `limit` in their description; return the given entry, or None."""
    return next((hits[entry] for name, hits in results[section].items() if limit in name), None)


def _split_parts(argument: str) -> list[str]:
    parts = argument.split("+")
    unknown_parts = [part for part in parts if part not in PARTS]
    if unknown_parts:
        raise InputError(f"unknown body part '{unknown_parts[0]}'; the parts are {', '.join(PARTS)}")
    return parts


def _read_errors_by_round(results: Results, _: str) -> Value:
    return [_make_stage1_reader("forward")(entry, "") for entry in results["rounds"]]


def _read_pose_sheet(results: Results, field: str) -> Value:
    """Return the sheet of images sorted by a field; results of an earlier version have one such sheet."""
    sheet: str | None = results.get("pose_sheets", {}).get(field, results.get("pose_sheet"))
    return sheet


def _make_entry_reader(name: str) -> ReadValue:
    return lambda results, _: results[name]


# Words that identify hit limits by their descriptions.
_EYES, _PIXELS, _TORSO = "inter-ocular", " px at ", "torso"

METRICS: dict[str, Metric] = {
    # Stage 2's errors in percent of the normalizer, with the regressor of `headline`; and the number of
    # landmarks.
    "forward": Metric("detector", "number", _make_error_reader("forward")),
    "backward": Metric("detector", "number", _make_error_reader("backward")),
    "backward_guessing": Metric("detector", "number", lambda results, _: results["guessing"]["backward"]),
    "forward_in": Metric("detector", "number", _read_forward_in_group, "FIELD=VALUE"),
    "landmarks": Metric("detector", "number", lambda results, _: float(len(results["landmarks"]))),
    # Stage 1's error, with missing landmarks filled in.
    "stage1_forward": Metric("stage1", "number", _make_stage1_reader("forward")),
    "stage1_backward": Metric("stage1", "number", _make_stage1_reader("backward")),
    "stage1_backward_guessing": Metric("stage1", "number", _make_stage1_guessing_reader("backward")),
    # Stage 1's error over the landmarks that were found, without filling in missing ones.
    "stage1_backward_found": Metric("stage1", "number", _make_stage1_reader("backward_found")),
    "stage1_backward_found_guessing": Metric(
        "stage1", "number", _make_stage1_guessing_reader("backward_found")
    ),
    # Mean number of landmarks that Stage 1 finds in an image.
    "stage1_points": Metric("stage1", "number", lambda results, _: results["stage1"]["points_per_image"]),
    # Hit rates: percent of annotated points whose matched landmark (raw) or predicted point (regressed) is
    # within the limit.
    "raw_accuracy": Metric("detector", "number", _make_parts_reader("raw", _PIXELS), "PART+PART"),
    "raw_pck": Metric("detector", "number", _make_parts_reader("raw", _TORSO), "PART+PART"),
    "regressed_accuracy": Metric("detector", "number", _make_parts_reader("regressed", _PIXELS), "PART+PART"),
    "regressed_average": Metric("detector", "number", _make_hits_reader("regressed", _PIXELS, "average")),
    # AP and AR over OKS, from 0 to 1; the argument is an entry of metrics.json, e.g. "AP 0.5".
    "oks": Metric("detector", "number", lambda results, entry: results["oks"].get(entry), "ENTRY"),
    # Percent of a generic detector's keypoints that lie on an annotated point; this needs no training.
    "precision": Metric("keypoints", "number", lambda results, name: results["precision"][name], "DETECTOR"),
    # Lines: mean error of the n best points, error after each round, hit rate of each point.
    "forward_curve": Metric("detector", "line", _make_curve_reader("forward")),
    "forward_curve_spread": Metric("detector", "line", _make_spread_reader("forward")),
    "forward_curve_guessing": Metric("detector", "line", _make_guessing_reader("forward")),
    "backward_curve": Metric("detector", "line", _make_curve_reader("backward")),
    "backward_curve_spread": Metric("detector", "line", _make_spread_reader("backward")),
    "backward_curve_guessing": Metric("detector", "line", _make_guessing_reader("backward")),
    "forward_by_round": Metric("rounds", "line", _read_errors_by_round),
    "raw_by_point": Metric("detector", "line", _make_hits_reader("raw", _EYES, "by_point")),
    # Maps of descriptors: x, y and the annotated point of each descriptor.
    "keypoint_map": Metric("keypoint map", "map", _make_entry_reader("map")),
    "descriptor_map": Metric("map", "map", _make_entry_reader("map")),
    # Pictures, as names of files in the folder of metrics.json.
    "keypoint_sheet": Metric("keypoint sheet", "picture", _make_entry_reader("keypoint_sheet")),
    "landmark_sheet": Metric("sheet", "picture", _make_entry_reader("landmark_sheet")),
    "pose_sheet": Metric("sheet", "picture", _read_pose_sheet, "FIELD"),
    "matched_sheet": Metric("matched sheet", "picture", _make_entry_reader("matched_sheet")),
}
