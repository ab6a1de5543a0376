"""A map in the model folder, and the detector that speaks the user's names with it.

map.safetensors holds the numbers, map.json all that a person may want to know. Both say which model the map
was learned on, so that one left over from an earlier training is not taken for the present one's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping as Dictionary
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfmark._version import __version__
from selfmark.detector import Detector, Located, detector_fingerprint
from selfmark.errors import InputError
from selfmark.mapping.model_selection import FitOptions
from selfmark.mapping.point_map import PointMap
from selfmark.model.card import model_folder
from selfmark.points import FloatArray
from selfmark.run.files import FORMAT, read_json, require_format, write_json
from selfmark.run.tensor_files import read_tensors, write_tensors

TENSORS, DESCRIPTION = "map.safetensors", "map.json"


@dataclass(frozen=True)
class LearnedMapping:
    """A map to L points of the user's and how it came about.

    map:        the numbers
    names:      L names of the points
    mirror:     L: each point's partner in the mirrored image; empty where not known
    skeleton:   pairs of points to connect
    model:      fingerprint of the detector it was learned on
    labels:     the label file
    images:     annotated images it was learned from
    objects:    annotated objects in them
    options:    how it was fitted
    normalizer: what errors are divided by, as in `selfmark evaluate`
    error:      leave-one-out error in percent; None with a single image
    errors:     the same of each point; None where nothing could be left out
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
    """Write map.safetensors and then map.json, which says which numbers it describes."""
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
    try:
        write_tensors(tensors, {"model": mapping.model}, folder / TENSORS)
        write_json(values, folder / DESCRIPTION)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error


def load_mapping(folder: str | Path, detector: Detector) -> LearnedMapping:
    """The map of a run folder or its model folder, refused unless it was learned on this detector."""
    path = model_folder(Path(folder)) / DESCRIPTION
    if not path.exists():
        raise InputError(f"{folder} has no map: learn one with 'selfmark map {folder} --labels FILE'")
    values = read_json(path)
    require_format(values, path)
    tensors, _ = read_tensors(path.with_name(TENSORS))
    again = f"learn it anew with 'selfmark map {folder} --labels FILE'"
    try:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    except TypeError as error:  # a type of number that only torch knows
        raise InputError(f"{path.with_name(TENSORS)} is not a usable map: {error}; {again}") from error
    if values.get("numbers") != _digest(arrays):
        raise InputError(f"{path} and {path.with_name(TENSORS)} do not belong together: {again}")
    if values.get("model") != detector_fingerprint(detector):
        raise InputError(f"{path} was learned on another model than the one beside it: {again}")
    try:
        return _mapping(values, PointMap(**arrays), len(detector.names))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not a usable map: {error}; {again}") from error


def _mapping(values: Any, point_map: PointMap, landmarks: int) -> LearnedMapping:
    names, left_out = tuple(str(name) for name in values["names"]), values["leave_one_out"]
    mirror = tuple(int(partner) for partner in values["mirror"] or ())
    skeleton = tuple((int(one), int(other)) for one, other in values["skeleton"])
    if point_map.weights.shape != (2 * landmarks, 2 * len(names)) or not names:
        raise ValueError(f"{len(names)} names for weights {point_map.weights.shape}")
    if mirror and sorted(mirror) != list(range(len(names))):
        raise ValueError("mirror partners are not a permutation")
    if any(not 0 <= end < len(names) for pair in skeleton for end in pair):
        raise ValueError("the skeleton connects points that are not there")
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
        error=left_out["mean"],
        errors=tuple(left_out["points"][name] for name in names),
    )


def _digest(arrays: Dictionary[str, FloatArray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class MappedDetector(Detector):
    """A detector of the user's points: the landmarks another detector finds, mapped.

    >>> from selfmark.mapping.mapped_detector import MappedDetector, load_mapping
    >>> detector = selfmark.load("runs/cats")                                      # doctest: +SKIP
    >>> mapped = MappedDetector(detector, load_mapping("runs/cats", detector))     # doctest: +SKIP
    >>> mapped("cat.jpg").names                                                    # doctest: +SKIP
    ('left_eye', 'right_eye', 'nose')
    """

    def __init__(self, detector: Detector, mapping: LearnedMapping) -> None:
        """As `detector`, run by whatever that runs on, but with the points of the map."""
        card = replace(
            detector.card,
            names=mapping.names,
            mirror=mapping.mirror or tuple(range(len(mapping.names))),
            skeleton=mapping.skeleton,
            colors=(),  # what was said of the landmarks says nothing of these points
            hidden=(),
            confirmed=(),
            provenance=detector.card.provenance
            | {"mapped": {"labels": mapping.labels, "images": mapping.images, "error": mapping.error}},
        )
        super().__init__(detector.psi, card, detector.device, detector.runtime)
        self.detector = detector
        self.mapping = mapping

    def locate(self, pixels: Tensor) -> Located:
        found = self.detector.locate(pixels)
        xy, score = (column.cpu().numpy().astype(np.float64) for column in found)
        points = self.mapping.map.predict(xy, score).astype(np.float32)
        scores = self.mapping.map.point_scores(score).astype(np.float32)
        return Located(torch.from_numpy(points), torch.from_numpy(scores).clamp(0, 1))

    def save(self, folder: Path) -> None:
        """Write the detector it builds on, and the map beside it."""
        self.detector.save(folder)
        save_mapping(self.mapping, folder)
