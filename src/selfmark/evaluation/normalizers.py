"""Measure normalizers, the lengths that errors are divided by, and find body parts in point names.

A normalizer is chosen by a short name, its spec. The paper divides errors by `box` for LS3D and PennAction,
by `inter_ocular` for other faces, and by `shoulders` for other bodies; its PCK uses `torso`. Point names are
spelled in many ways, so "LeftEye", "eye_l" and "left eye" are treated as the same point.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError, suggest
from selfmark.evaluation.nme import box_normalizer
from selfmark.images.coco import CocoCategory
from selfmark.points import FloatArray
from selfmark.wording import choose_form, describe_count

# Specs that are distances between two parts. The position of a part is the center of all its points.
PARTS = {
    "inter_ocular": ("left_eye", "right_eye"),
    "shoulders": ("left_shoulder", "right_shoulder"),
    "torso": ("left_shoulder", "right_hip"),
}
NAMED_SPECS = ("box", "bbox", *PARTS, "side")
POINTS_PREFIX = "points:"

# The 300-W scheme of 68 facial points has the six points of the right eye at 36 to 41, and those of the left
# eye at 42 to 47. The authors' program measures the inter-ocular distance between points 41 and 46.
_SIXTY_EIGHT, _RIGHT_EYE, _LEFT_EYE, _AUTHORS_EYES = 68, range(36, 42), range(42, 48), (41, 46)

SIDES = {"l": "left", "r": "right", "left": "left", "right": "right"}
# Parts that may follow the initial of their side directly, as in "lhip". The part "ear" is missing, because
# "rear" is a word.
PARTS_WITH_INITIAL = "eye|shoulder|elbow|wrist|hand|hip|knee|ankle|foot"


# --- lengths ---------------------------------------------------------------------------------------


def measure_lengths(truth: AnnotatedObjects, spec: str, regions: FloatArray) -> FloatArray:
    """Return the length [N] that each object's errors are divided by, in pixels of the original image.

    Args:
        truth: N objects.
        spec: "box", the root of the area of the tight box around the visible points; "bbox", the root
            of the area of the annotated box; "inter_ocular", the distance between the centers of the eyes;
            "shoulders", the distance between the shoulders; "torso", the distance from the left shoulder to
            the right hip; "side", the side of the crop; or "points:A,B", the distance between two points
            given by name or index.
        regions: [N, 4] x, y, w, h of the crops in the original image.

    Raises:
        InputError: If the length of an object is unknown or zero.
    """
    lengths = measure_unchecked_lengths(truth, spec, regions)
    unusable = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(unusable):
        count = len(unusable) - 1
        other_entries = f" (nor in {describe_count(count, 'other entry', 'other entries')})" if count else ""
        raise InputError(
            f"{truth.describe(int(unusable[0]))}: the normalizer '{spec}' cannot be measured "
            f"here{other_entries}, because its points or box are missing, not visible or without extent; "
            "choose another normalizer, or leave the entry out"
        )
    return lengths


def keep_measurable(truth: AnnotatedObjects, spec: str) -> AnnotatedObjects:
    """Return the objects for which a normalizer can be measured, with a note about those left out.

    This needs no predictions, so a wrong normalizer can be reported before minutes of prediction.

    Args:
        truth: N objects.
        spec: see `measure_lengths`.

    Raises:
        InputError: If the normalizer is unknown, or cannot be measured for any object.
    """
    # Only "side" depends on the regions, and it can always be measured.
    lengths = measure_unchecked_lengths(truth, spec, np.ones((len(truth), 4)))
    is_usable = np.isfinite(lengths) & (lengths > 0)
    if is_usable.all():
        return truth
    first = truth.describe(int(np.flatnonzero(~is_usable)[0])).removeprefix(f"{truth.source}: ")
    example = f"for example, the points or box of {first} are missing, not visible or without extent"
    if not is_usable.any():
        raise InputError(
            f"{truth.source}: the normalizer '{spec}' cannot be measured for any object; "
            f"{example}; choose another normalizer with --normalizer"
        )
    count = int((~is_usable).sum())
    note = (
        f"{truth.source}: {count} of {len(truth)} annotations {choose_form(count, 'was', 'were')} left out, "
        f"because the normalizer '{spec}' cannot be measured there; {example}"
    )
    return replace(truth.select(is_usable), notes=(*truth.notes, note))


def measure_unchecked_lengths(truth: AnnotatedObjects, spec: str, regions: FloatArray) -> FloatArray:
    """Return the lengths [N] of `measure_lengths`, but NaN or 0 for lengths that cannot be measured."""
    if regions.shape != (len(truth), 4):
        raise ValueError(f"regions must be [{len(truth)}, 4], got {regions.shape}")
    if spec == "box":
        return box_normalizer(truth.xy, truth.visible)
    if spec in ("bbox", "side"):
        extents = np.asarray(truth.boxes if spec == "bbox" else regions, np.float64)
        root: FloatArray = np.sqrt(extents[:, 2] * extents[:, 3])
        return root
    ends = _find_ends(truth.names, spec)
    if ends is None:
        raise InputError(
            f"{truth.source} does not name the points that the normalizer '{spec}' needs; choose another "
            "normalizer"
        )
    distance: FloatArray = np.linalg.norm(
        _compute_mean_point(truth, ends[0]) - _compute_mean_point(truth, ends[1]), axis=1
    )
    return distance


def is_available(truth: AnnotatedObjects, spec: str) -> bool:
    """Return True if the label file names the points that a normalizer needs; they may be hidden."""
    return spec in ("box", "bbox", "side") or _find_ends(truth.names, spec) is not None


def choose_normalizer(truth: AnnotatedObjects) -> str:
    """Return the normalizer that the label file declares, or choose one by the names of the points.

    The first choice is the distance between the eyes, then that between the shoulders, then the box.
    """
    named = (spec for spec in ("inter_ocular", "shoulders") if is_available(truth, spec))
    return truth.normalizer or next(named, "box")


def list_inter_ocular_specs(names: Sequence[str]) -> dict[str, str]:
    """Return two definitions of the inter-ocular distance of 68 facial points, as specs.

    "eye_centers" is the definition of this package: the distance between the centers of the six points of
    each eye. "points_41_46" is that of the authors' program: the distance between two points of the lower
    lids.

    Args:
        names: Names of the L points.

    Returns:
        Mapping from the name of a definition to its spec; empty if the points are not the 68 facial points.
    """
    if len(names) != _SIXTY_EIGHT or _find_ends(names, "inter_ocular") != ([*_LEFT_EYE], [*_RIGHT_EYE]):
        return {}
    first, second = (names[index] for index in _AUTHORS_EYES)
    return {"eye_centers": "inter_ocular", "points_41_46": f"{POINTS_PREFIX}{first},{second}"}


def read_declared_normalizer(category: CocoCategory, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the spec of the normalizer that a label file declares, and a note if it is unknown.

    The spec is empty if the file declares no normalizer or an unknown one.
    """
    name, points = category.normalizer(len(names))
    if name == "bbox_sqrt_area":
        return "bbox", ()
    if points is not None:
        return f"{POINTS_PREFIX}{names[points[0]]},{names[points[1]]}", ()
    if not name or name in NAMED_SPECS or name.startswith(POINTS_PREFIX):
        return name, ()
    return "", (f"{category.where}: the normalizer '{name}' is unknown and was ignored",)


def _find_ends(names: Sequence[str], spec: str) -> tuple[list[int], list[int]] | None:
    """Return the indices of the points at the two ends of a length; None if an end has no point."""
    if spec in PARTS:
        pair = tuple([i for i, name in enumerate(names) if _is_part(name, part)] for part in PARTS[spec])
        return (pair[0], pair[1]) if all(pair) else None
    if not spec.startswith(POINTS_PREFIX):
        raise InputError(
            f"unknown normalizer '{spec}'; choose one of {', '.join(NAMED_SPECS)}, or {POINTS_PREFIX}A,B for "
            f"the distance between two points.{suggest(spec, NAMED_SPECS)}"
        )
    pair_text = spec.removeprefix(POINTS_PREFIX)
    # Names may contain commas, so each comma is tried as the separator.
    for comma in (index for index, letter in enumerate(pair_text) if letter == ","):
        first, second = _find_point(names, pair_text[:comma]), _find_point(names, pair_text[comma + 1 :])
        if first is not None and second is not None:
            return [first], [second]
    return None


def _is_part(name: str, part: str) -> bool:
    """Return True if a name stands for the part or one of its numbered points: left_eye, left_eye_0, ..."""
    return re.fullmatch(rf"{part}(_\d+)?", canonicalize_name(name)) is not None


def _find_point(names: Sequence[str], text: str) -> int | None:
    """Return the index of a point that is given by its name in any spelling, or by its index.

    The result is None if there is no such point.
    """
    text = text.strip()
    if text in names:
        return names.index(text)
    matches = [
        index for index, name in enumerate(names) if canonicalize_name(name) == canonicalize_name(text)
    ]
    if len(matches) == 1:
        return matches[0]
    # A number with more than 9 digits is no index, and int() raises an error for thousands of digits.
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else len(names)
    return number if number < len(names) else None


def _compute_mean_point(truth: AnnotatedObjects, indices: list[int]) -> FloatArray:
    """Compute the mean position [N, 2] of the given points, if visible; NaN if none is visible."""
    visible = truth.visible[:, indices]
    total = np.where(visible[..., None], truth.xy[:, indices], 0.0).sum(axis=1)
    count = visible.sum(axis=1)
    center: FloatArray = np.where(count > 0, total.T / np.maximum(count, 1), np.nan).T
    return center


# --- names -----------------------------------------------------------------------------------------


def canonicalize_name(name: str) -> str:
    """Return the name of a point as lower-case words joined by underscores, with left or right first.

    >>> [canonicalize_name(name) for name in ("LeftEye", "eye.L", "L_Hip", "lhip", "right eye 3", "rear")]
    ['left_eye', 'left_eye', 'left_hip', 'left_hip', 'right_eye_3', 'rear']
    """
    words = _split_words(name)
    side = next((word for word in words if word in ("left", "right")), None)
    if side is not None:
        words.remove(side)
        words.insert(0, side)
    return "_".join(words)


def group_by_part(names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Group points by body part, ignoring left, right and numbers; parts are in order of appearance.

    >>> group_by_part(["left_eye", "nose", "right_eye", "jaw_0", "jaw_1"])
    {'eye': (0, 2), 'nose': (1,), 'jaw': (3, 4)}
    """
    groups: dict[str, tuple[int, ...]] = {}
    for index, name in enumerate(names):
        words = [word for word in _split_words(name) if word not in ("left", "right")]
        part = "_".join(word for word in words if not word.isdecimal())
        part = part or name  # a name with only a side and a number is its own part
        groups[part] = (*groups.get(part, ()), index)
    return groups


_WORD_BOUNDARY = "|".join(
    (
        r"[\W_]+",  # punctuation and spaces: left_eye
        r"(?<=[a-z])(?=[A-Z])",  # an upper-case letter after a lower-case letter: leftEye
        r"(?<=[A-Z])(?=[A-Z][a-z])",  # the start of a capitalized word: LShoulder
        r"(?<=\d)(?=[^\W\d])",  # a letter after a digit
        r"(?<=[^\W\d])(?=\d)",  # a digit after a letter
    )
)


def _split_words(name: str) -> list[str]:
    """Split a name into lower-case words, with "left" and "right" as words of their own.

    >>> _split_words("LShoulder"), _split_words("lefteye3")
    (['left', 'shoulder'], ['left', 'eye', '3'])
    """
    words: list[str] = []
    for word in filter(None, (piece.lower() for piece in re.split(_WORD_BOUNDARY, name))):
        # The side may be attached, as in "lefteye" and "lhip".
        match = re.fullmatch(rf"(left|right)(.+)|([lr])({PARTS_WITH_INITIAL})", word)
        words += [piece for piece in match.groups() if piece] if match else [word]
    return [SIDES.get(word, word) for word in words]
