"""Read log.jsonl, the events of a run, without importing torch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from selfmark.run.guarded_files import MAX_TEXT_BYTES, open_to_read
from selfmark.run.json_schema import (
    Check,
    is_bool,
    is_count,
    is_dict_of,
    is_list_of,
    is_none_or,
    is_number,
    is_text,
    parse_json,
    require_fields,
)

Event = dict[str, Any]

LOG_NAME = "log.jsonl"

# For each event, the fields that readers of the log rely on.
_FIELDS: dict[str, dict[str, Check]] = {
    "start": {
        "images": is_count,
        "K": lambda value: is_count(value) or is_text(value),  # a number, or "auto"
        "preset": is_text,
        "device": is_text,
    },
    "images": {"used": is_count},
    "skipped": {"name": is_text},
    "plan": {"rounds": is_count},
    "progress": {"stage": is_text, "round": is_count, "done": is_count, "of": is_count},
    "train": {
        "stage": is_text,
        "round": is_count,
        "iteration": is_count,
        "start": is_count,
        "stop": is_count,
        "seconds": is_number,
        "loss": lambda loss: is_dict_of(is_none_or(is_number))(loss) and "total" in loss,
    },
    "movement": {
        "stage": is_text,
        "round": is_count,
        "iteration": is_count,
        "percent": is_none_or(is_number),
        "skipped": is_count,
    },
    "recovery": {"round": is_count},
    "landmark_count": {"K": is_count, "why": is_text},
    "merge": {"iteration": is_count, "before": is_count, "after": is_count},
    "agreement": {"stage": is_text, "is_kept": is_bool},
    "estimate": {"seconds_per_iteration": is_dict_of(is_number), "after": is_number, "text": is_text},
    "preview": {"path": is_text},
    "survey": {"sentences": is_list_of(is_text)},
    "note": {"text": is_text},
    "advice": {"text": is_text},
    "verdict": {"verdict": is_text, "text": is_text},
}
_TRIAL = ("K", "score", "error", "detection", "separation", "agreement")  # fields of the trial of one K
# Fields that any event may have; they are checked if present.
_OPTIONAL: dict[str, Check] = {
    "time": is_number,
    "stages": is_dict_of(is_count),
    "student_rounds": is_count,
    "round": is_count,
    "step": lambda value: is_text(value) and re.fullmatch(r"[\w-]+", value) is not None,  # a file name
    "trials": is_list_of(
        lambda trial: isinstance(trial, dict) and all(is_number(trial.get(name)) for name in _TRIAL)
    ),
}


def parse_events(text: str) -> list[Event]:
    """Parse a log with one JSON event per line.

    Lines that are not valid JSON, for example because a killed process cut them off, are skipped. Events are
    also skipped if a field that readers rely on is missing or invalid.
    """
    events: list[Event] = []
    for line in text.splitlines():
        try:
            event = parse_json(line)
            require_fields(event, {"event": is_text}, _OPTIONAL)
            require_fields(event, _FIELDS.get(event["event"], {}))
        except ValueError:
            continue
        events.append(event)
    return events


class EventTail:
    """Reads the events that were added to a log since the last call.

    Attributes:
        is_other: whether the log was deleted or replaced by another one after the first call.
    """

    def __init__(self, path: Path) -> None:
        """Start at the beginning of a log file, which need not exist yet."""
        self.is_other = False
        self._path = path
        self._offset = 0
        self._inode = 0  # inode number of the log file; 0 until the file is first read

    def read_new(self) -> list[Event]:
        """Return new events; a line that is still incomplete is left for the next call."""
        try:
            with open_to_read(self._path, MAX_TEXT_BYTES) as handle:
                status = os.fstat(handle.fileno())
                self.is_other = self._inode not in (0, status.st_ino) or status.st_size < self._offset
                if self.is_other:
                    return []
                self._inode = status.st_ino
                handle.seek(self._offset)
                content = handle.read()
        except FileNotFoundError:
            self.is_other = self._inode != 0
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        return parse_events(complete.decode("utf-8", errors="replace"))
