"""Check that labels belong to the images. Data sets often share file names, but seldom image sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.image_ref import ImageRef
from selfmark.images.coco import CocoImage
from selfmark.images.stated_sizes import (
    Mismatch,
    StatedSize,
    find_size_mismatch,
    read_size,
    require_fitting_images,
)

_MAX_OUTSIDE = 0.5  # fraction of an image's points; if more lie outside, the image does not fit
_MARGIN = 0.1  # fraction of the image's sides; clicks at the border may lie outside by this much


def require_matching_sizes(
    truth: AnnotatedObjects, images: Sequence[CocoImage], refs: Sequence[ImageRef]
) -> tuple[str, ...]:
    """Raise if labels do not fit the images that they were matched to.

    An image fits if it has the size that the label file states. If the file states no size, an image fits if
    at least half of its points lie inside it or near its border.

    Args:
        truth: N annotated objects.
        images: N entries of the label file, one per object.
        refs: N images that these entries were matched to.

    Returns:
        A note if some images do not fit.

    Raises:
        InputError: if too many images do not fit, see `require_fitting_images`.
    """
    stated = [StatedSize(image.file_name, image.size(), ref) for image, ref in zip(images, refs, strict=True)]

    def find_mismatch(row: int) -> Mismatch | None:
        size = read_size(refs[row])
        if stated[row].size is None and size is not None:
            return _find_points_outside(truth.xy[row][truth.visible[row]], refs[row], size)
        return find_size_mismatch(stated[row], "labels", size)

    return require_fitting_images(truth.source, stated, "labels", find_mismatch)


def _find_points_outside(
    points: npt.NDArray[np.float64], ref: ImageRef, size: tuple[int, int]
) -> Mismatch | None:
    """Return a mismatch if most of the points [N, 2] lie outside an image of this width and height."""
    margin = _MARGIN * np.array(size)
    is_outside = ((points < -margin) | (points > size + margin)).any(axis=1)
    if is_outside.mean() <= _MAX_OUTSIDE:
        return None
    x, y = np.round(points[is_outside][0]).astype(int).tolist()
    return Mismatch(f"has a point at {x}, {y}, but {ref.path} has {size[0]} x {size[1]} pixels")
