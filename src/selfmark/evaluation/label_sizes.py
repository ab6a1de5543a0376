"""Check that labels belong to the images: file names of different data sets often coincide, sizes do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.coco import CocoImage
from selfmark.images.decode import UnreadableImage, read_image_size
from selfmark.images.video import probe_video
from selfmark.sampling import evenly_spaced

_CHECKED_IMAGES = 200
_MAX_DIFFERENT = 0.5  # fraction of the checked images; with more, the labels belong to other images
_MARGIN = 0.1  # fraction of the image's sides by which a point may lie outside, as clicks at the border do


class _Mismatch(NamedTuple):
    """An image that does not fit its labels: its row, and what does not fit."""

    row: int
    reason: str


def require_matching_sizes(
    truth: AnnotatedObjects, images: Sequence[CocoImage], refs: Sequence[ImageRef]
) -> tuple[str, ...]:
    """Raise if labels do not fit the images that they were matched to, without decoding any image.

    The size that the label file states must be that of the image, or its points must lie inside.

    Args:
        truth: N annotated objects.
        images: N entries of the label file.
        refs: N images with the same names.

    Returns:
        A note if some images do not fit.

    Raises:
        InputError: if more than half of the checked images do not fit.
    """
    rows = evenly_spaced(len(refs), _CHECKED_IMAGES).tolist()
    found = [mismatch for row in rows if (mismatch := _compare(truth, images[row], refs[row], row))]
    if not found:
        return ()
    row, reason = found[0]
    first = f"'{images[row].file_name}' {reason}"
    if len(found) > _MAX_DIFFERENT * len(rows):
        raise InputError(
            f"{truth.source} belongs to other images, although the names coincide: {first}, as for "
            f"{len(found)} of {len(rows)} images checked; give the images of these labels"
        )
    return (
        f"{truth.source}: {len(found)} of {len(rows)} images checked do not fit their labels, first {first}",
    )


def _compare(truth: AnnotatedObjects, image: CocoImage, ref: ImageRef, row: int) -> _Mismatch | None:
    try:
        size = probe_video(ref.path).size if ref.frame is not None else read_image_size(ref.path)
    except (InputError, UnreadableImage):
        return None  # unreadable images are reported when they are predicted
    stated = (image.values.get("width"), image.values.get("height"))
    if all(isinstance(value, int) and value > 0 for value in stated):
        # Some tools state the size of a rotated photo before its rotation.
        if stated in (size, size[::-1]):
            return None
        reason = f"has {stated[0]} x {stated[1]} pixels there, but {ref.path} has {size[0]} x {size[1]}"
        return _Mismatch(row, reason)
    points = truth.xy[row][truth.visible[row]]
    margin = _MARGIN * np.array(size)
    is_outside = ((points < -margin) | (points > size + margin)).any(axis=1)
    if is_outside.mean() <= 0.5:
        return None
    x, y = np.round(points[is_outside][0]).astype(int).tolist()
    return _Mismatch(row, f"has a point at {x}, {y}, but {ref.path} has {size[0]} x {size[1]} pixels")
