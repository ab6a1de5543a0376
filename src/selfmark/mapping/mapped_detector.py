"""Store maps in the model folder, and predict the user's own points with them.

map.json contains a readable description, and map-*.safetensors the arrays. The name of map-*.safetensors
contains the start of the digest of the arrays; the whole digest is in map.json. map.json is replaced last, so
there is a complete map at any moment. Earlier versions wrote map.safetensors.

map.json also contains the fingerprint of the detector that the map was learned on. A map that was learned on
another detector is rejected.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfmark._version import __version__
from selfmark.argument_types import check_argument_types
from selfmark.detector import Detector, NetworkLandmarks, detector_fingerprint
from selfmark.errors import InputError, report_write_errors
from selfmark.mapping.model_selection import FitOptions
from selfmark.mapping.point_map import PointMap
from selfmark.model.card import distinct_edges, model_folder
from selfmark.points import FloatArray
from selfmark.run.files import FORMAT, read_json, require_format, strip_temporary, to_json, write_json
from selfmark.run.guarded_files import remove_file
from selfmark.run.json_schema import (
    Check,
    is_bool,
    is_count,
    is_dict_of,
    is_list_of,
    is_none_or,
    is_number,
    is_object,
    is_point_name,
    is_text,
    require_fields,
)
from selfmark.run.locks import exclusive
from selfmark.run.tensor_files import read_tensors, require_finite, write_tensors

DESCRIPTION = "map.json"
TENSORS = "map.safetensors"  # name of the file of arrays in earlier versions
_TENSORS_PATTERN = re.compile(r"map(-[0-9a-f]{16})?\.safetensors")
_DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
# No fit gives larger numbers. Landmarks and points lie within or near the network image, which has at most a
# few thousand pixels per side. With a weight of 1, a point moves by as much as a landmark. Products of these
# limits are far from overflowing the 32-bit numbers of the results.
_MAX_COORDINATE = 1e7  # network pixels
_MAX_WEIGHT = 1e5
# Checks of most fields of map.json; `_mapping_from_json` checks the others.
_FIELDS: dict[str, Check] = {
    "names": is_list_of(is_point_name),
    "model": is_text,
    "labels": is_text,
    "images": is_count,
    "objects": is_count,
    "normaliser": is_text,
    "fit": is_object({"aligned": is_bool, "mirrored": is_bool, "ridge": is_number}),
    "leave_one_out": is_object({"mean": is_none_or(is_number), "points": is_dict_of(is_none_or(is_number))}),
}


@dataclass(frozen=True)
class LearnedMapping:
    """A map to L points of the user, with a description of the points and of the fit.

    Attributes:
        map: Fitted map.
        names: L names of the points.
        mirror: L mirror partners of the points; empty if unknown.
        skeleton: Pairs of points to connect in drawings.
        model: Fingerprint of the detector that the map was learned on.
        labels: Path of the label file.
        images: Number of annotated images.
        objects: Number of annotated objects.
        options: Options of the fit.
        normalizer: Length that errors are divided by, as in `selfmark evaluate`.
        error: Mean error on held-out images in percent; None if there is only one image.
        errors: Mean error of each of the L points on held-out images; None if it could not be measured.
    """

    map: PointMap
    names: tuple[str, ...]
    mirror: tuple[int, ...]
    skeleton: tuple[tuple[int, int], ...]
    model: str
    labels: str
    images: int
    objects: int
    options: FitOptions
    normalizer: str
    error: float | None
    errors: tuple[float | None, ...]


def save_mapping(mapping: LearnedMapping, folder: Path) -> None:
    """Write the arrays, then map.json with their digest, then remove the arrays of earlier maps.

    Until map.json is replaced, the old map stays complete.

    Raises:
        DiskError: The files cannot be written; the old map stays.
        InputError: The map has values that `load_mapping` would refuse.
    """
    arrays = {name: getattr(mapping.map, name) for name in ("weights", "constant", "reference")}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    digest = _digest(arrays)
    values = {
        "format": FORMAT,
        "selfmark": __version__,
        "model": mapping.model,
        "numbers": digest,
        "names": mapping.names,
        "mirror": mapping.mirror or None,
        "skeleton": mapping.skeleton,
        "labels": mapping.labels,
        "images": mapping.images,
        "objects": mapping.objects,
        "fit": asdict(mapping.options),
        "leave_one_out": {
            "unit": f"percent of {mapping.normalizer}",
            "mean": mapping.error,
            "points": dict(zip(mapping.names, mapping.errors, strict=True)),
        },
        "normaliser": mapping.normalizer,
    }
    try:  # Check the values like `load_mapping`: a map that cannot be loaded must not replace a good one.
        _mapping_from_json(json.loads(to_json(values)), mapping.map, len(mapping.map.weights) // 2)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"no usable map can be learned from {mapping.labels}: {error}") from error
    # Of two processes, one must not remove the arrays that the other has just written.
    with report_write_errors(f"to {folder}"), exclusive(folder, wait=True, lock_file=False):
        try:
            write_tensors(tensors, {"model": mapping.model}, folder / _tensors_name(digest))
            write_json(values, folder / DESCRIPTION)
        finally:
            _remove_unused_tensors(folder)


def _tensors_name(digest: str) -> str:
    return f"map-{digest[:16]}.safetensors"


def _remove_unused_tensors(folder: Path) -> None:
    """Remove arrays that map.json does not name: those of earlier maps and of interrupted commands."""
    with suppress(OSError, InputError):  # Such files do no harm, and the next map removes them.
        path = folder / DESCRIPTION
        used = _find_tensors(read_json(path), folder).name if path.exists() else ""
        for file in folder.glob("map*"):
            if _TENSORS_PATTERN.fullmatch(strip_temporary(file.name)) and file.name != used:
                remove_file(file)


def load_mapping(folder: str | Path, detector: Detector) -> LearnedMapping:
    """Load the map of a run folder or model folder.

    Raises:
        InputError: There is no map, it is damaged, or it was learned on another detector.
    """
    path = model_folder(Path(folder)) / DESCRIPTION
    if not path.exists():
        raise InputError(f"{folder} has no map: learn one with 'selfmark map {folder} --labels FILE'")
    values = read_json(path)
    require_format(values, path)
    advice = f"learn it again with 'selfmark map {folder} --labels FILE'"
    tensors_path = _find_tensors(values, path.parent)
    if not tensors_path.exists():
        raise InputError(f"{tensors_path}, which belongs to {path}, is missing: {advice}")
    tensors, _ = read_tensors(tensors_path)
    try:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    except TypeError as error:  # NumPy does not have the data type of a tensor.
        raise InputError(f"{tensors_path} is not a usable map: {error}; {advice}") from error
    if values.get("numbers") != _digest(arrays):
        raise InputError(f"{path} and {tensors_path} do not belong together: {advice}")
    if values.get("model") != detector_fingerprint(detector):
        raise InputError(f"{path} was learned on another model than the one in this folder: {advice}")
    try:
        require_finite(tensors, tensors_path)
        return _mapping_from_json(values, PointMap(**arrays), len(detector.names))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{path} is not a usable map: {error}; {advice}") from error


def _find_tensors(values: Any, folder: Path) -> Path:
    """Return the path of the arrays of a map; `values` is the content of map.json."""
    digest = values.get("numbers") if isinstance(values, dict) else None
    if isinstance(digest, str) and _DIGEST_PATTERN.fullmatch(digest):
        path = folder / _tensors_name(digest)
        if path.exists() or not (folder / TENSORS).exists():
            return path
    return folder / TENSORS


def _mapping_from_json(values: Any, point_map: PointMap, num_landmarks: int) -> LearnedMapping:
    require_fields(values, _FIELDS)
    names = tuple(values["names"])
    errors = values["leave_one_out"]
    mirror = tuple(int(partner) for partner in values["mirror"] or ())
    skeleton = tuple((int(a), int(b)) for a, b in values["skeleton"])
    _require_plausible(point_map, num_landmarks, len(names))
    if mirror and sorted(mirror) != list(range(len(names))):
        raise ValueError("mirror partners are not a permutation")
    if any(not 0 <= end < len(names) for pair in skeleton for end in pair):
        raise ValueError("the skeleton connects points that do not exist")
    return LearnedMapping(
        map=point_map,
        names=names,
        mirror=mirror,
        skeleton=skeleton,
        model=values["model"],
        labels=values["labels"],
        images=values["images"],
        objects=values["objects"],
        options=FitOptions(**values["fit"]),
        normalizer=values["normaliser"],
        error=errors["mean"],
        errors=tuple(errors["points"][name] for name in names),
    )


def _require_plausible(point_map: PointMap, num_landmarks: int, num_points: int) -> None:
    """Raise a ValueError if arrays of a map have wrong types or shapes, or numbers that no fit gives."""
    weights, constant, reference = point_map.weights, point_map.constant, point_map.reference
    if any(array.dtype not in (np.float32, np.float64) for array in (weights, constant, reference)):
        raise ValueError("the arrays are not 32-bit or 64-bit floating-point numbers")
    if weights.shape != (2 * num_landmarks, 2 * num_points) or not num_points:
        raise ValueError(f"{num_points} names do not fit weights of shape {weights.shape}")
    if constant.shape != (2 * num_points,):
        raise ValueError(f"{num_points} names do not fit a constant of shape {constant.shape}")
    if reference.shape not in ((num_landmarks, 2), (0, 2)):
        raise ValueError(f"{num_landmarks} landmarks do not fit a reference of shape {reference.shape}")
    limits = {
        "weights": (weights, _MAX_WEIGHT),
        "constant": (constant, _MAX_COORDINATE),
        "reference": (reference, _MAX_COORDINATE),
    }
    for name, (array, limit) in limits.items():
        if not (np.abs(array) <= limit).all():  # False for NaN, too
            raise ValueError(f"'{name}' has numbers that are not finite or larger than {limit:g}")


def _digest(arrays: Mapping[str, FloatArray]) -> str:
    """Return a digest of the names, shapes, types and values of arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class MappedDetector(Detector):
    """Detector of the user's own points: it maps the landmarks of another detector to these points.

    >>> from selfmark.mapping.mapped_detector import MappedDetector, load_mapping
    >>> detector = selfmark.load("runs/cats")                                      # doctest: +SKIP
    >>> mapped = MappedDetector(detector, load_mapping("runs/cats", detector))     # doctest: +SKIP
    >>> mapped("cat.jpg").names                                                    # doctest: +SKIP
    ('left_eye', 'right_eye', 'nose')
    """

    def __init__(self, detector: Detector, mapping: LearnedMapping) -> None:
        """Map the landmarks of `detector`; use its device and its settings."""
        card = replace(
            detector.card,
            names=mapping.names,
            mirror=mapping.mirror or tuple(range(len(mapping.names))),
            skeleton=distinct_edges(mapping.skeleton),
            # The user chose colors, hidden landmarks and confirmations for the landmarks, not for the points.
            colors=(),
            hidden=(),
            confirmed=(),
            # Training found mirror partners of the landmarks. Those of the points come from the labels.
            unpaired=(),
            trained_mirror=(),
            # Trust and verdict were measured for the landmarks, not for the points.
            trust=(),
            verdict=None,
            provenance=detector.card.provenance
            | {"mapped": {"labels": mapping.labels, "images": mapping.images, "error": mapping.error}},
        )
        super().__init__(detector.psi, card, detector.device, detector.runtime)
        self.detector = detector
        self.mapping = mapping

    def locate(self, pixels: Tensor) -> NetworkLandmarks:
        """Return the mapped points of network images [B, 3, S, S], in pixels of these images.

        Raises:
            InputError: The map gives coordinates that are not finite.
        """
        located = self.detector.locate(pixels)
        xy, landmark_scores = (tensor.cpu().numpy().astype(np.float64) for tensor in located)
        points = self.mapping.map.predict(xy, landmark_scores).astype(np.float32)
        point_scores = self.mapping.map.point_scores(landmark_scores).astype(np.float32)
        if not (np.isfinite(points).all() and np.isfinite(point_scores).all()):
            raise InputError(
                "the map to your own points gives coordinates that are not finite: learn it again with "
                "'selfmark map'"
            )
        return NetworkLandmarks(torch.from_numpy(points), torch.from_numpy(point_scores).clamp(0, 1))

    @check_argument_types
    def save(self, folder: str | Path) -> None:
        """Write the underlying detector and the map to a model folder."""
        self.detector.save(folder)
        save_mapping(self.mapping, Path(folder))
