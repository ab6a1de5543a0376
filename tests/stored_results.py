"""Read and compare the files that commands wrote."""

from __future__ import annotations

from pathlib import Path


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder and its subfolders, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
