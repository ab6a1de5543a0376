"""Read log.jsonl, the events of a run, without importing torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from selfmark.run.guarded_files import MAX_TEXT_BYTES, open_to_read

Event = dict[str, Any]

LOG_NAME = "log.jsonl"


def parse_events(text: str) -> list[Event]:
    """Return the events of lines of JSON; skip a line that was cut off when the process was killed."""
    events: list[Event] = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


class EventTail:
    """Reads the events that were added to a log since the last call."""

    def __init__(self, path: Path) -> None:
        """Start at the beginning of a file, which need not exist yet."""
        self._path = path
        self._offset = 0

    def read_new(self) -> list[Event]:
        """Return new events; a line that is not complete yet is left for the next call."""
        try:
            with open_to_read(self._path, MAX_TEXT_BYTES) as handle:
                handle.seek(self._offset)
                content = handle.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        return parse_events(complete.decode("utf-8", errors="replace"))
