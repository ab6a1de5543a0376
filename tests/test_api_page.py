"""Test the API page: its examples run, and every name it documents exists."""

from __future__ import annotations

import doctest
import importlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import selfmark
from tests.conftest import QUICK

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "api.md"


def _import_object(name: str) -> Any:
    """Return the object with a dotted name.

    The longest prefix that is a module is imported; the other parts of the name are attributes.
    """
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            value = getattr(value, part)
        return value
    raise AssertionError(f"no module or attribute named {name}")


def test_every_documented_name_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    documented = re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)
    assert "selfmark" in documented  # This entry lists the members of selfmark.__all__.
    for name in documented:
        _import_object(name)
    for name in re.findall(r"\bselfmark\.[A-Z]\w*", page):
        assert name.removeprefix("selfmark.") in selfmark.__all__


def test_every_public_name_can_be_imported_and_is_documented() -> None:
    assert {"Detector", "Landmarks", "discover", "load"} <= set(selfmark.__all__)
    for name in selfmark.__all__:
        value = getattr(selfmark, name)
        assert isinstance(value, str) or value.__doc__, name


def test_examples_run(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    shutil.copy(photos / "003.png", tmp_path / "cat.jpg")
    monkeypatch.chdir(tmp_path)
    discover = selfmark.discover

    def discover_quickly(*arguments: Any, settings: dict[str, Any], **named: Any) -> Any:
        """Call `discover` with settings that take seconds instead of minutes."""
        return discover(*arguments, settings=QUICK | settings, preset="tiny", **named)

    monkeypatch.setattr(selfmark, "discover", discover_quickly, raising=False)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "api", str(PAGE), 0)
    assert len(examples.examples) > 20
    failures: list[str] = []
    outcome = doctest.DocTestRunner().run(examples, out=failures.append)
    assert outcome.failed == 0, "".join(failures)
