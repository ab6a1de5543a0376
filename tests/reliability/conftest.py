"""Fixtures of the reliability tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from selfmark import discovery
from tests.conftest import SKIPPED_CHECKS


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the checks and the report at the end of a run, which these tests do not need."""

    def skip(*arguments: Any, **options: Any) -> dict[str, Any]:
        return SKIPPED_CHECKS

    monkeypatch.setattr(discovery, "check_run", skip)
    monkeypatch.setattr(discovery, "build_report", skip)


@pytest.fixture
def finished(quick_run: Path, tmp_path: Path) -> Path:
    """Return a copy of a finished run, which the test may damage."""
    return Path(shutil.copytree(quick_run, tmp_path / "finished"))
