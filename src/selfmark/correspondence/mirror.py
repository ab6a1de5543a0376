"""Mirror partners of landmarks (Sec. 3.7): which landmark each becomes when the image is flipped."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def mirror_cooccurrence(
    label: npt.NDArray[np.int64], mirrored_label: npt.NDArray[np.int64], landmarks: int
) -> npt.NDArray[np.int64]:
    """How often a point of landmark k is landmark l in the mirror image, [K, K]; labels below 0 are left out.

    >>> meetings(np.array([0, 0, 1]), np.array([1, 1, -1]), 2).tolist()
    [[0, 2], [0, 0]]
    """
    both = (label >= 0) & (mirrored_label >= 0)
    table = np.zeros((landmarks, landmarks), dtype=np.int64)
    np.add.at(table, (label[both], mirrored_label[both]), 1)
    return table


def find_mirror_partners(table: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Partner of each landmark, from the [K, K] table of meetings; partners of partners are themselves.

    The paper takes the cluster met most often. Taken one by one such choices need not agree, and flipping
    twice must change nothing, so the strongest mutual meetings are settled first. A landmark that meets none
    of those still free is its own partner.

    >>> mirror_partners(np.array([[0, 9, 0], [8, 0, 1], [0, 0, 7]]))
    (1, 0, 2)
    """
    landmarks = len(table)
    strength = (table + table.T) / 2  # a landmark on the symmetry axis meets itself: table[k, k] counts once
    first, second = np.triu_indices(landmarks)
    partner = list(range(landmarks))
    settled = np.zeros(landmarks, dtype=bool)
    for pair in np.argsort(-strength[first, second], kind="stable"):
        one, other = int(first[pair]), int(second[pair])
        if strength[one, other] > 0 and not settled[one] and not settled[other]:
            partner[one], partner[other] = other, one
            settled[one] = settled[other] = True
    return tuple(partner)
