"""Provide servers of the naming page, which the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.naming.toy_server import ToyServer, make_toy_folder, serve


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[ToyServer]:
    """Start a new server for each test that changes names."""
    folder = tmp_path / "toy"
    with serve(folder, make_toy_folder(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyServer]:
    """Start one server for all tests of a module that change nothing."""
    folder = tmp_path_factory.mktemp("shared_server") / "toy"
    with serve(folder, make_toy_folder(folder)) as running:
        yield running
