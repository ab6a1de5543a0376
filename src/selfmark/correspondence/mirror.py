"""Mirror partners of landmarks (Sec. 3.7): which landmark each landmark becomes when the image is flipped."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def mirror_cooccurrence(
    label: npt.NDArray[np.int64], mirrored_label: npt.NDArray[np.int64], landmarks: int
) -> npt.NDArray[np.int64]:
    """Count how often landmark k becomes landmark l when the image is mirrored, [K, K].

    Args:
        label: [P] landmark of each point; below 0 for none.
        mirrored_label: [P] landmark of the same point in the mirror image; below 0 for none.
        landmarks: K.

    >>> mirror_cooccurrence(np.array([0, 0, 1]), np.array([1, 1, -1]), 2).tolist()
    [[0, 2], [0, 0]]
    """
    is_labeled = (label >= 0) & (mirrored_label >= 0)
    table = np.zeros((landmarks, landmarks), dtype=np.int64)
    np.add.at(table, (label[is_labeled], mirrored_label[is_labeled]), 1)
    return table


def nearest_in_mirror_image(
    xy: npt.NDArray[np.float32], mirrored_xy: npt.NDArray[np.float32]
) -> npt.NDArray[np.int64]:
    """Count how often landmark l of the mirror image is nearest to landmark k of the image, [K, K].

    Args:
        xy: [N, K, 2] landmarks of images.
        mirrored_xy: [N, K, 2] landmarks of the mirror images, mapped back to the original images.

    >>> eyes = np.array([[[0.0, 0.0], [9.0, 0.0]]])
    >>> nearest_in_mirror_image(eyes, eyes[:, ::-1]).tolist()
    [[0, 1], [1, 0]]
    """
    landmarks = xy.shape[1]
    table = np.zeros((landmarks, landmarks), dtype=np.int64)
    for landmark in range(landmarks):
        distance = np.linalg.norm(mirrored_xy - xy[:, landmark, None], axis=2)
        table[landmark] = np.bincount(distance.argmin(axis=1), minlength=landmarks)
    return table


def find_mirror_partners(table: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Return the partner of each landmark, from the [K, K] table of `mirror_cooccurrence`.

    The paper pairs each cluster with the one it becomes most often. Such choices need not be mutual, but
    flipping twice must change nothing. Pairs are therefore formed greedily, in descending order of
    how often either landmark becomes the other. A landmark that finds no free partner is its own partner.

    >>> find_mirror_partners(np.array([[0, 9, 0], [8, 0, 1], [0, 0, 7]]))
    (1, 0, 2)
    """
    landmarks = len(table)
    strength = (table + table.T) / 2  # table[k, k] counts once: it is a landmark on the symmetry axis
    first, second = np.triu_indices(landmarks)
    partner = list(range(landmarks))
    is_paired = np.zeros(landmarks, dtype=bool)
    for pair in np.argsort(-strength[first, second], kind="stable"):
        a, b = int(first[pair]), int(second[pair])
        if strength[a, b] > 0 and not is_paired[a] and not is_paired[b]:
            partner[a], partner[b] = b, a
            is_paired[a] = is_paired[b] = True
    return tuple(partner)
