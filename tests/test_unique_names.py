"""Test that modules, public classes and public functions have unique names."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import selfmark

PACKAGE = Path(selfmark.__file__).parent
# Names that several modules define on purpose, because one caller chooses among these modules.
SHARED_NAMES = {
    "read": "paper/datasets/",  # Each data set has a reader.
    "probe_video": "images/video",  # PyAV, OpenCV, and the module that chooses between them
    "read_frames": "images/video",
    # The functions of these commands have the names of the public functions that they call.
    "discover": "cli/discover.py",
    "evaluate": "cli/evaluate.py",
    "map_points": "cli/map.py",
    "check": "cli/",  # `selfmark check` and `selfmark datasets check`
}


def _find_duplicates(paths_by_name: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: paths for name, paths in paths_by_name.items() if len(paths) > 1}


def _iterate_modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def test_modules_have_different_names() -> None:
    paths_by_name = defaultdict(list)
    for path in _iterate_modules():
        paths_by_name[path.name].append(path.relative_to(PACKAGE).as_posix())
    assert not _find_duplicates(paths_by_name)


def test_public_classes_and_functions_have_different_names() -> None:
    paths_by_name = defaultdict(list)
    for path in _iterate_modules():
        where = path.relative_to(PACKAGE).as_posix()
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
                continue
            if not where.startswith(SHARED_NAMES.get(node.name, "never")):
                paths_by_name[node.name].append(where)
    assert not _find_duplicates(paths_by_name)


def test_shared_names_are_still_shared() -> None:
    """An exception that is no longer needed must be removed."""
    count = dict.fromkeys(SHARED_NAMES, 0)
    for path in _iterate_modules():
        names = {getattr(node, "name", "") for node in ast.parse(path.read_text()).body}
        for name in count.keys() & names:
            count[name] += 1
    assert min(count.values()) > 1, count
