"""Read and write tensors as safetensors files, atomically and with a checksum; no pickles.

A file is written under a temporary name, synced and renamed, so a kill at any moment leaves a complete file
behind. The checksum covers names, types, shapes, bytes and metadata and is verified on every read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from selfmark.errors import DamagedFile, InputError
from selfmark.run.files import atomic_write

# Two entries of the metadata: no single damage makes a file look like one of before there were checksums.
_SUM, _OF = "sha256", "sha256_of"
_TYPES = {torch.float32: "F32"}  # what networks are kept in, in the words of safetensors
_WORDS = "metadata, names, types, shapes, bytes"


def write_tensors(
    tensors: dict[str, Tensor], metadata: dict[str, str], path: Path, previous: Path | None = None
) -> None:
    """Write tensors as safetensors, whole or not at all; the file before is kept as `previous` if given."""
    own = {name: _on_its_own(value) for name, value in tensors.items()}
    with atomic_write(path, previous) as temporary:
        usual = temporary.stat().st_mode  # safetensors makes files that nobody but their owner can read
        try:
            save_file(own, temporary, metadata | {_SUM: _digest(own, metadata), _OF: _WORDS})
        except SafetensorError as error:
            raise _as_os_error(error) from error
        temporary.chmod(usual)


def _as_os_error(error: SafetensorError) -> OSError:
    """What the system said when safetensors could not write; it passes that on in words only."""
    number = re.search(r"os error (\d+)", str(error))
    if number is None:
        return OSError(0, str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])))


def _on_its_own(value: Tensor) -> Tensor:
    """On the CPU, in memory that no other tensor shares, as safetensors demands."""
    value = value.detach().cpu().contiguous()
    return value if value.nbytes == value.untyped_storage().nbytes() else value.clone()


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    names = sorted(tensors)
    described = [(name, str(tensors[name].dtype), list(tensors[name].shape)) for name in names]
    digest = hashlib.sha256(json.dumps([sorted(metadata.items()), described]).encode())
    for name in names:
        if tensors[name].numel():
            digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensors(
    path: Path, expected: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; a damaged one is refused by name.

    Given `expected`, tensors on any device (meta among them), the file must hold exactly these names, shapes
    and types. That is read off its header, before memory is taken for anything in it.

    Files of a selfmark from before there were checksums, and of other programs, have none to compare.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            if expected is not None:
                _require_same(file, expected, path)
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing") from error
    except (OSError, SafetensorError) as error:
        raise DamagedFile(f"{path} is damaged and cannot be read: {error}") from error
    summed, words = metadata.pop(_SUM, None), metadata.pop(_OF, None)
    if (summed, words) != (None, None) and (words != _WORDS or summed != _digest(tensors, metadata)):
        raise DamagedFile(f"{path} is damaged: its content does not have the checksum written with it")
    return tensors, metadata


def _require_same(file: Any, expected: Mapping[str, Tensor], path: Path) -> None:
    if set(file.keys()) != set(expected):
        other = sorted(set(file.keys()) ^ set(expected))[0]
        raise InputError(f"{path} holds other tensors than expected: '{other[:100]}' is in one only")
    for name, tensor in expected.items():
        found = file.get_slice(name)
        if list(found.get_shape()) != list(tensor.shape) or found.get_dtype() != _TYPES.get(tensor.dtype):
            raise InputError(
                f"{path}: '{name}' is {found.get_dtype()} {found.get_shape()}, "
                f"not {_TYPES.get(tensor.dtype)} {list(tensor.shape)}"
            )
