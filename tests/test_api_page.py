"""The page on the Python API: every public name, signatures as they are, examples that run."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import selfmark
from selfmark.discovery import discover
from tests.conftest import QUICK

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "api.md"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    specification = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_public_name_has_an_entry(maker: ModuleType) -> None:
    entries = maker.HEADING.findall(PAGE.read_text())
    public = {f"selfmark.{name}" for name in selfmark.__all__}
    for name in ("Detector", "Landmarks"):
        one = getattr(selfmark, name)
        fields = getattr(one, "__dataclass_fields__", {})
        members = [member for member in vars(one) if not member.startswith("_") and member not in fields]
        public |= {f"selfmark.{name}.{member}" for member in members}
    assert public - set(entries) == set()
    assert len(entries) == len(set(entries))
    for entry in entries:
        maker.find(entry)


def test_signatures_are_those_of_the_program(maker: ModuleType) -> None:
    page = PAGE.read_text()
    assert page == maker.page(), "run: python docs/make_api.py"
    shown = [match[2] for match in maker.ENTRY.finditer(page)]
    for entry in maker.HEADING.findall(page):
        one = maker.find(entry)
        called = callable(one) and not (inspect.isclass(one) and issubclass(one, Exception))
        assert called == (entry in shown), entry
    assert maker.signature("selfmark.load") == "selfmark.load(folder: str, device: str = 'cpu') -> Detector"


def test_examples_run(photos: Path, labeled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    shutil.copytree(photos, tmp_path / "photos")
    shutil.copytree(labeled, tmp_path / "labeled")
    shutil.copy(photos / "003.png", tmp_path / "cat.jpg")
    monkeypatch.chdir(tmp_path)

    def short(*arguments: Any, settings: dict[str, Any], **named: Any) -> Any:
        """As shown, but a matter of seconds."""
        return discover(*arguments, settings=QUICK | settings, preset="tiny", **named)

    monkeypatch.setattr(selfmark, "discover", short, raising=False)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "api", str(PAGE), 0)
    assert len(examples.examples) > 40
    told: list[str] = []
    outcome = doctest.DocTestRunner().run(examples, out=told.append)
    assert outcome.failed == 0, "".join(told)
