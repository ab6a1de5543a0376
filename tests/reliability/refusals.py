"""Run commands that must be refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import selfmark
from tests.stored_results import read_files


def read_refusal(folder: Path, capsys: pytest.CaptureFixture[str], *command: object) -> str:
    """Run a command that must be refused and change nothing in the folder; return its message."""
    before = read_files(folder)
    capsys.readouterr()
    assert selfmark(*command) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert "choose another" in error
    assert read_files(folder) == before
    return error
