"""Provide fixtures for the reliability tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def finished(quick_run: Path, tmp_path: Path) -> Path:
    """Return a copy of a finished run, which the test may damage."""
    return Path(shutil.copytree(quick_run, tmp_path / "finished"))
