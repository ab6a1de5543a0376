"""Create runs of a discovery with features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selfmark.config import override, preset
from selfmark.run.folder import Run


def create_run(folder: Path, **changes: Any) -> Run:
    """Create a run; write the names of settings with two underscores instead of the dot."""
    settings = {"features.name": "efficientnet-lite0", "images.size": 64, "network.depth": 1}
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    Run.create(folder, override(preset("tiny"), settings), [], [])
    return Run.open(folder)
