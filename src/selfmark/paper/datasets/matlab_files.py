"""MATLAB files: what is read is what was expected, or one sentence says what is not.

Damage of compressed files, which are MATLAB's default, is noticed by their checksums. In others scipy's
compiled reader trusts the lengths it finds, so a file made on purpose can end the program: read only those of
people you trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.io

from selfmark.errors import InputError
from selfmark.points import FloatArray

Content = dict[str, Any]


def load_matlab(path: Path) -> Content:
    """The variables of a file saved by MATLAB before version 7.3."""
    try:
        content: Content = scipy.io.loadmat(str(path), appendmat=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except NotImplementedError as error:
        raise InputError(f"{path} is of MATLAB's version 7.3; save it anew with save(..., '-v7')") from error
    except Exception as error:  # scipy trusts the file: a damaged one ends in errors of every kind
        raise InputError(f"{path} is not a MATLAB file that can be read") from error
    return content


def matlab_numbers(path: Path, content: Content, name: str, shape: Sequence[int | None]) -> FloatArray:
    """A variable as float64; None in the shape is any length.

    MATLAB drops trailing dimensions of length 1, so they are put back.
    """
    array: npt.NDArray[Any] = np.asarray(_variable(path, content, name))
    array = array.reshape(array.shape + (1,) * (len(shape) - array.ndim))
    fits = array.ndim == len(shape) and all(
        wanted is None or array.shape[axis] == wanted for axis, wanted in enumerate(shape)
    )
    if not fits or array.dtype.kind not in "biuf":
        right = " x ".join("N" if length is None else str(length) for length in shape)
        found = " x ".join(map(str, array.shape))
        raise InputError(f"{path}: '{name}' must be {right} numbers, and is {found} of type {array.dtype}")
    return array.astype(np.float64)


def matlab_text(path: Path, content: Content, name: str) -> str:
    """A variable that is a word, perhaps an empty one."""
    array = np.asarray(_variable(path, content, name))
    if array.dtype.kind != "U" or array.size > 1:
        raise InputError(f"{path}: '{name}' must be a word")
    return str(array.reshape(-1)[0]) if array.size else ""


def matlab_structs(path: Path, content: Content, name: str, fields: Sequence[str]) -> list[Content]:
    """The elements of a struct array, each as its fields by name."""
    array = np.asarray(_variable(path, content, name))
    missing = [field for field in fields if field not in (array.dtype.names or ())]
    if missing:
        raise InputError(f"{path}: '{name}' must be a struct array with a field '{missing[0]}'")
    return [{field: element[field] for field in fields} for element in array.reshape(-1)]


def _variable(path: Path, content: Content, name: str) -> Any:
    if name not in content:
        raise InputError(f"{path} has no variable '{name}'")
    return content[name]
