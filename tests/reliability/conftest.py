"""Runs without the work that follows training, which these tests do not look at."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from selfmark import discovery


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the checks and the report at the end of a run."""

    def nothing(*arguments: Any, **options: Any) -> None:
        pass

    monkeypatch.setattr(discovery, "check_run", nothing)
    monkeypatch.setattr(discovery, "build_report", nothing)


@pytest.fixture
def finished(quick_run: Path, tmp_path: Path) -> Path:
    """A finished run of one's own to damage."""
    return Path(shutil.copytree(quick_run, tmp_path / "finished"))
