"""Adaptive non-maximal suppression (ANMS): select strong points that are spread over the image.

SIFT and ORB find most of their points in a few textured regions, but landmarks should be spread over the
object (Sec. 5.1 of the paper). This module implements Suppression via Square Covering (Bailo et al. 2018). It
visits the points from strong to weak and selects every point that is not yet covered; a selected point covers
the square around it. Bisection finds the size of the square with which the requested number of points is
selected.
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

    Bisection stops at a square with which `count` to (1 + `tolerance`) * `count` points are selected. The
    weakest points beyond `count` are dropped. Fewer points are returned only if all others are within about a
    pixel of a selected point.

    Args:
        xy: [P, 2] points, strongest first, inside the image.
        count: number of points to select.
        width: width of the image in pixels.
        height: height of the image in pixels.
        tolerance: fraction by which the number of points may exceed `count` before the weakest are dropped.
            A smaller value gives larger squares and takes a few more steps.

    Returns:
        Ascending indices into `xy`, so strongest first; the strongest point is always included.

    >>> points = np.array([[10.0, 10.0], [11.0, 10.0], [10.0, 12.0], [50.0, 50.0]])
    >>> suppress_non_maxima(points, 2, 64, 64).tolist()
    [0, 3]
    """
    if len(xy) <= count:
        return np.arange(len(xy))
    max_count = int(count * (1 + tolerance))
    # The reach of a square is how far it extends from its point. Squares of reach `low` select at least
    # `count` points, unless `low` is 1.
    low, high = 1, max(width, height)
    while high - low > 1:
        reach = (low + high) // 2
        num_selected = len(cover_with_squares(xy, reach, width, height, limit=max_count + 1))
        if num_selected < count:
            high = reach
        else:
            low = reach
            if num_selected <= max_count:
                break
    return cover_with_squares(xy, low, width, height, limit=count)


def cover_with_squares(xy: FloatArray, reach: int, width: int, height: int, limit: int) -> Indices:
    """Return the indices of the first `limit` points that are not covered by squares of stronger points.

    The image is divided into cells of half the reach. A selected point covers its cell and all cells within
    two rows and two columns: all points within the reach, and none beyond 1.5 times the reach.

    Args:
        xy: [P, 2] points, strongest first.
        reach: how far a square extends from its point in each direction, in pixels.
        width: width of the image in pixels.
        height: height of the image in pixels.
        limit: maximum number of points to select.
    """
    cells = np.floor((np.asarray(xy, dtype=np.float64) + 0.5) * (2 / reach)).astype(np.int64)
    # `covered` has a margin of two cells on all sides: its row r, column c is cell (r - 2, c - 2).
    is_covered = np.zeros((2 * height // reach + 5, 2 * width // reach + 5), dtype=bool)
    selected_points: list[int] = []
    for index, (column, row) in enumerate(cells.tolist()):
        if not is_covered[row + 2, column + 2]:
            selected_points.append(index)
            if len(selected_points) == limit:
                break
            is_covered[row : row + 5, column : column + 5] = True
    return np.array(selected_points, dtype=np.int64)
