"""Cache the published weights of keypoint detectors and pretrained features.

selfmark cannot distribute these weights because of their licenses or sizes, so the user downloads them once
into a cache folder. The files are pickles, and a pickle can run any code. A pickle is therefore opened only
if its sha256 is that of a published file. Other weights must be .safetensors files, which contain only
numbers.
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

from selfmark.errors import DamagedFile, InputError, report_write_errors, suggest
from selfmark.run.files import atomic_open
from selfmark.run.guarded_files import (
    compute_sha256,
    create_file,
    make_folders,
    physical_memory,
    read_bytes,
)


@dataclass(frozen=True)
class WeightsFile:
    """Published weights file of a network."""

    file: str
    sha256: str
    license: str
    url: str


PUBLISHED_WEIGHTS: dict[str, WeightsFile] = {
    "superpoint": WeightsFile(
        "superpoint_v1.pth",
        "52b6708629640ca883673b5d5c097c4ddad37d8048b33f09c8ca0d69db12c40e",
        "SuperPoint weights, Magic Leap: academic or non-profit, non-commercial research only; "
        "they must not be redistributed, and derived works belong to Magic Leap.",
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
    "dinov2-s": WeightsFile(
        "dinov2_vits14_pretrain.pth",
        "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9",
        "DINOv2 weights, Meta Platforms: Apache License 2.0.",
        "https://dl.fbaipublicfiles.com/dinov2/dinov2_vits14/dinov2_vits14_pretrain.pth",
    ),
    "dinov2-b": WeightsFile(
        "dinov2_vitb14_pretrain.pth",
        "0b8b82f85de91b424aded121c7e1dcc2b7bc6d0adeea651bf73a13307fad8c73",
        "DINOv2 weights, Meta Platforms: Apache License 2.0.",
        "https://dl.fbaipublicfiles.com/dinov2/dinov2_vitb14/dinov2_vitb14_pretrain.pth",
    ),
}

_BLOCK = 1 << 20  # bytes copied at a time
_MAX_DOWNLOAD = 4 << 30  # bytes
_TIMEOUT = 60.0  # seconds without data before a download fails
_TRANSFER_ERRORS = (OSError, http.client.HTTPException)  # raised by a failing disk, network or server


def cache_folder() -> Path:
    """Return $SELFMARK_CACHE, or else the folder selfmark in $XDG_CACHE_HOME, or else ~/.cache/selfmark."""
    if folder := os.environ.get("SELFMARK_CACHE"):
        return Path(folder)
    if parent := os.environ.get("XDG_CACHE_HOME"):
        return Path(parent) / "selfmark"
    return Path.home() / ".cache" / "selfmark"


def find_weights(name: str, explicit_path: str = "") -> Path:
    """Return the path of the weights of `name`.

    Args:
        name: name of the detector or features.
        explicit_path: a file to use instead of the one in the cache.

    Raises:
        InputError: if the file does not exist, or if no weights of this name are published.
    """
    if explicit_path:
        path = Path(explicit_path)
        if not path.is_file():
            raise InputError(
                f"weights file {path} does not exist; correct keypoints.weights or leave it empty"
            )
        return path
    path = cache_folder() / _find_published(name).file
    if not path.is_file():
        raise InputError(
            f"the weights of {name} are not installed. Run 'selfmark weights {name}' to download them, or "
            f"'selfmark weights {name} --from FILE' to use a file you have"
        )
    return path


def install_weights(name: str, source: str | None) -> Path:
    """Copy the weights of `name` to the cache and return their path.

    The file appears in the cache only when it is complete and its checksum is correct.

    Args:
        name: name of the detector or features.
        source: path of a local file; None to download the weights from their authors.

    Raises:
        InputError: if the source cannot be read or is not the published file.
    """
    published = _find_published(name)
    target = cache_folder() / published.file
    origin = published.url if source is None else source
    with _cache_file(target) as handle:
        digest = hashlib.sha256()
        with _open_source(name, source) as stream:
            try:
                while block := stream.read(_BLOCK):
                    digest.update(block)
                    handle.write(block)
            except _TRANSFER_ERRORS as error:
                raise InputError(f"copying the weights of {name} from {origin} failed: {error}") from error
        if digest.hexdigest() != published.sha256:
            raise InputError(
                f"{origin} is not the published {published.file} of {name} (sha256 "
                f"{digest.hexdigest()[:12]}..., not {published.sha256[:12]}...); nothing was installed"
            )
    return target


def fetch_file(url: str, target: Path) -> None:
    """Download a file; the caller checks its checksum.

    Raises:
        InputError: if the download fails, or if the file is larger than `_MAX_DOWNLOAD`.
    """
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as stream, open(target, "wb") as handle:
            while block := stream.read(_BLOCK):
                handle.write(block)
                if handle.tell() > _MAX_DOWNLOAD:
                    raise InputError(f"{url} is larger than {_MAX_DOWNLOAD >> 30} GiB; nothing was installed")
    except (*_TRANSFER_ERRORS, ValueError) as error:  # ValueError: the address is not valid
        reason = getattr(error, "reason", error)
        if isinstance(error, UnicodeError):
            reason = "the address has characters or a length that is not allowed"
        raise InputError(
            f"cannot download {url} ({reason}); download it on another machine and give the file"
        ) from error


def compute_file_sha256(path: Path) -> str:
    """Return the sha256 of a file.

    Raises:
        InputError: if the file cannot be read.
    """
    try:
        return compute_sha256(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def load_weights(path: Path, name: str) -> dict[str, torch.Tensor]:
    """Load the tensors of a weights file by layer name, on the CPU.

    Raises:
        InputError: if the file cannot be read, or is a pickle other than the published file of `name`.
    """
    try:
        content = read_bytes(path, physical_memory())
    except OSError as error:
        raise InputError(f"cannot read the weights file {path}: {error.strerror}") from error
    if path.suffix == ".safetensors":
        try:
            tensors: dict[str, torch.Tensor] = parse_safetensors(content)
        except (SafetensorError, ValueError) as error:
            raise DamagedFile(f"{path} is not a valid .safetensors file: {error}") from error
        return tensors
    # Unpickle the bytes that were checked, because the file could change in between.
    published = _find_published(name)
    if hashlib.sha256(content).hexdigest() != published.sha256:
        raise DamagedFile(
            f"{path} is not the published {published.file} of {name}. It was not opened, because a pickle "
            "can run any code; use the published file, or convert yours to .safetensors"
        )
    loaded = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    # The weights of R2D2 are those of a wrapped network: {"net": ..., "state_dict": {"module.<layer>": ...}}.
    state = loaded.get("state_dict", loaded)
    return {layer.removeprefix("module."): tensor for layer, tensor in state.items()}


def pop_license_notice(name: str) -> str | None:
    """Return the license of the weights of `name` if it was not shown before, and mark it as shown.

    Return None if it was shown before, or if no weights of this name are published.
    """
    if name not in PUBLISHED_WEIGHTS:
        return None
    marker = cache_folder() / f"{PUBLISHED_WEIGHTS[name].file}.license-shown"
    if marker.exists():
        return None
    with contextlib.suppress(OSError):  # if the cache is read-only, the notice is shown again next time
        make_folders(marker.parent)
        create_file(marker).close()
    return PUBLISHED_WEIGHTS[name].license


def _find_published(name: str) -> WeightsFile:
    if name not in PUBLISHED_WEIGHTS:
        raise InputError(
            f"there are no weights for '{name}'; choose from {', '.join(PUBLISHED_WEIGHTS)}."
            f"{suggest(name, PUBLISHED_WEIGHTS)}"
        )
    return PUBLISHED_WEIGHTS[name]


@contextlib.contextmanager
def _cache_file(target: Path) -> Iterator[IO[bytes]]:
    """Open a file of the cache for an atomic write; several processes may install the same weights."""
    with report_write_errors(
        f"to the cache folder {target.parent}", advice="; set SELFMARK_CACHE to another folder"
    ):
        make_folders(target.parent)
        with atomic_open(target, "wb", unique=True) as handle:
            yield handle


def _open_source(name: str, source: str | None) -> IO[bytes]:
    """Open the local file `source`; if `source` is None, start the download of the weights of `name`."""
    if source is not None:
        try:
            if Path(source).exists() and not Path(source).is_file():  # a named pipe would block
                raise InputError(f"{source} is not a regular file")
            return open(source, "rb")
        except OSError as error:
            raise InputError(f"cannot read {source}: {error.strerror}") from error
    url = _find_published(name).url
    try:
        stream: IO[bytes] = urllib.request.urlopen(url, timeout=_TIMEOUT)
    except _TRANSFER_ERRORS as error:
        raise InputError(
            f"cannot download {url} ({getattr(error, 'reason', error)}); download it on another machine and "
            f"run 'selfmark weights {name} --from FILE'"
        ) from error
    return stream
