"""Test tensor files: permissions, checksums, truncated files and failed writes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from selfmark.errors import DamagedFile, InputError
from selfmark.run import files
from selfmark.run.array_files import read_arrays
from selfmark.run.tensor_files import read_tensors, require_finite, write_tensors


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_files_have_default_permissions(mask: int, tmp_path: Path) -> None:
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


def _write_small_file(path: Path) -> bytes:
    tensors = {"a": torch.arange(3, dtype=torch.float32), "b": torch.ones(2, dtype=torch.bool)}
    write_tensors(tensors | {"empty": torch.zeros(0, 4), "single": torch.tensor(7)}, {"iteration": "5"}, path)
    return path.read_bytes()


def test_every_flipped_bit_is_detected_or_harmless(tmp_path: Path) -> None:
    """Flip each bit of a small file in turn. Reading the file raises an error or returns the same content."""
    path = tmp_path / "tensors"
    content = _write_small_file(path)
    before, metadata = read_tensors(path)
    num_detected = 0
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                tensors, read_metadata = read_tensors(path)
            except InputError as error:
                num_detected += str(path) in str(error)
                with pytest.raises(InputError):
                    read_arrays(path)
                continue
            assert read_metadata == metadata
            assert {name: array.tolist() for name, array in read_arrays(path)[0].items()} == {
                name: tensor.tolist() for name, tensor in before.items()
            }
            assert tensors.keys() == before.keys()
            assert all(torch.equal(value, before[name]) for name, value in tensors.items())
    assert num_detected > 0.95 * 8 * len(content)


def test_reading_a_truncated_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "tensors"
    content = _write_small_file(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFile, match="tensors is damaged"):
            read_tensors(path)


def test_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    save_file({"a": torch.arange(3)}, tmp_path / "old", {"iteration": "3"})
    tensors, metadata = read_tensors(tmp_path / "old")
    assert tensors["a"].tolist() == [0, 1, 2]
    assert metadata == {"iteration": "3"}


def test_equal_content_gives_equal_files(tmp_path: Path) -> None:
    tensors = {name: torch.full((3,), index, dtype=torch.float16) for index, name in enumerate("abc")}
    tensors |= {"number": torch.tensor(7), "empty": torch.zeros(0, 4)}
    metadata = {f"key {index}": str(index) for index in range(20)}
    write_tensors(tensors, metadata, tmp_path / "first")
    write_tensors(dict(reversed(tensors.items())), dict(reversed(metadata.items())), tmp_path / "second")
    content = (tmp_path / "first").read_bytes()
    assert content == (tmp_path / "second").read_bytes()
    header_length = int.from_bytes(content[:8], "little")
    stored = json.loads(content[8 : 8 + header_length])["__metadata__"]
    assert list(stored) == sorted(stored)
    assert header_length % 8 == 0
    with safe_open(tmp_path / "first", framework="pt") as file:  # The safetensors library can read the file.
        assert {name: file.get_tensor(name).tolist() for name in list(file.keys())} == {
            name: tensor.tolist() for name, tensor in tensors.items()
        }
        assert metadata.items() <= file.metadata().items()
    arrays, read_metadata = read_arrays(tmp_path / "first")
    assert arrays["c"].tolist() == [2, 2, 2]
    assert read_metadata == metadata


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    require_finite({"a": torch.ones(2), "b": torch.arange(3)}, tmp_path / "weights")
    for value in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(DamagedFile, match="'a' has numbers that are not finite"):
            require_finite({"a": torch.tensor([0.0, value])}, tmp_path / "weights")


def test_the_previous_file_is_kept_and_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("unchanged")
    path, previous = tmp_path / "new", tmp_path / "previous"
    for number in range(3):
        (tmp_path / "new.part").symlink_to(target)
        write_tensors({"a": torch.tensor(number)}, {}, path, previous)
        assert int(read_tensors(path)[0]["a"]) == number
    assert int(read_tensors(previous)[0]["a"]) == 1
    assert target.read_text() == "unchanged"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new", "previous", "target"]


def test_a_failed_write_keeps_the_existing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tensors"
    write_tensors({"a": torch.tensor(1)}, {}, path)

    def raise_disk_full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync", raise_disk_full)
    with pytest.raises(OSError) as caught:
        write_tensors({"a": torch.tensor(2)}, {}, path)
    assert caught.value.errno == errno.ENOSPC
    assert int(read_tensors(path)[0]["a"]) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["tensors"]
