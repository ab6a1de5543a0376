"""Weights of the learned detectors: which ones are known, where they lie, how they get there.

Their licenses do not let selfmark carry them, so the user fetches them once into a cache folder. Weights come
as pickles, and a pickle can run any program: one is opened only if its sha256 is that of a published file.
Other weights are welcome as .safetensors, which hold numbers and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors

from selfmark.errors import InputError
from selfmark.run.files import atomic_write


@dataclass(frozen=True)
class WeightsFile:
    """One published file of weights."""

    file: str
    sha256: str
    license: str
    url: str


KNOWN: dict[str, WeightsFile] = {
    "superpoint": WeightsFile(
        "superpoint_v1.pth",
        "52b6708629640ca883673b5d5c097c4ddad37d8048b33f09c8ca0d69db12c40e",
        "SuperPoint weights, Magic Leap: academic or non-profit, non-commercial research only; "
        "they may not be passed on, and what is derived from them belongs to Magic Leap.",
        "https://github.com/magicleap/SuperPointPretrainedNetwork/raw/master/superpoint_v1.pth",
    ),
    "r2d2": WeightsFile(
        "r2d2_WASF_N16.pt",
        "9ae90e02a9a133d100ca7aeaa32f4d4d7736a6dd222a530a25c8f7da5e508528",
        "R2D2 weights, NAVER Corp.: Creative Commons BY-NC-SA 3.0, non-commercial use only.",
        "https://github.com/naver/r2d2/raw/master/models/r2d2_WASF_N16.pt",
    ),
    "alike-t": WeightsFile(
        "alike-t.pth",
        "c0840329a6b88518d914b03af2be956f5607055a389ba17441db02bb94f7d12e",
        "ALIKE weights, Xiaoming Zhao: BSD 3-clause.",
        "https://github.com/Shiaoming/ALIKE/raw/main/models/alike-t.pth",
    ),
    "alike-n": WeightsFile(
        "alike-n.pth",
        "8bd4789272eec779be280f8fc1007608ff604241440a0a3377c1559199412ee3",
        "ALIKE weights, Xiaoming Zhao: BSD 3-clause.",
        "https://github.com/Shiaoming/ALIKE/raw/main/models/alike-n.pth",
    ),
}

_BLOCK = 1 << 20  # bytes copied at a time
_PATIENCE = 60.0  # seconds without a byte before a download is given up
_BROKEN = (OSError, http.client.HTTPException)  # what a failing disk, network or server raises


def cache_folder() -> Path:
    """$SELFMARK_CACHE, else selfmark's folder in $XDG_CACHE_HOME, else ~/.cache/selfmark."""
    if own := os.environ.get("SELFMARK_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "selfmark"
    return Path.home() / ".cache" / "selfmark"


def find_weights(name: str, explicit_path: str = "") -> Path:
    """Where the weights called `name` lie: the path given, if one is, otherwise the cache."""
    if explicit_path:
        path = Path(explicit_path)
        if not path.is_file():
            raise InputError(f"there is no weights file {path}; mend keypoints.weights or leave it empty")
        return path
    path = cache_folder() / _known(name).file
    if not path.is_file():
        raise InputError(
            f"the weights of {name} are not on this machine: 'selfmark weights {name}' downloads them, "
            f"'selfmark weights {name} --from FILE' takes a file you have"
        )
    return path


def install_weights(name: str, source: str | None) -> Path:
    """Put the weights called `name` into the cache, from a local file or, without one, from their authors.

    The file appears under its name only when it is complete and its checksum is right.
    """
    known = _known(name)
    target = cache_folder() / known.file
    origin = known.url if source is None else source
    with _cache_file(target) as handle:
        digest = hashlib.sha256()
        with _opened(name, source) as stream:
            try:
                while block := stream.read(_BLOCK):
                    digest.update(block)
                    handle.write(block)
            except _BROKEN as error:
                raise InputError(f"copying the weights of {name} from {origin} broke off: {error}") from error
        if digest.hexdigest() != known.sha256:
            raise InputError(
                f"{origin} is not the published {known.file} of {name} "
                f"(sha256 {digest.hexdigest()[:12]}..., not {known.sha256[:12]}...); nothing was installed"
            )
    return target


def load_weights(path: Path, name: str) -> dict[str, torch.Tensor]:
    """The tensors in a weights file by layer name, on the CPU."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the weights file {path}: {error.strerror}") from error
    if path.suffix == ".safetensors":
        try:
            tensors: dict[str, torch.Tensor] = parse_safetensors(content)
        except (SafetensorError, ValueError) as error:
            raise InputError(f"{path} is not a readable .safetensors file: {error}") from error
        return tensors
    # The bytes that were checked are the bytes that are opened; the file could change in between.
    if hashlib.sha256(content).hexdigest() != _known(name).sha256:
        raise InputError(
            f"{path} is not the published {_known(name).file} of {name} and is not opened, because a pickle "
            f"can run any program; use the published file, or convert yours to .safetensors"
        )
    loaded = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    # R2D2's authors stored a wrapped network: {"net": its name, "state_dict": {"module.<layer>": ...}}.
    state = loaded.get("state_dict", loaded)
    return {layer.removeprefix("module."): tensor for layer, tensor in state.items()}


def license_notice(name: str) -> str | None:
    """The license to show the user, the first time on this machine; None afterwards, or if none applies."""
    if name not in KNOWN:
        return None
    marker = cache_folder() / f"{KNOWN[name].file}.license-shown"
    if marker.exists():
        return None
    with contextlib.suppress(OSError):  # a cache that cannot be written only means the notice comes again
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    return KNOWN[name].license


def _known(name: str) -> WeightsFile:
    if name not in KNOWN:
        raise InputError(f"there are no weights called '{name}'; known are {', '.join(KNOWN)}")
    return KNOWN[name]


@contextlib.contextmanager
def _cache_file(target: Path) -> Iterator[IO[bytes]]:
    """Open a file of the cache for an atomic write; several processes may install the same weights."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target, unique=True) as temporary, open(temporary, "wb") as handle:
            yield handle
    except OSError as error:
        raise InputError(
            f"the cache folder {target.parent} cannot be written ({error.strerror}); set SELFMARK_CACHE"
        ) from error


def _opened(name: str, source: str | None) -> IO[bytes]:
    """The local file `source`, or the download of `name`."""
    if source is not None:
        try:
            return open(source, "rb")
        except OSError as error:
            raise InputError(f"cannot read {source}: {error.strerror}") from error
    url = _known(name).url
    try:
        stream: IO[bytes] = urllib.request.urlopen(url, timeout=_PATIENCE)
    except _BROKEN as error:
        raise InputError(
            f"cannot download {url} ({getattr(error, 'reason', error)}); fetch it elsewhere and run "
            f"'selfmark weights {name} --from FILE'"
        ) from error
    return stream
