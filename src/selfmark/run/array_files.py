"""Open safetensors files, verify their checksums, and read them as NumPy arrays.

This module does not import torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from selfmark.errors import DamagedFile, InputError
from selfmark.run.guarded_files import open_to_read, physical_memory

# Metadata keys of the checksum and of what the checksum covers. A file that has neither key has no checksum.
# There are two keys, so that damage to one of them does not make a file look as if it had no checksum.
CHECKSUM, CHECKSUM_SCOPE = "sha256", "sha256_of"
SCOPE = "metadata, names, types, shapes, bytes"

Entry = tuple[str, str, list[int], Any]
"""Name, type such as `torch.float32`, shape, and bytes of a tensor."""


def compute_checksum(entries: Iterable[Entry], metadata: Mapping[str, str]) -> str:
    """Return the checksum of tensors and metadata.

    Args:
        entries: the tensors, in the order of their names.
        metadata: mapping from names to texts.
    """
    entries = list(entries)
    headers = [(name, dtype, shape) for name, dtype, shape, _ in entries]
    digest = hashlib.sha256(json.dumps([sorted(metadata.items()), headers]).encode())
    for *_, content in entries:
        digest.update(content)
    return digest.hexdigest()


def pop_checksum(metadata: dict[str, str]) -> tuple[str | None, str | None]:
    """Remove the checksum and its scope from the metadata of a file and return them; None if missing."""
    return metadata.pop(CHECKSUM, None), metadata.pop(CHECKSUM_SCOPE, None)


def verify_checksum(
    stored: tuple[str | None, str | None], entries: Iterable[Entry], metadata: Mapping[str, str], path: Path
) -> None:
    """Raise if the content of a file does not match its checksum.

    Files without a checksum, from other programs or early versions of selfmark, are accepted.

    Args:
        stored: result of `pop_checksum`.
        entries: the tensors, in the order of their names.
        metadata: the rest of the metadata.
        path: the file, for the error message.
    """
    checksum, scope = stored
    has_checksum = (checksum, scope) != (None, None)
    if has_checksum and (scope != SCOPE or checksum != compute_checksum(entries, metadata)):
        raise DamagedFile(f"{path} is damaged: its content does not match its checksum")


def read_arrays(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Read arrays and metadata from a safetensors file and verify its checksum.

    Raises:
        DamagedFile: if the file cannot be read or its checksum is wrong.
        InputError: if the file is missing.
    """
    with open_tensor_file(path, "numpy") as file:
        metadata = dict(file.metadata() or {})
        try:
            arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
        except (TypeError, ValueError, AttributeError) as error:  # NumPy lacks the type of a tensor.
            raise DamagedFile(f"{path} is damaged and cannot be read: {error}") from error
    entries = (
        (name, f"torch.{array.dtype.name}", list(array.shape), np.ascontiguousarray(array).tobytes())
        for name, array in arrays.items()
    )
    verify_checksum(pop_checksum(metadata), entries, metadata, path)
    return arrays, metadata


@contextmanager
def open_tensor_file(path: Path, framework: str) -> Iterator[Any]:
    """Yield an open safetensors file.

    Args:
        path: the file.
        framework: `pt` or `numpy`, the type of the tensors to read.

    Raises:
        DamagedFile: if the file cannot be read.
        InputError: if the file is missing.
    """
    try:
        with open_to_read(path, physical_memory()) as handle:
            # `open_to_read` has checked this descriptor. The file at the path could have been replaced since.
            opened = Path(f"/dev/fd/{handle.fileno()}")
            with safe_open(opened if opened.exists() else path, framework=framework) as file:
                yield file
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing") from error
    except (OSError, SafetensorError) as error:
        raise DamagedFile(f"{path} is damaged and cannot be read: {error}") from error
