"""Test that workflows, hooks, citation, contributing guide and package data agree with the repository."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import selfmark

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _load_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _list_make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", text, flags=re.MULTILINE))


def _list_steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_are_workflows_for_tests_docs_packages_and_releases() -> None:
    assert {path.stem for path in WORKFLOWS} == {"tests", "docs", "build", "release"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_complete_and_calls_existing_targets(path: Path) -> None:
    workflow = _load_yaml(path)
    assert {"push", "pull_request"} <= set(workflow["on"])
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]
    for job in workflow["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        assert job["timeout-minutes"] <= 120
    called = [
        name for step in _list_steps(workflow) for name in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))
    ]
    assert called
    assert set(called) <= _list_make_targets()
    for step in _list_steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
        for script in re.findall(r"\bscripts/\S+", step.get("run", "")):
            is_executable = (ROOT / script).stat().st_mode & 0o100
            assert is_executable, f"{script} is not executable"


def test_tests_run_on_every_supported_python() -> None:
    job = _load_yaml(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python-version"] == ["3.11", "3.12", "3.13"]
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert "make test" in [step.get("run") for step in job["steps"]]


def test_the_wheel_is_checked_in_an_empty_environment() -> None:
    runs = [
        step.get("run", "") for step in _list_steps(_load_yaml(ROOT / ".github" / "workflows" / "build.yml"))
    ]
    assert any("make build" in run for run in runs)
    assert any("scripts/check_wheel.sh" in run for run in runs)
    assert subprocess.run(["sh", "-n", str(ROOT / "scripts" / "check_wheel.sh")]).returncode == 0


def test_a_release_is_audited_and_has_a_bill_of_materials() -> None:
    workflow = _load_yaml(ROOT / ".github" / "workflows" / "release.yml")
    assert workflow["on"]["push"] == {"tags": ["v*"]}
    steps = _list_steps(workflow)
    (audit,) = [step for step in steps if "scripts/audit_release.sh" in step.get("run", "")]
    (build,) = [step for step in steps if step.get("run", "").startswith("make build")]
    assert steps.index(audit) > steps.index(build)
    script = ROOT / "scripts" / "audit_release.sh"
    assert subprocess.run(["sh", "-n", str(script)]).returncode == 0
    text = script.read_text(encoding="utf-8")
    assert "set -eu" in text  # If pip-audit finds a vulnerability, the release fails.
    assert "bin/pip-audit" in text
    assert "bin/cyclonedx-py" in text


def test_make_test_includes_every_static_check() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("needs make")
    shown = subprocess.run([make, "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    for tool in (
        "ruff check",
        "ruff format --check",
        "mypy",
        "lint-imports",
        "mkdocs build --strict",
        "pytest",
    ):
        assert tool in shown.stdout
    assert shown.stdout.index("mkdocs") < shown.stdout.index("-m pytest")


def test_pre_commit_hooks_use_the_tools_of_the_active_environment() -> None:
    repositories = _load_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert [hook["entry"].split()[0] for hook in hooks] == ["ruff", "ruff", "mypy"]


def test_the_citation_names_software_and_paper() -> None:
    citation = _load_yaml(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == selfmark.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    paper = citation["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == [
        "Mallis",
        "Sanchez",
        "Bell",
        "Tzimiropoulos",
    ]
    assert paper["year"] == 2023


def test_the_contributing_guide_names_only_existing_paths_and_targets() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = "src|tests|docs|benchmarks|training|examples|scripts"
    paths = re.findall(rf"(?:`|\(|python )((?:{folders})(?:/[\w./-]+)?)", text)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert set(re.findall(r"(?:`|^)make ([a-z][\w-]*)", text, flags=re.MULTILINE)) <= _list_make_targets()


def test_the_command_can_be_imported() -> None:
    module, _, name = PROJECT["project"]["scripts"]["selfmark"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_every_data_file_is_part_of_the_wheel() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["selfmark"]
    source = ROOT / "src" / "selfmark"
    packaged = {path for pattern in patterns for path in source.glob(pattern)}
    data_files = [
        path
        for path in source.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
    ]
    assert [path.relative_to(source).as_posix() for path in data_files if path not in packaged] == []
    assert [pattern for pattern in patterns if not list(source.glob(pattern))] == []
