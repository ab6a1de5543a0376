"""Manage detectors that a training can start from: the packaged one, and those that the user installed.

A detector is shared as one .safetensors file, with its weights as tensors and its model card as text in the
header. The file contains only numbers and text, so opening a stranger's file runs no code. A file from the
internet is installed only if its sha256 is the one that the user gives.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from selfmark.errors import InputError, report_write_errors, suggest
from selfmark.images.input_files import require_inputs_kept
from selfmark.model.card import ONNX_FEATURES, ModelCard, is_packaged, model_folder, read_card
from selfmark.model.landmark_network import build_landmark_network, read_weights
from selfmark.run.files import atomic_folder, read_json, read_text, write_text
from selfmark.run.guarded_files import (
    copy_file,
    make_folders,
    physical_memory,
    read_bytes,
    remove_file,
    remove_folder,
)
from selfmark.run.output_folder import require_own_output
from selfmark.run.tensor_files import read_tensors, require_finite, write_tensors
from selfmark.weights_cache import cache_folder, compute_file_sha256, fetch_file
from selfmark.wording import describe_count

_CARD = "selfmark_model"  # key of the header that contains model.json
_ONNX = "onnx_features"  # tensor with the ONNX model of the features
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ListedModel:
    """A detector that `selfmark models` lists.

    Attributes:
        name: name for `--start-from`.
        folder: its model folder.
        card: its model card.
    """

    name: str
    folder: Path
    card: ModelCard


def library_folder() -> Path:
    """Return the folder of installed detectors."""
    return cache_folder() / "models"


def list_models() -> list[ListedModel]:
    """Return the packaged detector, then the installed ones sorted by name; leave out damaged ones."""
    packaged = model_folder(Path("demo")) if is_packaged(Path("demo")) else None
    folders = [] if packaged is None else [("demo", packaged)]
    if library_folder().is_dir():
        # Other names are those of installations that were killed or have not finished yet.
        installed = (path for path in sorted(library_folder().iterdir()) if _NAME.fullmatch(path.name))
        folders += [(path.name, path) for path in installed if path.is_dir()]
    models = []
    for name, folder in folders:
        try:
            models.append(ListedModel(name, folder, read_card(folder)))
        except InputError:
            continue
    return models


def find_model(name: str) -> Path:
    """Return the model folder of a run folder, a model folder, an installed detector or "demo".

    Raises:
        InputError: if there is no such detector.
    """
    if Path(name).exists() or is_packaged(Path(name)):
        folder = model_folder(Path(name))
    elif _NAME.fullmatch(name) and (library_folder() / name).is_dir():
        folder = library_folder() / name
    else:
        known = [model.name for model in list_models()]
        hint = suggest(name, known)
        raise InputError(
            f"there is no detector '{name}': give a run folder, or a name that 'selfmark models' lists.{hint}"
        )
    read_card(folder)
    return folder


def pack_model(folder: Path, path: Path) -> str:
    """Write the detector of a run folder or model folder to one file, and return the sha256 of the file.

    Raises:
        InputError: if the folder has no detector, or if the file exists and was not made from this detector.
    """
    source = model_folder(folder)
    read_card(source)
    if path.suffix != ".safetensors":
        raise InputError(f"the file of a detector must end in .safetensors, unlike {path}")
    files = [source / name for name in ("model.json", "weights.safetensors", ONNX_FEATURES)]
    require_inputs_kept([path], files, "choose another name")
    require_own_output(path, folder, "choose another name")
    tensors, _ = read_tensors(source / "weights.safetensors")
    require_finite(tensors, source / "weights.safetensors")
    if (source / ONNX_FEATURES).exists():
        tensors[_ONNX] = read_tensors(source / ONNX_FEATURES)[0]["onnx"]
    if os.path.lexists(path) and not _has_packed(path, tensors):
        raise InputError(
            f"{path} exists already and was not made from this detector: choose another name, or delete it"
        )
    with report_write_errors(path):
        card = read_text(source / "model.json")
        write_tensors(tensors, {_CARD: card}, path)
    return compute_file_sha256(path)


def _has_packed(path: Path, tensors: Mapping[str, Tensor]) -> bool:
    """Return True if `pack_model` wrote a file with these tensors; renamed landmarks do not matter."""
    try:
        packed, metadata = read_tensors(path)
    except InputError:
        return False
    is_same = packed.keys() == tensors.keys() and all(
        torch.equal(packed[name], tensors[name]) for name in packed
    )
    return is_same and _CARD in metadata


def install_model(origin: str, name: str, sha256: str = "") -> Path:
    """Install a detector from a file or an address, and return its folder.

    A detector is installed only if its file is complete, has the given checksum, and can be used.

    Args:
        origin: a file that `pack_model` wrote, or the http or https address of one.
        name: name of the installed detector; empty uses the name of the file.
        sha256: checksum of the file; required for an address, otherwise it may be empty.

    Raises:
        InputError: if the file cannot be read, has another checksum or contains no usable detector; if an
            address has no checksum; if the name is not allowed or already used; or if the folder of
            installed detectors cannot be written.
    """
    is_address = origin.startswith(("https://", "http://"))
    sha256 = sha256.lower()
    if sha256 and not _SHA256.fullmatch(sha256):
        raise InputError(f"--sha256 takes 64 hexadecimal digits, not '{sha256}'")
    if is_address and not sha256:
        raise InputError(f"give the checksum of {origin} with --sha256; its publisher should state it")
    name = name or Path(origin.split("?")[0]).stem
    if not _NAME.fullmatch(name) or name == "demo":
        raise InputError(f"'{name}' cannot be the name of a detector: choose letters and digits with --name")
    target = library_folder() / name
    if target.exists():
        raise InputError(f"{target} exists already: choose another name with --name, or delete it")
    with report_write_errors(f"to {library_folder()}", advice="; set SELFMARK_CACHE to another folder"):
        make_folders(library_folder())
        with atomic_folder(target) as temporary:
            file = Path(origin)
            if is_address:
                file = temporary / "download.safetensors"
                fetch_file(origin, file)
            digest = compute_file_sha256(file)
            if sha256 and digest != sha256:
                raise InputError(
                    f"{origin} has the sha256 {digest[:12]}..., not {sha256[:12]}...; nothing was installed"
                )
            _unpack(file, origin, temporary)
            remove_file(temporary / "download.safetensors")
    return target


def _unpack(file: Path, origin: str, folder: Path) -> None:
    tensors, metadata = read_tensors(file)
    if _CARD not in metadata:
        raise InputError(f"{origin} was not written by 'selfmark models save'")
    require_finite(tensors, Path(origin))
    onnx_model = tensors.pop(_ONNX, None)
    if onnx_model is not None:
        write_tensors({"onnx": onnx_model}, {}, folder / ONNX_FEATURES)
    write_tensors(tensors, {}, folder / "weights.safetensors")
    write_text(metadata[_CARD], folder / "model.json")
    try:
        network = build_landmark_network(read_card(folder), onnx_model)
        read_weights(network, folder / "weights.safetensors")
    except InputError as error:
        problem = str(error).replace(f"{folder}{os.sep}", "")
        raise InputError(f"the detector in {origin} cannot be used: {problem}") from error


def describe_model(card: ModelCard) -> str:
    """Return one line about a detector: landmarks, network, and what it was trained on."""
    network = card.features.name if card.architecture in ("encoder", "zero-shot") else "no features"
    images = card.provenance.get("images")
    trained = (
        f"trained on {describe_count(images, 'image')}"
        if isinstance(images, int)
        else "training not recorded"
    )
    return f"{describe_count(len(card.names), 'landmark')}, {network}, {card.images.size} px, {trained}"


def compute_model_digest(folder: Path) -> str:
    """Return a sha256 of a detector's network settings and weights; run.json identifies detectors by it."""
    card = read_json(folder / "model.json")
    digest = hashlib.sha256(json.dumps([card.get("network"), card.get("student")], sort_keys=True).encode())
    digest.update(read_bytes(folder / "weights.safetensors", physical_memory()))
    return digest.hexdigest()


def copy_model(folder: Path, target: Path) -> None:
    """Copy the files of a detector to a folder; replace a folder that a killed process left behind.

    Raises:
        DamagedFile: if the weights do not have their checksum or are not finite.
    """
    weights = folder / "weights.safetensors"
    require_finite(read_tensors(weights)[0], weights)
    remove_folder(target)
    with atomic_folder(target) as temporary:
        for name in ("weights.safetensors", ONNX_FEATURES, "model.json"):
            if (folder / name).exists():
                copy_file(folder / name, temporary / name)
