"""Read and write tensors as safetensors files, atomically and with a checksum; no pickles.

A file is written under a temporary name, synced and renamed, so it is always complete, even if the process is
killed. The checksum covers names, types, shapes, bytes and metadata and is verified on every read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from selfmark.errors import DamagedFile, InputError
from selfmark.run.files import atomic_write

# Metadata keys. If there were only one key, damage to it would make the file appear to have no checksum.
_CHECKSUM, _CHECKSUM_SCOPE = "sha256", "sha256_of"
_SCOPE = "metadata, names, types, shapes, bytes"
_DTYPES = {torch.float32: "F32", torch.int64: "I64"}  # safetensors names of the types of weights


def write_tensors(
    tensors: dict[str, Tensor], metadata: dict[str, str], path: Path, previous: Path | None = None
) -> None:
    """Write tensors and metadata to a safetensors file, atomically.

    Args:
        tensors: tensors by name.
        metadata: text by name.
        path: the file.
        previous: where to move the old file; None replaces it.
    """
    copies = {name: _to_unshared_cpu(value) for name, value in tensors.items()}
    with atomic_write(path, previous) as temporary:
        mode = temporary.stat().st_mode  # safetensors creates files that only their owner can read
        try:
            checksum = {_CHECKSUM: _digest(copies, metadata), _CHECKSUM_SCOPE: _SCOPE}
            save_file(copies, temporary, metadata | checksum)
        except SafetensorError as error:
            raise _as_os_error(error) from error
        temporary.chmod(mode)


def _as_os_error(error: SafetensorError) -> OSError:
    """Return an OSError with the error number, which safetensors gives only in its message."""
    number = re.search(r"os error (\d+)", str(error))
    if number is None:
        return OSError(0, str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])))


def _to_unshared_cpu(value: Tensor) -> Tensor:
    """Move a tensor to CPU memory that no other tensor shares, as safetensors requires."""
    value = value.detach().cpu().contiguous()
    return value if value.nbytes == value.untyped_storage().nbytes() else value.clone()


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    names = sorted(tensors)
    headers = [(name, str(tensors[name].dtype), list(tensors[name].shape)) for name in names]
    digest = hashlib.sha256(json.dumps([sorted(metadata.items()), headers]).encode())
    for name in names:
        if tensors[name].numel():
            digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensors(
    path: Path, expected: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata from a safetensors file and verify its checksum.

    Files without a checksum, from other programs or early versions of selfmark, are read unverified.

    Args:
        path: the file.
        expected: tensors whose names, shapes and types the file must have, on any device including meta;
            this is checked in the header, before memory is allocated. None accepts any tensors.

    Returns:
        Tensors by name and metadata by name.

    Raises:
        DamagedFile: if the file cannot be read or its checksum is wrong.
        InputError: if the file is missing or its tensors differ from the expected ones.
    """
    with _open_tensors(path) as file:
        metadata = dict(file.metadata() or {})
        if expected is not None:
            _require_expected(file, expected, path)
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    checksum, scope = metadata.pop(_CHECKSUM, None), metadata.pop(_CHECKSUM_SCOPE, None)
    has_checksum = (checksum, scope) != (None, None)
    if has_checksum and (scope != _SCOPE or checksum != _digest(tensors, metadata)):
        raise DamagedFile(f"{path} is damaged: its content does not match its checksum")
    return tensors, metadata


def read_tensor_names(path: Path) -> set[str]:
    """Read the names of the tensors of a safetensors file.

    Raises:
        DamagedFile: if the file cannot be read.
        InputError: if the file is missing.
    """
    with _open_tensors(path) as file:
        return set(file.keys())


@contextmanager
def _open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file and explain what is wrong with it."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing") from error
    except (OSError, SafetensorError) as error:
        raise DamagedFile(f"{path} is damaged and cannot be read: {error}") from error


def _require_expected(file: Any, expected: Mapping[str, Tensor], path: Path) -> None:
    if set(file.keys()) != set(expected):
        name = sorted(set(file.keys()) ^ set(expected))[0]
        problem = "is missing" if name in expected else "is not expected"
        raise InputError(f"{path} has the wrong tensors: '{name[:100]}' {problem}")
    for name, tensor in expected.items():
        stored = file.get_slice(name)
        if list(stored.get_shape()) != list(tensor.shape) or stored.get_dtype() != _DTYPES.get(tensor.dtype):
            raise InputError(
                f"{path}: '{name}' is {stored.get_dtype()} {stored.get_shape()}, "
                f"not {_DTYPES.get(tensor.dtype)} {list(tensor.shape)}"
            )
