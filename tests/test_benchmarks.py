"""Test scripts that need a GPU or hours to run. All their imports must exist; parts that are fast are run."""

from __future__ import annotations

import argparse
import ast
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "benchmarks",
    "benchmarks/features",
    "benchmarks/quality",
    "benchmarks/trust",
    "docs",
    "training/keypoints",
)
SCRIPTS = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]


def _list_defined_names(path: Path) -> set[str]:
    """Return the names that a script defines or imports at module level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {
                part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
            }
    return names


def _list_used_names(path: Path) -> set[tuple[str, str]]:
    """Return the names that a script uses from other scripts in its folder, as (module, name)."""
    siblings = {sibling.stem for sibling in path.parent.glob("*.py")}
    tree = ast.parse(path.read_text())
    used: set[tuple[str, str]] = set()
    imported: dict[str, str] = {}  # mapping from the local name to the module
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in siblings and not node.level:
            used |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {
                alias.asname or alias.name: alias.name for alias in node.names if alias.name in siblings
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            used.add((imported[node.value.id], node.attr))
    return used


@pytest.mark.parametrize("path", SCRIPTS, ids=[str(path.relative_to(ROOT)) for path in SCRIPTS])
def test_names_used_from_sibling_scripts_exist(path: Path) -> None:
    for module, name in _list_used_names(path):
        assert name in _list_defined_names(path.parent / f"{module}.py"), f"{module}.py has no '{name}'"


@pytest.mark.parametrize("path", SCRIPTS, ids=[str(path.relative_to(ROOT)) for path in SCRIPTS])
def test_names_imported_from_the_package_exist(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("selfmark."):
            source = ROOT / "src" / str(node.module).replace(".", "/")
            if source.is_dir():
                available = _list_defined_names(source / "__init__.py") | {
                    module.stem for module in source.iterdir()
                }
            else:
                available = _list_defined_names(source.with_suffix(".py"))
            missing = {alias.name for alias in node.names} - available
            assert not missing, f"{node.module} has no {missing}"


@pytest.mark.parametrize("path", SCRIPTS, ids=[str(path.relative_to(ROOT)) for path in SCRIPTS])
def test_attributes_of_imported_package_modules_exist(path: Path) -> None:
    """Private functions count, too: some scripts call or replace them."""
    tree = ast.parse(path.read_text())
    defined: dict[str, set[str]] = {}  # local name of an imported module -> names that the module defines
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "selfmark":
            folder = ROOT / "src" / str(node.module).replace(".", "/")
            for alias in node.names:
                if (source := folder / f"{alias.name}.py").is_file():
                    defined[alias.asname or alias.name] = _list_defined_names(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in defined:
            assert node.attr in defined[node.value.id], f"{node.value.id} has no '{node.attr}'"


def test_the_check_finds_imports_and_attributes(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import two as other\nfrom two import a, b\nother.c()\n")
    (tmp_path / "two.py").write_text("a, (b, *d) = 1, (2, 3)\n\ndef c(): ...\n")
    assert _list_used_names(tmp_path / "one.py") == {("two", "a"), ("two", "b"), ("two", "c")}
    assert _list_defined_names(tmp_path / "two.py") == {"a", "b", "c", "d"}


def test_a_run_is_copied_without_the_results_of_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("benchmarks", "benchmarks/quality", "benchmarks/features"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    kept = [
        "config.yaml",
        "points/keypoint-landmarks.safetensors",
        "points/zero-shot.safetensors",
        "preview/zero-shot.jpg",
    ]
    removed = [
        "metrics.json",
        "model/model.json",
        "checkpoints/student-1.safetensors",
        "points/keypoints-1-chosen.safetensors",
        "points/landmarks.safetensors",
        "preview/detector.jpg",
        "preview/student-1.jpg",
    ]
    for name in kept + removed:
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    import_module("student_variants").copy_without_training(tmp_path / "run", tmp_path / "copy")
    files = [path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*.*")]
    assert sorted(map(str, files)) == kept


def test_the_object_of_a_crop_is_in_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "benchmarks/quality", "benchmarks/features"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    find_object = import_module("on_object").find_object
    crop = np.zeros((90, 90, 3), np.uint8)
    crop[5:15, 5:15] = 200  # The bright square is not in the middle.
    assert not find_object(crop).any(), "a square outside the middle counts as the object"
    crop[40:60, 40:50] = 200
    mask = find_object(crop)
    assert mask[50, 45]
    assert not mask[10, 10]
    assert mask.sum() < 26 * 16


def test_results_name_the_gpu_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    describe_hardware = import_module("few_shot").describe_hardware
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    assert describe_hardware(torch.device("cuda")).startswith("landmarks: a GPU; maps: CPU, ")
    assert describe_hardware(torch.device("cpu")).startswith("CPU, ")


def test_parts_of_a_run_with_many_images_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = import_module("scale_million")
    count, files = 20, 15  # The pixels of some files are repeated.
    script.write_folder(next(script.list_folders(tmp_path)), files)
    changes = ["images.size=32", "network.channels=32", "network.norm_groups=4", "network.descriptor=8"]
    changes += ["runtime.batch=2", "correspondence.restarts=1", "features.max_images=10", "K=3", "M=4"]
    config = script.build_config(changes)
    point_bytes = 4 * 8 * 4 * count  # images and mirror images, with a copy; 8 values of 4 bytes
    arguments = argparse.Namespace(
        images=[count, 10], files=files, work=tmp_path, steps=2, host_gib=7 * point_bytes / 2**30
    )
    rows = {
        row["name"]: row
        for stage in ("reading", "survey", "features", "steps", "recovery")
        for row in script.STAGES[stage](arguments, config)
    }
    parts = ("survey", "encoder", "features", "steps", "describe", "recovery")
    names = {f"{part}_{number}" for part in parts for number in (10, count)}
    assert set(rows) == names | {"reading_10", f"reading_{files}"}
    assert rows[f"features_{count}"]["used"] == 10
    assert rows[f"describe_{count}"]["max_points"] == 7, "more descriptors would not fit"
    assert rows[f"describe_{count}"]["images_that_fit"] == 7 * count // script.POINTS
    assert all(row["value"] > 0 and row["seconds"] > 0 for row in rows.values())
