"""`selfmark map`: from a run and a few annotated images to a map in the model folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.detector import Detector, NetworkPrediction, detector_fingerprint
from selfmark.errors import InputError
from selfmark.evaluation.label_files import is_coco, read_ground_truth, read_label_file
from selfmark.evaluation.nme import mean_error, mean_of_known
from selfmark.evaluation.normalizers import (
    canonical_name,
    default_normalizer,
    measurable_lengths,
    normalizer_lengths,
)
from selfmark.image_ref import ImageRef
from selfmark.images.crop import to_network
from selfmark.images.sources import list_images
from selfmark.mapping.mapped_detector import LearnedMapping, save_mapping
from selfmark.mapping.model_selection import select_map
from selfmark.mapping.point_map import MappingExamples, MirrorPartners
from selfmark.model.card import is_packaged, model_folder
from selfmark.points import FloatArray
from selfmark.run.devices import select_device
from selfmark.run.folder import Run


@dataclass(frozen=True)
class LearnedMap:
    """The map, where its description was written, and sentences on what the user should know."""

    mapping: LearnedMapping
    path: Path
    notes: tuple[str, ...]


def learn_map(
    folder: str | Path,
    labels: str | Path,
    images: Sequence[str | Path] = (),
    normalizer: str = "",
    device: str = "auto",
) -> LearnedMap:
    """Learn from annotated images where the user's points lie, and keep that in the model folder.

    Args:
        folder: run folder, or the model folder of one.
        labels: COCO keypoints, a table of DeepLabCut or an export of Label Studio, of one image or more.
        images: the images labeled; none takes those a COCO file names.
        normalizer: what errors are divided by, as in `selfmark evaluate`; empty takes what the file suggests.
        device: `auto`, `cpu`, `cuda`, ...
    """
    folder, labels = Path(folder), Path(labels)
    if is_packaged(folder):
        raise InputError("the model that comes with selfmark keeps no map: save it to a folder of your own")
    detector = Detector.load(folder, select_device(device))
    refs = list_images(images) if images else _as_the_run_saw(_named_by(labels), folder)
    truth = read_ground_truth(labels, refs)
    found = detector.predict_network_pixels(truth.refs)
    truth = truth.select(found.rows)
    mapping = _fit(detector, truth, found, normalizer, _skeleton(labels, truth.names))
    target = model_folder(folder)
    save_mapping(mapping, target)
    return LearnedMap(mapping, target / "map.json", (*truth.notes, *_notes(truth, found, mapping)))


def _named_by(labels: Path) -> list[ImageRef]:
    if not is_coco(labels):
        raise InputError(f"{labels} does not say in which folder its images are: name that before --labels")
    return list_images([labels])


def _as_the_run_saw(refs: Sequence[ImageRef], folder: Path) -> list[ImageRef]:
    """A label file's images, whole like those of most runs, even if it has boxes.

    The map must see landmarks as they will be predicted. Boxes are kept where the run itself was given boxes,
    or where an image shows several objects.
    """
    boxed = (folder / "run.json").exists() and any(ref.box is not None for ref in Run.open(folder).refs())
    objects = Counter((ref.path, ref.frame) for ref in refs)
    if boxed or max(objects.values()) > 1:
        return list(refs)
    return [replace(ref, box=None) for ref in refs]


# --- landmarks and points together ----------------------------------------------------------------------


def _fit(
    detector: Detector,
    truth: AnnotatedObjects,
    found: NetworkPrediction,
    normalizer: str,
    skeleton: Sequence[tuple[int, int]],
) -> LearnedMapping:
    size = detector.card.images.size
    spec, length = _lengths(truth, normalizer, found.regions)
    images = [(ref.path, ref.frame) for ref in truth.refs]
    number = {image: index for index, image in enumerate(dict.fromkeys(images))}
    examples = MappingExamples(
        landmarks=found.xy.astype(np.float64),
        score=found.score.astype(np.float64),
        points=to_network(np.nan_to_num(truth.xy), found.regions[:, None], size),
        visible=truth.visible,
        group=np.array([number[image] for image in images], dtype=np.int64),
    )
    partners = truth.mirror or mirror_by_name(truth.names)
    mirror = MirrorPartners(detector.card.mirror, partners, size) if partners else None
    fitted = select_map(examples, length * (size / found.regions[:, 2]), mirror)

    kept = np.flatnonzero(fitted.map.known_points())
    new = {int(old): index for index, old in enumerate(kept)}
    complete = partners and all(partners[old] in new for old in new)
    by_point = mean_of_known(fitted.errors[:, kept], axis=0)
    return LearnedMapping(
        map=fitted.map.select(kept),
        names=tuple(truth.names[old] for old in new),
        mirror=tuple(new[partners[old]] for old in new) if complete else (),
        skeleton=tuple((new[one], new[other]) for one, other in skeleton if one in new and other in new),
        model=detector_fingerprint(detector),
        labels=str(truth.source),
        images=len(number),
        objects=len(truth),
        options=fitted.options,
        normalizer=spec,
        error=_number(mean_error(fitted.errors)),
        errors=tuple(_number(error) for error in by_point),
    )


def _lengths(truth: AnnotatedObjects, normalizer: str, regions: npt.NDArray[np.float64]) -> tuple[str, FloatArray]:
    """What errors are divided by; if nobody asked for it and it cannot be measured, the image's side."""
    if normalizer:
        return normalizer, normalizer_lengths(truth, normalizer, regions)
    spec = default_normalizer(truth)
    found = measurable_lengths(truth, spec, regions)
    if not (np.isfinite(found) & (found > 0)).all():
        spec, found = "side", measurable_lengths(truth, "side", regions)
    return spec, found


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 3)


# --- what the label file says of its points ---------------------------------------------------------------


def mirror_by_name(names: Sequence[str]) -> tuple[int, ...]:
    """Mirror partners told from names: left_ear and right_ear. Empty unless they say so of every point.

    A point without a side is its own partner, but one of a numbered row (jaw_0, jaw_1, ...) may be anyone's.

    >>> mirror_by_name(["nose", "left_ear", "right_ear"])
    (0, 2, 1)
    >>> mirror_by_name(["left_ear", "jaw_0", "right_ear"])
    ()
    """
    spelled = [canonical_name(name) for name in names]
    other = {"left": "right", "right": "left"}
    partners: list[int] = []
    for index, name in enumerate(spelled):
        side, _, part = name.partition("_")
        if side in other:
            wanted = f"{other[side]}_{part}" if part else other[side]
            if spelled.count(wanted) != 1 or spelled.count(name) != 1:
                return ()
            partners.append(spelled.index(wanted))
        elif any(letter.isdecimal() for letter in name):
            return ()
        else:
            partners.append(index)
    sided = any(partner != index for index, partner in enumerate(partners))
    return tuple(partners) if sided else ()


def _skeleton(path: Path, names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of points that the label file connects."""
    file = read_label_file(path)
    return file.category(file.single_objects()).skeleton(len(names))


def _notes(truth: AnnotatedObjects, found: NetworkPrediction, mapping: LearnedMapping) -> list[str]:
    notes = []
    if found.skipped:
        notes.append(
            f"{len(found.skipped)} annotated images could not be read and were left out, "
            f"first {found.skipped[0]}"
        )
    unknown = [name for name in truth.names if name not in mapping.names]
    if unknown:
        notes.append(f"annotated in no image and therefore not in the map: {', '.join(unknown)}")
    if not mapping.mirror:
        notes.append(
            "the label file does not say which points are left and right of each other (flip_idx), so mirror "
            "images could not be learned from and exported points are their own mirror partners"
        )
    if mapping.images == 1:
        notes.append("with one annotated image nothing can be left out, so no error is known")
    return notes
