"""Collect what the watch page shows from the log of a run: stage, time left, losses and previews."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from selfmark.run.event_log import LOG_NAME, Event, EventTail
from selfmark.run.files import view_folders
from selfmark.run.locks import is_locked
from selfmark.run.stage_names import describe_stage
from selfmark.run.time_left import TimeLeft
from selfmark.wording import describe_count

MAX_LOSSES = 400  # maximum number of points of a loss curve on the page
_SILENT_SECONDS = 10  # a run that is not locked still counts as running for this time after its last event
_ROUND = re.compile(r"(student|keypoints|round)-0*(\d+)")
_ROUND_CAPTIONS = {
    "student": "after round",
    "keypoints": "from keypoints, round",
    "round": "keypoints of round",
}


class RunState:
    """The state of a run that may still be training; call `update` before reading it."""

    def __init__(self, folder: Path) -> None:
        """Watch a run folder.

        Args:
            folder: the folder; its log may be missing or empty.
        """
        self.folder = folder
        self._start_again()

    def _start_again(self) -> None:
        """Forget all events, and read the log from its start."""
        self._tail = EventTail(self.folder / LOG_NAME)
        self._time_left = TimeLeft()
        self._summary: list[str] = []
        self._messages: list[str] = []
        self._stage = "starting"
        self._progress = (0, 0)  # done and total iterations or images of the current stage
        self._rounds = (0, 0)  # number of rounds of Stage 1, and of rounds of the student
        self._losses: dict[str, list[tuple[int, float]]] = {}  # stage -> [(iteration, loss), ...]
        self._previews: dict[str, str] = {}  # step -> note on its preview
        self._verdict = ""
        self._is_done = False
        self._last_event = 0.0  # seconds since 1970

    def update(self) -> None:
        """Read the new events of the log; the method `_on_KIND`, if any, handles events of kind KIND.

        If the run was deleted, or another run was started in its folder, nothing of the old run is kept.
        """
        events = self._tail.read_new()
        if self._tail.is_other:
            self._start_again()
            events = self._tail.read_new()
        for event in events:
            self._time_left(event)
            self._last_event = event.get("time", self._last_event)
            handler = getattr(self, f"_on_{event['event']}", None)
            if handler is not None:
                handler(event)

    def to_json(self) -> dict[str, Any]:
        """Return everything that the page shows."""
        seconds = self._time_left.seconds()
        return {
            "title": self.folder.resolve().name,
            "status": self._describe_status(),
            "resume": f"selfmark discover -o {_find_folder_to_resume(self.folder)} --resume",
            "stage": self._stage,
            "progress": self._progress,
            "seconds_left": None if seconds is None else round(seconds),
            "summary": self._summary,
            "messages": self._messages[-20:],
            "losses": [
                {"name": name, "points": thin_out(points)} for name, points in self._losses.items() if points
            ],
            "previews": self._list_previews(),
            "verdict": self._verdict,
        }

    @property
    def is_started(self) -> bool:
        """Whether the log had any event at the last update."""
        return self._last_event > 0

    def _describe_status(self) -> str:
        if self._is_done:
            return "done"
        is_recent = abs(time.time() - self._last_event) < _SILENT_SECONDS
        return "running" if is_recent or is_locked(self.folder) else "stopped"

    def preview_path(self, step: str) -> Path | None:
        """Return the path of the preview of a step; None if the log mentions no such preview."""
        return self.folder / "preview" / f"{step}.jpg" if step in self._previews else None

    def _list_previews(self) -> list[dict[str, Any]]:
        """Return the previews that exist, in the order of their events."""
        previews = []
        for step, note in self._previews.items():
            path = self.folder / "preview" / f"{step}.jpg"
            if path.exists():
                version = path.stat().st_mtime_ns
                previews.append(
                    {"step": step, "caption": describe_step(step), "note": note, "version": version}
                )
        return previews

    # --- one method per event -------------------------------------------------------------------------

    def _on_start(self, event: Event) -> None:
        self._is_done = False
        self._summary = [
            f"{describe_count(event['images'], 'image')}, {event['K']} landmarks, preset {event['preset']} "
            f"on {event['device']}"
        ]

    def _on_estimate(self, event: Event) -> None:
        self._summary.append(event["text"])

    def _on_survey(self, event: Event) -> None:
        self._messages += event["sentences"][1:]  # The first sentence only describes the images.

    def _on_note(self, event: Event) -> None:
        self._messages.append(event["text"])

    _on_advice = _on_note

    def _on_plan(self, event: Event) -> None:
        self._rounds = (event["rounds"], event.get("student_rounds", 0))

    def _on_progress(self, event: Event) -> None:
        self._stage = describe_stage(event["stage"], event["round"], *self._rounds)
        self._progress = (event["done"], event["of"])

    def _on_train(self, event: Event) -> None:
        self._is_done = False
        self._stage = describe_stage(event["stage"], event["round"], *self._rounds)
        self._progress = (event["iteration"] - event["start"], event["stop"] - event["start"])
        points = self._losses.setdefault(self._stage, [])
        while points and points[-1][0] >= event["iteration"]:  # a resumed run repeats some iterations
            points.pop()
        if event["loss"]["total"] is not None:  # null stands for NaN
            points.append((event["iteration"], event["loss"]["total"]))

    def _on_preview(self, event: Event) -> None:
        self._previews.setdefault(event.get("step", Path(event["path"]).stem), "")

    def _on_agreement(self, event: Event) -> None:
        if event["is_kept"]:
            return
        if event["stage"] == "student":
            self._previews[f"student-{event.get('round', 0)}"] = (
                "this round was worse than the first landmarks, so it was undone"
            )
        else:
            self._messages.append("landmarks from keypoints contradict the first landmarks and are not used")

    def _on_verdict(self, event: Event) -> None:
        self._verdict = f"{event['verdict']}. {event['text']}"

    def _on_done(self, event: Event) -> None:
        self._is_done = True
        self._stage = "finished"
        self._progress = (1, 1)


def _find_folder_to_resume(folder: Path) -> Path:
    """Return the folder for `discover -o FOLDER --resume`: for one view of a run, the folder of all views."""
    return folder.parent if folder in view_folders(folder.parent) else folder


def describe_step(step: str) -> str:
    """Return the caption of a preview.

    >>> [describe_step(step) for step in ("zero-shot", "student-2", "keypoints-1", "round-03", "detector")]
    ['first landmarks', 'after round 2', 'from keypoints, round 1', 'keypoints of round 3', 'detector']
    """
    match = _ROUND.fullmatch(step)
    if match:
        return f"{_ROUND_CAPTIONS[match[1]]} {match[2]}"
    return {"zero-shot": "first landmarks", "stage-1": "landmarks of Stage 1"}.get(step, step)


def thin_out(points: Iterable[tuple[int, float]], max_points: int = MAX_LOSSES) -> list[tuple[int, float]]:
    """Reduce a curve to at most `max_points` points by averaging groups of neighboring points.

    >>> thin_out([(1, 4.0), (2, 2.0), (3, 1.0), (4, 1.0), (5, 0.5)], max_points=3)
    [(2, 3.0), (4, 1.0), (5, 0.5)]
    """
    rows = list(points)
    step = math.ceil(len(rows) / max_points)
    if step <= 1:
        return rows
    groups = [rows[start : start + step] for start in range(0, len(rows), step)]
    return [(group[-1][0], round(sum(loss for _, loss in group) / len(group), 6)) for group in groups]
