"""Test reading a log that is still being written."""

from __future__ import annotations

from pathlib import Path

from selfmark.run.event_log import EventTail, parse_events


def test_new_events_are_read_once_and_only_from_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = EventTail(path)
    assert tail.read_new() == []  # The file does not exist yet.
    path.write_text('{"event": "a"}\n{"event": "b"}\n{"eve')
    assert [event["event"] for event in tail.read_new()] == ["a", "b"]
    assert tail.read_new() == []
    with path.open("a") as handle:
        handle.write('nt": "c", "text": "ü"}\n')
    assert tail.read_new() == [{"event": "c", "text": "ü"}]


def test_lines_without_an_event_are_skipped() -> None:
    assert parse_events('{"event": "a"}\n[1]\n{"no": 1}\n{"event": "b"\n') == [{"event": "a"}]


def test_a_log_that_was_deleted_or_replaced_is_another_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "first"}\n')
    tail = EventTail(path)
    assert [event["event"] for event in tail.read_new()] == ["first"]
    assert not tail.is_other
    # The old file is kept under another name, so that the new file cannot get the same inode number.
    path.rename(tmp_path / "old.jsonl")
    assert tail.read_new() == []
    assert tail.is_other, "deleted"
    path.write_text('{"event": "a longer event than the first one"}\n')
    assert tail.read_new() == []
    assert tail.is_other, "replaced"
    assert len(EventTail(path).read_new()) == 1
