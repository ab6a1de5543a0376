"""Define annotated objects: readers of labels and data sets return them, evaluation and mapping use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.points import FloatArray

FieldValue = str | int | float | bool | None


@dataclass(frozen=True)
class AnnotatedObjects:
    """Annotated points of N objects of one category.

    Attributes:
        refs: N image references.
        names: L names of the points.
        xy: [N, L, 2] float64, pixels of the original image, pixel centers at integers; NaN where a point is
            not annotated.
        hidden: [N, L] bool, points that are annotated but occluded.
        boxes: [N, 4] float64, annotated box x, y, w, h, measured from pixel corners; NaN for objects without
            a box.
        mirror: Index of each point's partner in the mirrored image; empty if unknown.
        normalizer: Name of the length that errors are divided by (`evaluation.normalizers`), or empty.
        fields: Mapping from the name of a field (pose, species, ...) to N values that describe the objects;
            None where an object has no value.
        source: File or folder the annotations were read from, for messages.
        where: Location of each annotation in its file, for messages; empty if unknown.
        notes: Messages for the user about annotations that were left out.
    """

    refs: tuple[ImageRef, ...]
    names: tuple[str, ...]
    xy: FloatArray
    hidden: npt.NDArray[np.bool_]
    boxes: FloatArray
    mirror: tuple[int, ...] = ()
    normalizer: str = ""
    fields: Mapping[str, tuple[FieldValue, ...]] = field(default_factory=dict)
    source: Path = Path()
    where: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count, points = len(self.refs), len(self.names)
        shapes = (self.xy.shape, self.hidden.shape, self.boxes.shape)
        if shapes != ((count, points, 2), (count, points), (count, 4)):
            raise ValueError(
                f"xy, hidden and boxes must be arrays of {count} objects and {points} points, not {shapes}"
            )
        if self.mirror and sorted(self.mirror) != list(range(points)):
            raise ValueError(f"mirror must contain each index below {points} exactly once, not {self.mirror}")
        if any(len(values) != count for values in self.fields.values()) or len(self.where) not in (0, count):
            raise ValueError(f"every field and `where` must have {count} values")

    def __len__(self) -> int:
        return len(self.refs)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Image or video file of each object."""
        return tuple(ref.path for ref in self.refs)

    @property
    def frames(self) -> tuple[int | None, ...]:
        """Frame number of each object in its video, None for still images."""
        return tuple(ref.frame for ref in self.refs)

    @cached_property
    def visible(self) -> npt.NDArray[np.bool_]:
        """Mask [N, L] of the annotated points, including occluded ones."""
        visible: npt.NDArray[np.bool_] = np.all(np.isfinite(self.xy), axis=2)
        return visible

    def describe(self, row: int) -> str:
        """Return the location of an object's annotation, or else the name of its image, for messages."""
        return self.where[row] if self.where else self.refs[row].name

    def select(self, rows: npt.ArrayLike) -> AnnotatedObjects:
        """Return some of the objects.

        Args:
            rows: indices of the objects, in the order to return them, or a mask [N] bool.
        """
        index = np.arange(len(self))[np.asarray(rows)].tolist()
        return replace(
            self,
            refs=tuple(self.refs[row] for row in index),
            xy=self.xy[index],
            hidden=self.hidden[index],
            boxes=self.boxes[index],
            fields={key: tuple(values[row] for row in index) for key, values in self.fields.items()},
            where=tuple(self.where[row] for row in index) if self.where else (),
        )

    def select_points(self, names: Sequence[str]) -> AnnotatedObjects:
        """Return the same objects with only these points, in this order.

        `mirror` becomes empty if the partner of one of the points is left out.
        """
        missing_names = [name for name in names if name not in self.names]
        if missing_names:
            raise InputError(
                f"{self.source} has no point '{missing_names[0]}'; it has {', '.join(self.names)}"
            )
        index = [self.names.index(name) for name in names]
        new_index = {old: new for new, old in enumerate(index)}
        partners = [new_index.get(self.mirror[old]) for old in index] if self.mirror else []
        mirror = tuple(partner for partner in partners if partner is not None)
        return replace(
            self,
            names=tuple(names),
            xy=self.xy[:, index],
            hidden=self.hidden[:, index],
            mirror=mirror if len(mirror) == len(names) else (),
        )


def build_annotated_objects(
    refs: Sequence[ImageRef],
    names: Sequence[str],
    xy: FloatArray,
    boxes: FloatArray | None = None,
    hidden: npt.NDArray[np.bool_] | None = None,
    fields: Mapping[str, tuple[FieldValue, ...]] | None = None,
) -> AnnotatedObjects:
    """Build annotated objects from their points; boxes, occluded points and fields are optional."""
    return AnnotatedObjects(
        refs=tuple(refs),
        names=tuple(names),
        xy=xy,
        hidden=np.zeros(xy.shape[:2], dtype=bool) if hidden is None else hidden,
        boxes=np.full((len(refs), 4), np.nan) if boxes is None else boxes,
        fields={} if fields is None else fields,
    )
