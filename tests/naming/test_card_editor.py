"""Test concurrent edits of model.json, and edits that cannot be written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from selfmark.errors import InputError
from selfmark.naming.card_editor import CardEditor
from selfmark.naming.edits import SetHidden, SetName
from tests.naming.toy_server import CARD, make_toy_folder


def test_concurrent_editors_lose_no_edits(tmp_path: Path) -> None:
    """The editors share only the folder, as two processes would."""
    make_toy_folder(tmp_path / "toy")
    editors = [CardEditor(tmp_path / "toy" / "model") for _ in range(2)]

    def edit_repeatedly(number: int) -> None:
        for step in range(30):
            editors[number].edit([SetName(number, f"{number} {step}"), SetHidden(2 + number, bool(step % 2))])

    threads = [threading.Thread(target=edit_repeatedly, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    card = editors[0].read()
    assert card.names[:2] == ("0 29", "1 29")
    assert card.hidden == (2, 3)


def test_full_disk_is_reported_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_toy_folder(tmp_path / "toy")
    editor = CardEditor(tmp_path / "toy" / "model")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("selfmark.run.files.os.fsync", fail)
    with pytest.raises(InputError, match="No space left"):
        editor.edit([SetName(0, "nose")])
    assert editor.read() == CARD
