"""The lengths that errors are divided by, and what point names say about sides and parts.

A normalizer is named by a short word, its spec, as the paper names them: `box` for LS3D and PennAction,
`inter_ocular` for faces, `shoulders` and `torso` for bodies. Point names come from many hands, so
"LeftEye", "eye_l" and "left eye" are taken for the same point.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.evaluation.nme import box_normalizer
from selfmark.images.coco import CocoCategory
from selfmark.points import FloatArray

# Specs measured between two parts; a part's place is the center of all its points.
PARTS = {
    "inter_ocular": ("left_eye", "right_eye"),
    "shoulders": ("left_shoulder", "right_shoulder"),
    "torso": ("left_shoulder", "right_hip"),
}
WORDS = ("box", "bbox", *PARTS, "side")
POINTS = "points:"

SIDES = {"l": "left", "r": "right", "left": "left", "right": "right"}
# Parts whose side may be a bare initial without a gap, as in "lhip". Not ears: "rear" is a word.
INITIALLED = "eye|shoulder|elbow|wrist|hand|hip|knee|ankle|foot"


# --- lengths ---------------------------------------------------------------------------------------


def normalizer_lengths(truth: AnnotatedObjects, spec: str, regions: FloatArray) -> FloatArray:
    """The length [N] that each object's errors are divided by, in pixels of the original image.

    Args:
        truth: N objects.
        spec: One of `WORDS` or "points:A,B": box, the root of the area of the tight box around the visible
            points; bbox, the same of the annotation's own box; inter_ocular, between the centers of the
            eyes; shoulders; torso, left shoulder to right hip; side, the side of the region; points:A,B,
            between two points given by name or index.
        regions: [N, 4] x, y, w, h of the crops in the original.
    """
    found = measurable_lengths(truth, spec, regions)
    unusable = np.flatnonzero(~(np.isfinite(found) & (found > 0)))
    if len(unusable):
        others = f" (nor in {len(unusable) - 1} other entries)" if len(unusable) > 1 else ""
        raise InputError(
            f"{truth.describe(int(unusable[0]))}: the normalizer '{spec}' cannot be measured here{others}, "
            "because what it needs is missing, not visible or of no length; choose another normalizer, or "
            "leave the entry out"
        )
    return found


def measurable_lengths(truth: AnnotatedObjects, spec: str, regions: FloatArray) -> FloatArray:
    """As `normalizer_lengths`, but NaN or 0 where there is nothing to measure, for metrics that pass over objects."""
    if regions.shape != (len(truth), 4):
        raise ValueError(f"regions must be [{len(truth)}, 4], got {regions.shape}")
    if spec == "box":
        return box_normalizer(truth.xy, truth.visible)
    if spec in ("bbox", "side"):
        extents = np.asarray(truth.boxes if spec == "bbox" else regions, np.float64)
        root: FloatArray = np.sqrt(extents[:, 2] * extents[:, 3])
        return root
    ends = _ends(truth.names, spec)
    if ends is None:
        raise InputError(
            f"{truth.source} does not name the points that the normalizer '{spec}' needs; choose another"
        )
    distance: FloatArray = np.linalg.norm(_center(truth, ends[0]) - _center(truth, ends[1]), axis=1)
    return distance


def is_available(truth: AnnotatedObjects, spec: str) -> bool:
    """Whether the points that a normalizer is measured between are named, visible or not."""
    return spec in ("box", "bbox", "side") or _ends(truth.names, spec) is not None


def default_normalizer(truth: AnnotatedObjects) -> str:
    """What the label file declares, else the distance of the eyes, else of the shoulders, else the box."""
    named = (spec for spec in ("inter_ocular", "shoulders") if is_available(truth, spec))
    return truth.normalizer or next(named, "box")


def declared_normalizer(category: CocoCategory, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the normalizer that a label file declares as a spec, and notes if it is unknown.

    The spec is empty if the file declares nothing or an unknown word.
    """
    word, points = category.normalizer(len(names))
    if word == "bbox_sqrt_area":
        return "bbox", ()
    if points is not None:
        return f"{POINTS}{names[points[0]]},{names[points[1]]}", ()
    if not word or word in WORDS or word.startswith(POINTS):
        return word, ()
    return "", (f"{category.where}: the normalizer '{word}' is unknown and was ignored",)


def _ends(names: Sequence[str], spec: str) -> tuple[list[int], list[int]] | None:
    """The points at the two ends of a length; None if one has none."""
    if spec in PARTS:
        pair = tuple([i for i, name in enumerate(names) if _of_part(name, part)] for part in PARTS[spec])
        return (pair[0], pair[1]) if all(pair) else None
    if not spec.startswith(POINTS):
        raise InputError(
            f"there is no normalizer '{spec}'; choose one of {', '.join(WORDS)} or {POINTS}A,B for the "
            "distance between two points"
        )
    given = spec.removeprefix(POINTS)
    # Names may hold commas themselves, so every comma may be the one that divides the two.
    for comma in (at for at, letter in enumerate(given) if letter == ","):
        first, second = _point(names, given[:comma]), _point(names, given[comma + 1 :])
        if first is not None and second is not None:
            return [first], [second]
    return None


def _of_part(name: str, part: str) -> bool:
    """Whether a point is the part or one of its numbered points: left_eye, left_eye_0, left_eye_1, ..."""
    return re.fullmatch(rf"{part}(_\d+)?", canonical_name(name)) is not None


def _point(names: Sequence[str], text: str) -> int | None:
    """A point given by its name, its name in another spelling, or its index."""
    text = text.strip()
    if text in names:
        return names.index(text)
    alike = [index for index, name in enumerate(names) if canonical_name(name) == canonical_name(text)]
    if len(alike) == 1:
        return alike[0]
    # As many digits as any index could have: a longer number is no index, and int() refuses very long ones.
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else len(names)
    return number if number < len(names) else None


def _center(truth: AnnotatedObjects, indices: list[int]) -> FloatArray:
    """Mean [N, 2] of an object's visible points among these; NaN where none is visible."""
    visible = truth.visible[:, indices]
    total = np.where(visible[..., None], truth.xy[:, indices], 0.0).sum(axis=1)
    count = visible.sum(axis=1)
    center: FloatArray = np.where(count > 0, total.T / np.maximum(count, 1), np.nan).T
    return center


# --- names -----------------------------------------------------------------------------------------


def canonical_name(name: str) -> str:
    """A point's name in one spelling: lower case, words joined by underscores, its side in front.

    >>> [canonical(name) for name in ("LeftEye", "eye.L", "L_Shoulder", "lshoulder", "right eye 3", "rear")]
    ['left_eye', 'left_eye', 'left_shoulder', 'left_shoulder', 'right_eye_3', 'rear']
    """
    words = _words(name)
    side = next((word for word in words if word in ("left", "right")), None)
    if side is not None:
        words.remove(side)
        words.insert(0, side)
    return "_".join(words)


def part_groups(names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Indices of the points of each part, left and right and numbered ones together, in order of mention.

    >>> part_groups(["left_eye", "nose", "right_eye", "jaw_0", "jaw_1"])
    {'eye': (0, 2), 'nose': (1,), 'jaw': (3, 4)}
    """
    groups: dict[str, tuple[int, ...]] = {}
    for index, name in enumerate(names):
        part = "_".join(w for w in _words(name) if w not in ("left", "right") and not w.isdecimal())
        part = part or name  # a name that is nothing but a side and a number stands for itself
        groups[part] = (*groups.get(part, ()), index)
    return groups


def _words(name: str) -> list[str]:
    """The words of a name in lower case, split at gaps, camel case, digits and a side run into the part."""
    bounds = r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\d)(?=[^\W\d])|(?<=[^\W\d])(?=\d)"
    words: list[str] = []
    for word in filter(None, (piece.lower() for piece in re.split(bounds, name))):
        joined = re.fullmatch(rf"(left|right)(.+)|([lr])({INITIALLED})", word)
        words += [piece for piece in joined.groups() if piece] if joined else [word]
    return [SIDES.get(word, word) for word in words]
