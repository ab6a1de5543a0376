"""Choose evenly spaced rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def evenly_spaced(count: int, max_items: int, *, nearest: bool = False) -> npt.NDArray[np.int64]:
    """Return at most `max_items` of the rows 0 to `count` - 1, evenly spaced, first and last included.

    If `max_items` is 1, only the first row is returned.

    Args:
        count: number of rows to choose from.
        max_items: maximum number of rows to return.
        nearest: round positions between two rows to the nearest row instead of down.

    >>> evenly_spaced(10, 5).tolist(), evenly_spaced(10, 5, nearest=True).tolist()
    ([0, 2, 4, 6, 9], [0, 2, 4, 7, 9])
    >>> evenly_spaced(2, 5).tolist()
    [0, 1]
    """
    positions = np.linspace(0, count - 1, min(max_items, count))
    return np.unique((positions.round() if nearest else positions).astype(np.int64))
