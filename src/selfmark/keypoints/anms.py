"""Adaptive non-maximal suppression: strong points that are also spread over the image.

SIFT and ORB crowd their points on a few textured spots, which the paper calls suboptimal for landmarks
(Keypoint initialization). The remedy is Suppression via Square Covering (Bailo et al. 2018): walk the
points from strong to weak, let each that is still uncovered cover the square around it, and seek by
bisection the square that leaves as many points as wanted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.points import FloatArray

Indices = npt.NDArray[np.int64]


def suppress_non_maxima(
    xy: FloatArray, count: int, width: int, height: int, tolerance: float = 0.1
) -> Indices:
    """Choose `count` well-spread points.

    The largest square found to leave `count` to (1 + tolerance) x `count` points wins; its weakest surplus
    is dropped. Fewer than `count` come back only if there are fewer that are about a pixel apart.

    Args:
        xy: [P, 2] points, strongest first, inside an image of `width` x `height` pixels.
        count: points wanted.
        tolerance: share of `count` by which the covering may overshoot before its surplus is dropped;
            smaller means larger squares and a few more steps.

    Returns:
        Indices into `xy`, rising, so strongest first; the strongest point is always among them.

    >>> crowd = np.array([[10.0, 10.0], [11.0, 10.0], [10.0, 12.0], [50.0, 50.0]])
    >>> anms(crowd, 2, 64, 64).tolist()
    [0, 3]
    """
    if len(xy) <= count:
        return np.arange(len(xy))
    most = int(count * (1 + tolerance))
    small, large = 1, max(width, height)  # `small` leaves enough points or is the least there is
    while large - small > 1:
        side = (small + large) // 2
        found = len(cover_with_squares(xy, side, width, height, limit=most + 1))
        if found < count:
            large = side
        else:
            small = side
            if found <= most:
                break
    return cover_with_squares(xy, small, width, height, limit=count)


def cover_with_squares(xy: FloatArray, side: int, width: int, height: int, limit: int) -> Indices:
    """The first `limit` points that survive a covering by squares.

    The plane is cut into cells of half the square's side. A point survives unless its cell lies within two
    rows and two columns of the cell of a stronger survivor.

    Args:
        xy: [P, 2] points, strongest first.
        side: side of the square in pixels.
        limit: stop after this many survivors.
    """
    cells = np.floor((np.asarray(xy, dtype=np.float64) + 0.5) * (2 / side)).astype(np.int64)
    # Two spare cells all round: row r, column c of `covered` is cell (r - 2, c - 2).
    covered = np.zeros((2 * height // side + 5, 2 * width // side + 5), dtype=bool)
    survivors: list[int] = []
    for index, (column, row) in enumerate(cells.tolist()):
        if not covered[row + 2, column + 2]:
            survivors.append(index)
            if len(survivors) == limit:
                break
            covered[row : row + 5, column : column + 5] = True
    return np.array(survivors, dtype=np.int64)
