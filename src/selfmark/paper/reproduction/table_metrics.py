"""Every metric an experiment may ask for: a word, and a pure function from metrics.json to what it means.

>>> metric("raw_accuracy head+knees")[1]
'head+knees'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from selfmark.errors import InputError
from selfmark.evaluation.normalizers import part_groups

Figures = dict[str, Any]
Value = float | list[Any] | str | None
Kind = Literal["table", "curves", "bars", "map", "sheet"]
Shape = Literal["number", "line", "map", "picture"]
# What a cell's number comes from: see `work` for each.
Need = Literal[
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

# What can be shown how.
KINDS: dict[Kind, tuple[Shape, ...]] = {
    "table": ("number",),
    "curves": ("line",),
    "bars": ("line",),
    "map": ("map",),
    "sheet": ("picture",),
}

# The paper's parts of the body in the words of point names, see `normalize.part_groups`.
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
    """What must be measured for it, what it is, how it is read off; `argument` says of what, if anything."""

    need: Need
    kind: Shape
    read: Callable[[Figures, str], Value]
    argument: str = ""


def parse_metric(text: str) -> tuple[Metric, str]:
    """The metric a file names, and its argument."""
    word, _, argument = text.partition(" ")
    if word not in METRICS:
        raise InputError(f"there is no metric '{word}'; there are {', '.join(METRICS)}")
    found = METRICS[word]
    if bool(argument) != bool(found.argument):
        raise InputError(f"the metric '{word}' takes {found.argument or 'no argument'}, not '{argument}'")
    if found.argument == "PART+PART":
        _parts(argument)
    return found, argument


def required_fields(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The annotation fields to break errors down by, and the keypoint detectors, that a metric asks for."""
    found, argument = parse_metric(text)
    by = (argument.split("=")[0],) if found.argument.startswith("FIELD") else ()
    return by, (argument,) if found.argument == "DETECTOR" else ()


# --- how each is read off --------------------------------------------------------------------------------


def _headline(direction: str, entry: str) -> Callable[[Figures, str], Value]:
    return lambda figures, _: figures["headline"][direction][entry]


def _stage1(direction: str) -> Callable[[Figures, str], Value]:
    """With the regressor of the headline figures, as Stage 2's error is."""

    def read(figures: Figures, _: str) -> Value:
        regressor = figures["headline"]["regressor"]
        errors: list[Figures] = figures["stage1"]["errors"]
        return float(next(row[direction] for row in errors if row["regressor"] == regressor))

    return read


def _forward_in(figures: Figures, argument: str) -> Value:
    field, _, value = argument.partition("=")
    group = figures["by"][field].get(value)
    return None if group is None else group["forward"]


def _hits(of: str, limit: str) -> Callable[[Figures, str], Value]:
    """Mean over parts of the mean over the points of a part."""

    def read(figures: Figures, argument: str) -> Value:
        name = next((name for name in figures[of] if limit in name), None)
        if name is None:
            return None
        groups = part_groups(figures["points"])
        rates = figures[of][name]["by_point"]
        means = []
        for part in _parts(argument):
            points = [point for word in PARTS[part] for point in groups.get(word, ())]
            known = [rates[point] for point in points if rates[point] is not None]
            means.append(float(np.mean(known)) if known else None)
        known = [mean for mean in means if mean is not None]
        return float(np.mean(known)) if len(known) == len(means) else None

    return read


def _parts(argument: str) -> list[str]:
    parts = argument.split("+")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise InputError(f"there is no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    return parts


def _average(of: str, limit: str) -> Callable[[Figures, str], Value]:
    """Mean over all points."""
    return lambda figures, _: next(
        (hits["average"] for name, hits in figures[of].items() if limit in name), None
    )


def _by_point(of: str, limit: str) -> Callable[[Figures, str], Value]:
    def read(figures: Figures, _: str) -> Value:
        name = next((name for name in figures[of] if limit in name), None)
        return None if name is None else figures[of][name]["by_point"]

    return read


def _by_round(figures: Figures, _: str) -> Value:
    return [_stage1("forward")(entry, "") for entry in figures["rounds"]]


_EYES, _PIXELS, _TORSO = "inter-ocular", " px at ", "torso"

METRICS: dict[str, Metric] = {
    # Percent of the normalizer, Stage 2 and the headline regressor.
    "forward": Metric("detector", "number", _headline("forward", "error")),
    "backward": Metric("detector", "number", _headline("backward", "error")),
    "forward_in": Metric("detector", "number", _forward_in, "FIELD=VALUE"),
    "landmarks": Metric("detector", "number", lambda figures, _: float(len(figures["landmarks"]))),
    # The same of Stage 1, gaps filled in.
    "stage1_forward": Metric("stage1", "number", _stage1("forward")),
    "stage1_backward": Metric("stage1", "number", _stage1("backward")),
    "stage1_points": Metric("stage1", "number", lambda figures, _: figures["stage1"]["points_per_image"]),
    # Percent of points hit.
    "raw_accuracy": Metric("detector", "number", _hits("raw", _PIXELS), "PART+PART"),
    "raw_pck": Metric("detector", "number", _hits("raw", _TORSO), "PART+PART"),
    "regressed_accuracy": Metric("detector", "number", _hits("regressed", _PIXELS), "PART+PART"),
    "regressed_average": Metric("detector", "number", _average("regressed", _PIXELS)),
    # AP and AR over OKS, 0 to 1; the argument is an entry of metrics.json, e.g. "AP 0.5".
    "oks": Metric("detector", "number", lambda figures, entry: figures["oks"].get(entry), "ENTRY"),
    # Percent of a generic detector's keypoints on an annotated point; nothing is trained for it.
    "precision": Metric("keypoints", "number", lambda figures, name: figures["precision"][name], "DETECTOR"),
    # Lines: the mean error of the n best points, of each round, the hits of each point.
    "forward_curve": Metric("detector", "line", _headline("forward", "cumulative")),
    "backward_curve": Metric("detector", "line", _headline("backward", "cumulative")),
    "forward_by_round": Metric("rounds", "line", _by_round),
    "raw_by_point": Metric("detector", "line", _by_point("raw", _EYES)),
    # Maps of descriptors: x, y and the annotated point nearest to each.
    "keypoint_map": Metric("keypoint map", "map", lambda figures, _: figures["map"]),
    "descriptor_map": Metric("map", "map", lambda figures, _: figures["map"]),
    # Pictures, as names of files beside metrics.json.
    "keypoint_sheet": Metric("keypoint sheet", "picture", lambda figures, _: figures["keypoint_sheet"]),
    "landmark_sheet": Metric("sheet", "picture", lambda figures, _: figures["landmark_sheet"]),
    "pose_sheet": Metric("sheet", "picture", lambda figures, _: figures["pose_sheet"], "FIELD"),
    "matched_sheet": Metric("matched sheet", "picture", lambda figures, _: figures["matched_sheet"]),
}
