"""Estimate the remaining time of a run from its log events, for progress displays and the watch page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SECOND_TRAINING = "training a second detector"
"""Stage of the progress events of a verification, see `verification`."""

# Mapping from the stage of an `agreement` event that rejects landmarks to the stages that end with it.
_ENDED_STAGES = {
    "student": ("student",),
    "warm-up": ("warm-up", "round"),
    "keypoints": ("warm-up", "round"),
}
_PLANNED_STAGES = {"keypoints": "student"}  # from names in events to names in the plan, where they differ


def _planned_stage(stage: str) -> str:
    """Return the name that the stage of an event has in the plan."""
    return _PLANNED_STAGES.get(stage, stage)


@dataclass
class TimeLeft:
    """Estimates the remaining seconds of a run; call it with every event.

    Each stage has its own pace, measured from its `train` events. A stage without such events gets the pace
    of the `estimate` event. If there was no estimate, it gets the pace of the stage that was measured last.
    """

    _planned: dict[str, int] = field(default_factory=dict)  # stage: planned iterations, in order
    _done: dict[str, int] = field(default_factory=dict)  # stage: finished iterations
    _pace: dict[str, float] = field(default_factory=dict)  # stage: seconds per iteration
    _latest: str = ""  # stage that was measured last
    _after: float = 0.0  # seconds that the run takes after the training
    # iteration and seconds of the first event, by stage and round
    _first_events: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    _second_training: tuple[float, int] | None = None  # time and iterations done at its first event
    _is_done: bool = False

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Update the estimate with an event."""
        kind = event["event"]
        if kind == "estimate":
            self._pace = {**event["seconds_per_iteration"], **self._pace}
            self._after = event["after"]
        elif kind == "plan":
            self._planned = dict(event.get("stages", {}))
        elif kind == "train":
            self._count_iterations(event)
        elif kind == "movement" and event["skipped"]:
            # The pace is measured again from the next event, because iterations were skipped.
            self._first_events.pop((_planned_stage(event["stage"]), event["round"]), None)
        elif kind == "agreement" and not event["is_kept"]:
            for stage in _ENDED_STAGES.get(event["stage"], ()):
                self._done[stage] = self._planned.get(stage, 0)
        elif kind == "progress" and event["stage"] == SECOND_TRAINING:
            self._count_second_training(event)
        elif kind == "done":
            self._is_done = True

    def seconds(self) -> float | None:
        """Return the seconds that are left; None if they are not known yet."""
        if self._is_done:
            return 0.0
        if not self._planned or not self._pace:
            return None
        fallback = self._pace.get(self._latest, max(self._pace.values()))
        left = sum(
            max(0, iterations - self._done.get(stage, 0)) * self._pace.get(stage, fallback)
            for stage, iterations in self._planned.items()
        )
        return left + self._after

    def _count_iterations(self, event: Mapping[str, Any]) -> None:
        """Count the iterations done, and measure the pace of the event's stage."""
        stage, number = _planned_stage(event["stage"]), event["round"]
        if stage not in self._planned:
            return
        length = event["stop"] - event["start"]
        # The phases of Stage 2 may differ in length; the rounds of other stages have equal length.
        before = event["start"] if stage == "stage 2" else max(number - 1, 0) * length
        self._done[stage] = before + event["iteration"] - event["start"]
        for earlier in list(self._planned)[: list(self._planned).index(stage)]:
            self._done[earlier] = self._planned[earlier]
        first = self._first_events.setdefault((stage, number), (event["iteration"], event["seconds"]))
        if event["seconds"] < first[1]:  # The run was interrupted in this round and resumed.
            first = self._first_events[(stage, number)] = (event["iteration"], event["seconds"])
        if event["iteration"] > first[0]:
            self._pace[stage] = (event["seconds"] - first[1]) / (event["iteration"] - first[0])
        elif stage not in self._pace and event["iteration"] > event["start"]:
            self._pace[stage] = event["seconds"] / (event["iteration"] - event["start"])
        self._latest = stage

    def _count_second_training(self, event: Mapping[str, Any]) -> None:
        """Replace the estimate of the time after the training by the rest of the second training."""
        self._done = dict(self._planned)
        if "time" not in event:
            return
        if self._second_training is None:
            self._second_training = (event["time"], event["done"])
            return
        start, first = self._second_training
        if event["done"] > first:
            self._after = (event["time"] - start) / (event["done"] - first) * (event["of"] - event["done"])


def describe_time_left(seconds: float | None) -> str:
    """Return the remaining time in words; empty if it is not known.

    >>> describe_time_left(9.6), describe_time_left(125), describe_time_left(7300), describe_time_left(None)
    ('10 s left', '2 min left', '2 h 2 min left', '')
    """
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{round(seconds)} s left"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min left"
    return f"{minutes // 60} h {minutes % 60} min left"
