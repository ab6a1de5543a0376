"""Learn a map from a run and a few annotated images, as in `selfmark map`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.detector import Detector, NetworkPrediction, detector_fingerprint
from selfmark.errors import InputError
from selfmark.evaluation.annotated_refs import list_labeled_images
from selfmark.evaluation.label_files import read_ground_truth, read_label_file
from selfmark.evaluation.nme import mean_error, nan_mean
from selfmark.evaluation.normalizers import (
    canonicalize_name,
    choose_normalizer,
    keep_measurable,
    measure_lengths,
    measure_unchecked_lengths,
)
from selfmark.images.crop import region_sides, to_network
from selfmark.images.sources import list_images
from selfmark.mapping.mapped_detector import LearnedMapping, save_mapping
from selfmark.mapping.model_selection import select_map
from selfmark.mapping.point_map import MappingExamples, MirrorPartners
from selfmark.model.card import is_packaged, model_folder
from selfmark.points import FloatArray
from selfmark.run.devices import select_device
from selfmark.wording import choose_form, describe_count


@dataclass(frozen=True)
class MappingResult:
    """Result of `learn_map`.

    Attributes:
        mapping: Learned map.
        path: Path of map.json, the description of the map.
        notes: Messages for the user.
    """

    mapping: LearnedMapping
    path: Path
    notes: tuple[str, ...]


def learn_map(
    folder: str | Path,
    labels: str | Path,
    images: Sequence[str | Path] = (),
    normalizer: str = "",
    device: str = "auto",
) -> MappingResult:
    """Learn a map to the user's points from annotated images, and save it in the model folder.

    Args:
        folder: Run folder or model folder.
        labels: Points of at least one image: COCO keypoints, a DeepLabCut table or a Label Studio export.
        images: The annotated images; empty for the images that a COCO file names.
        normalizer: Length that errors are divided by, as in `selfmark evaluate`; empty for the default of the
            labels.
        device: `auto`, `cpu`, `cuda`, ...
    """
    folder, labels = Path(folder), Path(labels)
    if is_packaged(folder):
        raise InputError(
            "the demo model inside selfmark cannot store a map: save the model to a folder of your own first"
        )
    detector = Detector.load(folder, select_device(device))
    notes: list[str] = []
    refs = list_images(images, on_note=notes.append) if images else list_labeled_images(labels, folder)
    truth = read_ground_truth(labels, refs)
    if normalizer:
        truth = keep_measurable(truth, normalizer)
    predicted = detector.predict_network_pixels(truth.refs)
    truth = truth.select(predicted.rows)
    mapping = _fit_mapping(detector, truth, predicted, normalizer, _read_skeleton(labels, truth.names))
    target = model_folder(folder)
    save_mapping(mapping, target)
    notes += (*truth.notes, *_describe_limits(truth, predicted, mapping))
    return MappingResult(mapping, target / "map.json", tuple(notes))


# --- fitting --------------------------------------------------------------------------------------------


def _fit_mapping(
    detector: Detector,
    truth: AnnotatedObjects,
    predicted: NetworkPrediction,
    normalizer: str,
    skeleton: Sequence[tuple[int, int]],
) -> LearnedMapping:
    """Select the best options, fit the map, and return it with its names, errors and other properties.

    Args:
        detector: Detector that predicted the landmarks.
        truth: N annotated objects.
        predicted: Landmarks of the same N objects.
        normalizer: Length that errors are divided by; empty for the default of the labels.
        skeleton: Pairs of annotated points to connect in drawings.
    """
    size = detector.card.images.size
    normalizer, lengths = _measure_lengths(truth, normalizer, predicted.regions)
    images = [(ref.path, ref.frame) for ref in truth.refs]
    image_index = {image: index for index, image in enumerate(dict.fromkeys(images))}
    examples = MappingExamples(
        landmarks=predicted.xy.astype(np.float64),
        score=predicted.score.astype(np.float64),
        points=to_network(np.nan_to_num(truth.xy), predicted.regions[:, None], size),
        visible=truth.visible,
        group=np.array([image_index[image] for image in images], dtype=np.int64),
    )
    partners = truth.mirror or infer_mirror_partners(truth.names)
    mirror = MirrorPartners(detector.card.mirror, partners, size) if partners else None
    selected = select_map(examples, lengths * (size / region_sides(predicted.regions)), mirror)

    # Leave out points that are not annotated in any image, and renumber the other points.
    kept = np.flatnonzero(selected.map.known_points())
    new_index = {int(old): new for new, old in enumerate(kept)}
    has_partners = partners and all(partners[old] in new_index for old in new_index)
    point_errors = nan_mean(selected.errors[:, kept], axis=0)
    return LearnedMapping(
        map=selected.map.select(kept),
        names=tuple(truth.names[old] for old in new_index),
        mirror=tuple(new_index[partners[old]] for old in new_index) if has_partners else (),
        skeleton=tuple(
            (new_index[a], new_index[b]) for a, b in skeleton if a in new_index and b in new_index
        ),
        model=detector_fingerprint(detector),
        labels=str(truth.source),
        images=len(image_index),
        objects=len(truth),
        options=selected.options,
        normalizer=normalizer,
        error=_round(mean_error(selected.errors)),
        errors=tuple(_round(error) for error in point_errors),
    )


def _measure_lengths(
    truth: AnnotatedObjects, normalizer: str, regions: npt.NDArray[np.float64]
) -> tuple[str, FloatArray]:
    """Return the normalizer and its lengths [N] in pixels of the originals.

    If no normalizer is given and the default cannot be measured for all objects, use `side`, the side of the
    region that the network sees.
    """
    if normalizer:
        return normalizer, measure_lengths(truth, normalizer, regions)
    normalizer = choose_normalizer(truth)
    lengths = measure_unchecked_lengths(truth, normalizer, regions)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        normalizer, lengths = "side", measure_unchecked_lengths(truth, "side", regions)
    return normalizer, lengths


def _round(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 3)


# --- label file -----------------------------------------------------------------------------------------


def infer_mirror_partners(names: Sequence[str]) -> tuple[int, ...]:
    """Return the mirror partners of points named like left_ear and right_ear.

    A point without a side in its name is its own partner. The result is empty in three cases: no name has a
    side, a name with a side has no unique counterpart, or a name without a side has a number. Numbered points
    (jaw_0, jaw_1, ...) may be partners of each other.

    >>> infer_mirror_partners(["nose", "left_ear", "right_ear"])
    (0, 2, 1)
    >>> infer_mirror_partners(["left_ear", "jaw_0", "right_ear"])
    ()
    """
    canonical = [canonicalize_name(name) for name in names]
    opposite = {"left": "right", "right": "left"}
    partners: list[int] = []
    for index, name in enumerate(canonical):
        side, _, part = name.partition("_")
        if side in opposite:
            partner = f"{opposite[side]}_{part}" if part else opposite[side]
            if canonical.count(partner) != 1 or canonical.count(name) != 1:
                return ()
            partners.append(canonical.index(partner))
        elif any(letter.isdecimal() for letter in name):
            return ()
        else:
            partners.append(index)
    has_sides = any(partner != index for index, partner in enumerate(partners))
    return tuple(partners) if has_sides else ()


def _read_skeleton(path: Path, names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of points that the label file connects."""
    file = read_label_file(path)
    category = file.category(file.single_objects())
    return category.skeleton(len(names))


def _describe_limits(
    truth: AnnotatedObjects, predicted: NetworkPrediction, mapping: LearnedMapping
) -> list[str]:
    """Return messages about images and points that could not be used, and other limits of the map."""
    notes = []
    if predicted.skipped:
        notes.append(
            f"{describe_count(len(predicted.skipped), 'annotated image')} could not be read and "
            f"{choose_form(len(predicted.skipped), 'was', 'were')} left out; "
            f"the first is {predicted.skipped[0]}"
        )
    unmapped = [name for name in truth.names if name not in mapping.names]
    if unmapped:
        notes.append(
            f"these points are not annotated in any image and are not in the map: {', '.join(unmapped)}"
        )
    if not (truth.mirror or infer_mirror_partners(truth.names)):
        notes.append(
            "the label file does not say which points are left and right (flip_idx), so mirrored images were "
            "not used for learning, and every exported point is its own mirror partner"
        )
    if mapping.images == 1:
        notes.append("with one annotated image, no image can be held out to measure the error")
    return notes
