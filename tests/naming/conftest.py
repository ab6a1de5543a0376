"""Shared by the tests of the naming page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.naming.toy_server import Served, served, toy_folder


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Served]:
    """A server of its own for each test that changes names."""
    folder = tmp_path / "toy"
    with served(folder, toy_folder(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests that only ask."""
    folder = tmp_path_factory.mktemp("still") / "toy"
    with served(folder, toy_folder(folder)) as running:
        yield running
