"""Find images that occur twice: the same pixels, or pixels that are almost the same.

Images are compared as gray thumbnails. Each image is compared only with a few candidates: its nearest
neighbors in the lowest frequencies of the thumbnails. The cosine transform is orthonormal, so thumbnails
whose low frequencies are far apart are far apart themselves and need no comparison.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import torch
from scipy.spatial import cKDTree

Rows = npt.NDArray[np.int64]
Thumbnails = npt.NDArray[np.uint8]  # [N, side, side], gray levels

THUMBNAIL_SIDE = 32  # pixels
_FREQUENCIES = 3  # lowest frequencies of each axis; candidates are searched by these 3 x 3 numbers
_NEIGHBORS = 8  # nearest neighbors to search, including the image itself; only earlier ones are compared
# Two thumbnails are almost the same up to these differences in gray levels. Copies with another compression
# or size differ by less, and an object in another pose differs by more in at least one pixel.
_MAX_MEAN_DIFFERENCE = 4.0  # root mean square over all pixels
_MAX_PIXEL_DIFFERENCE = 24.0  # in any pixel


@dataclass(frozen=True)
class Duplicates:
    """For each of N images, the first earlier image that is the same.

    exact: [N] row of an earlier image with the same pixels; -1 if there is none
    near:  [N] row of an earlier image that is almost the same; -1 if there is none, and for exact copies
    """

    exact: Rows
    near: Rows


def find_duplicates(pixels: torch.Tensor, thumbnails: Thumbnails) -> Duplicates:
    """Find exact and near duplicates.

    Args:
        pixels: [N, 3, S, S] uint8.
        thumbnails: [N, side, side] of the same images, see `make_thumbnails`.
    """
    exact = _find_exact(pixels, thumbnails)
    return Duplicates(exact, np.where(exact < 0, _find_near(thumbnails), -1))


def make_thumbnails(pixels: torch.Tensor) -> Thumbnails:
    """Return gray thumbnails [N, side, side] of images [N, 3, S, S] uint8; each pixel is an average."""
    thumbnails = np.empty((len(pixels), THUMBNAIL_SIDE, THUMBNAIL_SIDE), np.uint8)
    for row, image in enumerate(pixels):
        gray = cv2.cvtColor(np.ascontiguousarray(image.numpy().transpose(1, 2, 0)), cv2.COLOR_RGB2GRAY)
        size = (THUMBNAIL_SIDE, THUMBNAIL_SIDE)
        thumbnails[row] = cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
    return thumbnails


def look_alike(thumbnails: Thumbnails, others: Thumbnails) -> npt.NDArray[np.bool_]:
    """Return True where the two thumbnails [..., side, side] of a pair are almost the same."""
    difference = np.abs(thumbnails.astype(np.float32) - others)
    root_mean_square = np.sqrt(np.square(difference).mean(axis=(-2, -1)))
    are_alike: npt.NDArray[np.bool_] = (root_mean_square <= _MAX_MEAN_DIFFERENCE) & (
        difference.max(axis=(-2, -1)) <= _MAX_PIXEL_DIFFERENCE
    )
    return are_alike


def _find_exact(pixels: torch.Tensor, thumbnails: Thumbnails) -> Rows:
    """Return the first earlier image [N] with the same pixels, -1 for none.

    Only images with equal thumbnails are hashed.
    """
    groups: dict[bytes, list[int]] = {}
    for row, thumbnail in enumerate(thumbnails):
        # Digests take less memory than thumbnails, of which there may be a million.
        digest = hashlib.blake2b(thumbnail.tobytes(), digest_size=16).digest()
        groups.setdefault(digest, []).append(row)
    exact = np.full(len(pixels), -1, np.int64)
    for rows in groups.values():
        if len(rows) == 1:
            continue
        first: dict[bytes, int] = {}
        for row in rows:
            digest = hashlib.sha256(pixels[row].numpy().tobytes()).digest()
            if first.setdefault(digest, row) != row:
                exact[row] = first[digest]
    return exact


def _find_near(thumbnails: Thumbnails) -> Rows:
    """Return the first earlier image [N], among the nearest neighbors, that looks the same; -1 for none."""
    count = len(thumbnails)
    low = slice(0, _FREQUENCIES)
    descriptions = np.array(
        [cv2.dct(thumbnail.astype(np.float32))[low, low].ravel() for thumbnail in thumbnails]
    )
    near = np.full(count, -1, np.int64)
    if count < 2:
        return near
    neighbors = cKDTree(descriptions).query(
        descriptions, k=min(_NEIGHBORS, count), distance_upper_bound=_MAX_MEAN_DIFFERENCE * THUMBNAIL_SIDE
    )[1]
    for row, candidates in enumerate(neighbors):
        # Candidates that the tree did not find have the number `count`, which is not below `row`.
        earlier_rows = np.sort(candidates[candidates < row])
        similar_rows = earlier_rows[look_alike(thumbnails[row], thumbnails[earlier_rows])]
        if len(similar_rows):
            near[row] = similar_rows[0]
    return near
