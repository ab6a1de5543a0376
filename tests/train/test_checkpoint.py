"""Files of tensors: whole, and for whoever may read the files beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from selfmark.train.checkpoint import read_tensors, write_tensors


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_files_are_as_open_to_others_as_any_new_file(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        (tmp_path / "plain").write_text("")
        write_tensors({"a": torch.arange(3)}, {"b": "c"}, tmp_path / "tensors")
    finally:
        os.umask(before)
    assert (tmp_path / "tensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    tensors, metadata = read_tensors(tmp_path / "tensors")
    assert tensors["a"].tolist() == [0, 1, 2]
    assert metadata == {"b": "c"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "tensors"]
