"""Read and compare the files that commands wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from selfmark.model.card import read_card


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder and its subfolders, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_tensors(run: Path) -> dict[str, torch.Tensor]:
    """Return all weights and points of a run."""
    files = [run / "model" / "weights.safetensors", *sorted((run / "points").iterdir())]
    return {f"{file.name}/{name}": value for file in files for name, value in load_file(file).items()}


def assert_same_tensors(first: Path, second: Path) -> None:
    """Fail unless two runs have equal weights and points."""
    expected, actual = read_tensors(first), read_tensors(second)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert torch.equal(value, actual[name]), name


def assert_same_card(first: Path, second: Path) -> None:
    """Fail unless the models of two runs have the same card."""
    # Some tests skip the checks that measure trust and verdict, so these two are not compared.
    cards = (replace(read_card(run / "model"), trust=(), verdict=None) for run in (first, second))
    assert next(cards) == next(cards)
