"""Read variables of MATLAB files, with checks of types and shapes.

MATLAB compresses files by default. Damage to a compressed file is detected by its checksums. `matlab_sizes`
checks the lengths in a file, because scipy's compiled reader trusts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.io

from selfmark.errors import InputError
from selfmark.paper.datasets.matlab_sizes import WrongSize, check_matlab_sizes
from selfmark.points import FloatArray

Content = dict[str, Any]


def load_matlab(path: Path) -> Content:
    """Read the variables of a file in a MATLAB format before version 7.3."""
    try:
        if scipy.io.matlab.matfile_version(str(path), appendmat=False)[0] == 1:  # the formats 5 to 7
            check_matlab_sizes(path.read_bytes())
        content: Content = scipy.io.loadmat(str(path), appendmat=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except NotImplementedError as error:
        raise InputError(f"{path} has MATLAB's format 7.3; save it again with save(..., '-v7')") from error
    except Exception as error:  # scipy raises errors of every kind for damaged files.
        reason = f": {error}" if isinstance(error, WrongSize) else ""
        raise InputError(f"{path} is not a readable MATLAB file{reason}") from error
    return content


def get_matlab_numbers(path: Path, content: Content, name: str, shape: Sequence[int | None]) -> FloatArray:
    """Return a variable as float64.

    Args:
        path: Path of the file, for messages.
        content: Variables of the file.
        name: Name of the variable.
        shape: Expected shape; None allows any length. MATLAB drops trailing dimensions of length 1; they are
            restored.
    """
    array: npt.NDArray[Any] = np.asarray(_get_variable(path, content, name))
    array = array.reshape(array.shape + (1,) * (len(shape) - array.ndim))
    has_expected_shape = array.ndim == len(shape) and all(
        wanted is None or array.shape[axis] == wanted for axis, wanted in enumerate(shape)
    )
    if not has_expected_shape or array.dtype.kind not in "biuf":
        expected = " x ".join("N" if length is None else str(length) for length in shape)
        found = " x ".join(map(str, array.shape))
        raise InputError(f"{path}: '{name}' must be {expected} numbers, not {found} of type {array.dtype}")
    return array.astype(np.float64)


def get_matlab_text(path: Path, content: Content, name: str) -> str:
    """Return a variable that is a string; it may be empty."""
    array = np.asarray(_get_variable(path, content, name))
    if array.dtype.kind != "U" or array.size > 1:
        raise InputError(f"{path}: '{name}' must be a string")
    return str(array.reshape(-1)[0]) if array.size else ""


def get_matlab_structs(path: Path, content: Content, name: str, fields: Sequence[str]) -> list[Content]:
    """Return the elements of a struct array, each as a dictionary of its fields."""
    array = np.asarray(_get_variable(path, content, name))
    missing_fields = [field for field in fields if field not in (array.dtype.names or ())]
    if missing_fields:
        raise InputError(f"{path}: '{name}' must be a struct array with a field '{missing_fields[0]}'")
    return [{field: element[field] for field in fields} for element in array.reshape(-1)]


def _get_variable(path: Path, content: Content, name: str) -> Any:
    if name not in content:
        raise InputError(f"{path} has no variable '{name}'")
    return content[name]
