"""Adaptive non-maximal suppression (ANMS): select strong points that are spread over the image.

SIFT and ORB find most of their points in a few textured regions, which is suboptimal for landmarks (Sec.
5.1). This module implements Suppression via Square Covering (Bailo et al. 2018): go through the points from
strong to weak, let each point that is not covered yet cover the square around it, and find by bisection the
size of the square that leaves the requested number of points.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.points import FloatArray

Indices = npt.NDArray[np.int64]


def suppress_non_maxima(
    xy: FloatArray, count: int, width: int, height: int, tolerance: float = 0.1
) -> Indices:
    """Select `count` points that are spread over the image.

    The largest square that leaves `count` to (1 + tolerance) * `count` points is used, and the weakest points
    beyond `count` are dropped. Fewer points are returned only if the others are within about a pixel
    of a selected point.

    Args:
        xy: [P, 2] points, strongest first, inside the image.
        count: number of points to select.
        width: width of the image in pixels.
        height: height of the image in pixels.
        tolerance: the covering may leave more than `count` points, by up to this fraction. A smaller value
            gives larger squares and takes a few more steps.

    Returns:
        Ascending indices into `xy`, so strongest first; the strongest point is always included.

    >>> points = np.array([[10.0, 10.0], [11.0, 10.0], [10.0, 12.0], [50.0, 50.0]])
    >>> suppress_non_maxima(points, 2, 64, 64).tolist()
    [0, 3]
    """
    if len(xy) <= count:
        return np.arange(len(xy))
    max_count = int(count * (1 + tolerance))
    small, large = 1, max(width, height)  # `small` leaves at least `count` points, unless it is 1
    while large - small > 1:
        side = (small + large) // 2
        num_left = len(cover_with_squares(xy, side, width, height, limit=max_count + 1))
        if num_left < count:
            large = side
        else:
            small = side
            if num_left <= max_count:
                break
    return cover_with_squares(xy, small, width, height, limit=count)


def cover_with_squares(xy: FloatArray, side: int, width: int, height: int, limit: int) -> Indices:
    """Return the indices of the first `limit` points that survive a covering by squares.

    The image is divided into cells of half the square's side. A point survives unless its cell is within two
    rows and two columns of the cell of a stronger survivor.

    Args:
        xy: [P, 2] points, strongest first.
        side: side of the square in pixels.
        width: width of the image in pixels.
        height: height of the image in pixels.
        limit: maximum number of survivors.
    """
    cells = np.floor((np.asarray(xy, dtype=np.float64) + 0.5) * (2 / side)).astype(np.int64)
    # `covered` has a margin of two cells on all sides: its row r, column c is cell (r - 2, c - 2).
    covered = np.zeros((2 * height // side + 5, 2 * width // side + 5), dtype=bool)
    survivors: list[int] = []
    for index, (column, row) in enumerate(cells.tolist()):
        if not covered[row + 2, column + 2]:
            survivors.append(index)
            if len(survivors) == limit:
                break
            covered[row : row + 5, column : column + 5] = True
    return np.array(survivors, dtype=np.int64)
