"""Read and write tensors as safetensors files, atomically and with a checksum; no pickles.

A file is written under a temporary name, synced and renamed, so it is always complete, even if the process is
killed. The checksum covers names, types, shapes, bytes and metadata. Reading tensors verifies it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from selfmark.errors import DamagedFile, InputError
from selfmark.run.array_files import (
    CHECKSUM,
    CHECKSUM_SCOPE,
    SCOPE,
    Entry,
    compute_checksum,
    open_tensor_file,
    pop_checksum,
    verify_checksum,
)
from selfmark.run.files import atomic_open

_DTYPES = {torch.float32: "F32", torch.int64: "I64"}  # safetensors names of the types of weights
_METADATA = "__metadata__"  # key of the metadata in the header of a safetensors file


def write_tensors(
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
    path: Path,
    previous: Path | None = None,
    verify: Callable[[Path], None] | None = None,
) -> None:
    """Write tensors and metadata to a safetensors file, atomically.

    Equal tensors and metadata give equal files.

    Args:
        tensors: mapping from names to tensors.
        metadata: mapping from names to texts.
        path: the file.
        previous: path to which the old file is moved; if None, the old file is replaced.
        verify: function that is called with the synced temporary file before this file is renamed; if the
            function raises an error, the old file stays.
    """
    copies = {name: _to_unshared_cpu(value) for name, value in tensors.items()}
    checksum = {CHECKSUM: compute_checksum(_entries(copies), metadata), CHECKSUM_SCOPE: SCOPE}
    header, content = _serialize(copies, metadata | checksum)
    with atomic_open(path, "wb", previous, verify=verify) as handle:
        handle.write(header)
        handle.write(content)


def _serialize(tensors: dict[str, Tensor], metadata: dict[str, str]) -> tuple[bytes, memoryview]:
    """Return the header and the content of a safetensors file, with sorted metadata.

    The safetensors library writes metadata in a random order, so the header is written again here. The new
    header may have another length, because the offsets of tensors count from the end of the header.
    """
    serialized = memoryview(save(tensors, metadata))
    start = 8 + int.from_bytes(serialized[:8], "little")
    entries = json.loads(bytes(serialized[8:start]))
    entries[_METADATA] = dict(sorted(metadata.items()))
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # The content must start at a multiple of 8 bytes.
    return len(header).to_bytes(8, "little") + header, serialized[start:]


def _to_unshared_cpu(value: Tensor) -> Tensor:
    """Move a tensor to the CPU, and copy it if it uses only a part of its memory block.

    Other tensors may use the rest of the block, and safetensors refuses tensors that share memory.
    """
    value = value.detach().cpu().contiguous()
    return value if value.nbytes == value.untyped_storage().nbytes() else value.clone()


def _entries(tensors: Mapping[str, Tensor]) -> Iterator[Entry]:
    for name in sorted(tensors):
        tensor = tensors[name]
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b""
        yield name, str(tensor.dtype), list(tensor.shape), content


def read_tensors(
    path: Path, expected: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata from a safetensors file and verify its checksum.

    Files without a checksum, from other programs or early versions of selfmark, are read unverified.

    Args:
        path: the file.
        expected: tensors on any device, including meta. The file must contain tensors with the same names,
            shapes and types; this is checked before memory is allocated. None accepts any tensors.

    Returns:
        A mapping from names to tensors, and the metadata as a mapping from names to texts.

    Raises:
        DamagedFile: if the file cannot be read or its checksum is wrong.
        InputError: if the file is missing or its tensors differ from the expected ones.
    """
    with open_tensor_file(path, "pt") as file:
        metadata = dict(file.metadata() or {})
        if expected is not None:
            _require_expected(file, expected, path)
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    verify_checksum(pop_checksum(metadata), _entries(tensors), metadata, path)
    return tensors, metadata


def read_tensor_names(path: Path) -> set[str]:
    """Read the names of the tensors of a safetensors file.

    Raises:
        DamagedFile: if the file cannot be read.
        InputError: if the file is missing.
    """
    with open_tensor_file(path, "pt") as file:
        return set(file.keys())


def require_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise if one of the tensors contains NaN or infinity.

    Args:
        tensors: mapping from names to tensors.
        path: the file they were read from, for the error message.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DamagedFile(f"{path} is damaged: '{name[:100]}' has numbers that are not finite")


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
