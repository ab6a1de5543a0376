"""Decode a still image and crop it for every object in it.

This module does not import torch, because the processes that read images must start quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.config import Images
from selfmark.image_ref import ImageRef
from selfmark.images.crop import compute_crop_regions, extract_crop
from selfmark.images.decode import DecodedImage, Pixels, UnreadableImage, decode_image

_MIN_OVERSAMPLING = 2  # a reduced JPEG keeps at least this many pixels per network pixel along each axis


@dataclass(frozen=True)
class Crop:
    """What the network sees of an object.

    pixels: [3, S, S] uint8 RGB
    size:   width and height of the original, pixels
    region: [4] float64, x, y, w, h of the crop in the original
    """

    pixels: Pixels
    size: tuple[int, int]
    region: npt.NDArray[np.float64]


Outcome = Crop | str  # a crop, or the reason why the image was skipped


def read_crops(path: Path, refs: Sequence[ImageRef], images: Images) -> list[Outcome]:
    """Decode a still image and crop it for every reference to it."""

    def max_reduction(size: tuple[int, int]) -> float:
        if max(size) < 2 * _MIN_OVERSAMPLING * images.size:  # Small originals are not reduced.
            return 1.0
        sides = compute_crop_regions([size] * len(refs), stack_boxes(refs), images)[:, 2:]
        return float(sides.min()) / (_MIN_OVERSAMPLING * images.size)

    try:
        original = decode_image(path, images.max_megapixels, max_reduction)
    except UnreadableImage as error:
        return [str(error)] * len(refs)
    return crop_all(original, refs, images)


def crop_all(original: DecodedImage, refs: Sequence[ImageRef], images: Images) -> list[Outcome]:
    """Crop one decoded original for every reference to it."""
    size = original.size
    regions = compute_crop_regions([size] * len(refs), stack_boxes(refs), images)
    return [
        Crop(_extract(original, region, images.size), size, region)
        if _has_overlap(ref, size)
        else "the box is empty or outside the image"
        for ref, region in zip(refs, regions, strict=True)
    ]


def stack_boxes(refs: Sequence[ImageRef]) -> npt.NDArray[np.float64]:
    """Return the boxes [N, 4] of references, NaN where there is none."""
    rows = [(np.nan,) * 4 if ref.box is None else ref.box for ref in refs]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def _extract(original: DecodedImage, region: npt.NDArray[np.float64], size: int) -> Pixels:
    crop = extract_crop(original.pixels, region / original.factor, size)
    return np.ascontiguousarray(crop.transpose(2, 0, 1))


def _has_overlap(ref: ImageRef, size: tuple[int, int]) -> bool:
    """Return True if the reference has no box, or if its box has an area and overlaps the image."""
    if ref.box is None:
        return True
    x, y, width, height = ref.box
    overlaps = x < size[0] and y < size[1] and x + width > 0 and y + height > 0
    return overlaps and width > 0 and height > 0
