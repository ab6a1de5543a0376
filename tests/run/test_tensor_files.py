"""Files of tensors: whole, and for whoever may read the files beside them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from selfmark.errors import DamagedFile, InputError
from selfmark.run import tensor_files
from selfmark.run.tensor_files import read_tensors, write_tensors


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


def _small_file(path: Path) -> bytes:
    tensors = {"a": torch.arange(3, dtype=torch.float32), "b": torch.ones(2, dtype=torch.bool)}
    write_tensors(tensors | {"empty": torch.zeros(0, 4), "single": torch.tensor(7)}, {"iteration": "5"}, path)
    return path.read_bytes()


def test_no_flipped_bit_is_taken_for_the_truth(tmp_path: Path) -> None:
    """Each bit of a small file in turn: refused, or nothing it says has changed."""
    path = tmp_path / "tensors"
    content = _small_file(path)
    before, metadata = read_tensors(path)
    refused = 0
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                tensors, said = read_tensors(path)
            except InputError as error:
                refused += str(path) in str(error)  # by name
                continue
            assert said == metadata
            assert tensors.keys() == before.keys()
            assert all(torch.equal(value, before[name]) for name, value in tensors.items())
    assert refused > 0.95 * 8 * len(content)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tensors"
    content = _small_file(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFile, match="tensors is damaged"):
            read_tensors(path)


def test_files_without_a_checksum_are_still_read(tmp_path: Path) -> None:
    save_file({"a": torch.arange(3)}, tmp_path / "old", {"iteration": "3"})
    tensors, metadata = read_tensors(tmp_path / "old")
    assert tensors["a"].tolist() == [0, 1, 2]
    assert metadata == {"iteration": "3"}


def test_the_file_before_is_kept_and_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    path, before = tmp_path / "new", tmp_path / "before"
    for number in range(3):
        (tmp_path / "new.part").symlink_to(victim)
        write_tensors({"a": torch.tensor(number)}, {}, path, before)
        assert int(read_tensors(path)[0]["a"]) == number
    assert int(read_tensors(before)[0]["a"]) == 1
    assert victim.read_text() == "untouched"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["before", "new", "victim"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tensors"
    write_tensors({"a": torch.tensor(1)}, {}, path)

    def full(*arguments: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(OSError) as caught:
        write_tensors({"a": torch.tensor(2)}, {}, path)
    assert caught.value.errno == errno.ENOSPC
    assert int(read_tensors(path)[0]["a"]) == 1
    assert [found.name for found in tmp_path.iterdir()] == ["tensors"]
