"""Scripts that only a GPU or hours can run: at least what they take from one another must be there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("benchmarks", "benchmarks/quality", "docs", "training/keypoints")
SCRIPTS = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]


def _defined(path: Path) -> set[str]:
    """Names that a script defines or imports at its top."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return names


def _taken(path: Path) -> set[tuple[str, str]]:
    """What a script takes from those beside it: the other's name and what is taken."""
    beside = {one.stem for one in path.parent.glob("*.py")}
    tree = ast.parse(path.read_text())
    taken: set[tuple[str, str]] = set()
    whole: dict[str, str] = {}  # name here -> module
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in beside and not node.level:
            taken |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            whole |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in beside}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
            taken.add((whole[node.value.id], node.attr))
    return taken


@pytest.mark.parametrize("path", SCRIPTS, ids=[str(path.relative_to(ROOT)) for path in SCRIPTS])
def test_scripts_find_what_they_take_from_those_beside_them(path: Path) -> None:
    for module, name in _taken(path):
        assert name in _defined(path.parent / f"{module}.py"), f"{module}.py has no '{name}'"


@pytest.mark.parametrize("path", SCRIPTS, ids=[str(path.relative_to(ROOT)) for path in SCRIPTS])
def test_scripts_find_what_they_take_from_the_package(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("selfmark."):
            place = ROOT / "src" / str(node.module).replace(".", "/")
            if place.is_dir():
                there = _defined(place / "__init__.py") | {one.stem for one in place.iterdir()}
            else:
                there = _defined(place.with_suffix(".py"))
            missing = {alias.name for alias in node.names} - there
            assert not missing, f"{node.module} has no {missing}"


def test_the_check_itself_sees_imports_and_attributes(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import two as other\nfrom two import a, b\nother.c()\n")
    (tmp_path / "two.py").write_text("a, (b, *d) = 1, (2, 3)\n\ndef c(): ...\n")
    assert _taken(tmp_path / "one.py") == {("two", "a"), ("two", "b"), ("two", "c")}
    assert _defined(tmp_path / "two.py") == {"a", "b", "c", "d"}
