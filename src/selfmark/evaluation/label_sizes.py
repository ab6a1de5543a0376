"""Check that labels belong to the images. Data sets often share file names, but seldom image sizes."""

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
from selfmark.wording import choose_form, describe_count

_MAX_CHECKED = 200  # maximum number of images that are checked
_MAX_DIFFERENT = 0.5  # fraction of checked images; if more do not fit, the labels belong to other images
_MAX_OUTSIDE = 0.5  # fraction of an image's points; if more lie outside, the image does not fit
_MARGIN = 0.1  # fraction of the image's sides; clicks at the border may lie outside by this much


class _Mismatch(NamedTuple):
    """The row of an image that does not fit its labels, and the reason."""

    row: int
    reason: str


def require_matching_sizes(
    truth: AnnotatedObjects, images: Sequence[CocoImage], refs: Sequence[ImageRef]
) -> tuple[str, ...]:
    """Raise if labels do not fit the images that they were matched to.

    An image fits if it has the size that the label file states, possibly with width and height exchanged. If
    the file states no size, an image fits if at least half of its points lie inside it or near its border.
    Still images are not decoded, because their headers give their sizes.

    Args:
        truth: N annotated objects.
        images: N entries of the label file, one per object.
        refs: N images that these entries were matched to.

    Returns:
        A note if some images do not fit.

    Raises:
        InputError: if more than half of the checked images do not fit.
    """
    rows = evenly_spaced(len(refs), _MAX_CHECKED).tolist()
    mismatches = [
        mismatch for row in rows if (mismatch := _find_mismatch(truth, images[row], refs[row], row))
    ]
    if not mismatches:
        return ()
    count = len(mismatches)
    row, reason = mismatches[0]
    example = f"for example, '{images[row].file_name}' {reason}"
    checked = f"{count} of {describe_count(len(rows), 'image')} checked"
    if count > _MAX_DIFFERENT * len(rows):
        raise InputError(
            f"{truth.source} belongs to other images with the same names: {checked} "
            f"{choose_form(count, 'does', 'do')} not fit; {example}; give the labeled images"
        )
    verb = choose_form(count, "does not fit its labels", "do not fit their labels")
    return (f"{truth.source}: {checked} {verb}; {example}",)


def _find_mismatch(truth: AnnotatedObjects, image: CocoImage, ref: ImageRef, row: int) -> _Mismatch | None:
    """Return why an image does not fit its labels; None if it fits or cannot be read."""
    try:
        size = probe_video(ref.path).size if ref.frame is not None else read_image_size(ref.path)
    except (InputError, UnreadableImage):
        return None  # unreadable images are reported later, by the prediction
    stated_size = image.size()
    if stated_size is not None:
        # Some tools ignore the orientation in a photo's EXIF data, so width and height may be swapped.
        if stated_size in (size, size[::-1]):
            return None
        stated, actual = (f"{width} x {height}" for width, height in (stated_size, size))
        reason = f"is {stated} pixels in the labels, but {ref.path} is {actual}"
        return _Mismatch(row, reason)
    points = truth.xy[row][truth.visible[row]]
    margin = _MARGIN * np.array(size)
    is_outside = ((points < -margin) | (points > size + margin)).any(axis=1)
    if is_outside.mean() <= _MAX_OUTSIDE:
        return None
    x, y = np.round(points[is_outside][0]).astype(int).tolist()
    return _Mismatch(row, f"has a point at {x}, {y}, but {ref.path} has {size[0]} x {size[1]} pixels")
