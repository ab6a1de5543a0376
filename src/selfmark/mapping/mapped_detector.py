"""Maps stored in the model folder, and the detector that predicts the user's own points with them.

map.safetensors contains the arrays, and map.json a readable description. map.json also contains the
fingerprint of the detector that the map was learned on. A map that was learned on another detector is
rejected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfmark._version import __version__
from selfmark.detector import Detector, NetworkLandmarks, detector_fingerprint
from selfmark.errors import InputError, report_write_errors
from selfmark.mapping.model_selection import FitOptions
from selfmark.mapping.point_map import PointMap
from selfmark.model.card import model_folder
from selfmark.points import FloatArray
from selfmark.run.files import FORMAT, read_json, require_format, write_json
from selfmark.run.tensor_files import read_tensors, require_finite, write_tensors

TENSORS, DESCRIPTION = "map.safetensors", "map.json"


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
        errors: Mean error of each of the L points; None for a point without an error on a held-out image.
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
    """Write map.safetensors, then map.json with a digest of the arrays."""
    arrays = {name: getattr(mapping.map, name) for name in ("weights", "constant", "reference")}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    values = {
        "format": FORMAT,
        "selfmark": __version__,
        "model": mapping.model,
        "numbers": _digest(arrays),
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
    with report_write_errors(f"to {folder}"):
        write_tensors(tensors, {"model": mapping.model}, folder / TENSORS)
        write_json(values, folder / DESCRIPTION)


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
    tensors, _ = read_tensors(path.with_name(TENSORS))
    advice = f"learn it again with 'selfmark map {folder} --labels FILE'"
    try:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    except TypeError as error:  # NumPy does not have the data type of a tensor.
        raise InputError(f"{path.with_name(TENSORS)} is not a usable map: {error}; {advice}") from error
    if values.get("numbers") != _digest(arrays):
        raise InputError(f"{path} and {path.with_name(TENSORS)} do not belong together: {advice}")
    if values.get("model") != detector_fingerprint(detector):
        raise InputError(f"{path} was learned on another model than the one in this folder: {advice}")
    try:
        require_finite(tensors, path.with_name(TENSORS))
        return _mapping_from_json(values, PointMap(**arrays), len(detector.names))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{path} is not a usable map: {error}; {advice}") from error


def _mapping_from_json(values: Any, point_map: PointMap, num_landmarks: int) -> LearnedMapping:
    names = tuple(str(name) for name in values["names"])
    errors = values["leave_one_out"]
    mirror = tuple(int(partner) for partner in values["mirror"] or ())
    skeleton = tuple((int(a), int(b)) for a, b in values["skeleton"])
    if point_map.weights.shape != (2 * num_landmarks, 2 * len(names)) or not names:
        raise ValueError(f"{len(names)} names do not fit weights of shape {point_map.weights.shape}")
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
            skeleton=mapping.skeleton,
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
        """Return the mapped points of network images [B, 3, S, S], in pixels of these images."""
        located = self.detector.locate(pixels)
        xy, score = (tensor.cpu().numpy().astype(np.float64) for tensor in located)
        points = self.mapping.map.predict(xy, score).astype(np.float32)
        scores = self.mapping.map.point_scores(score).astype(np.float32)
        return NetworkLandmarks(torch.from_numpy(points), torch.from_numpy(scores).clamp(0, 1))

    def save(self, folder: Path) -> None:
        """Write the underlying detector and the map to a model folder."""
        self.detector.save(folder)
        save_mapping(self.mapping, folder)
