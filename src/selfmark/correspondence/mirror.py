"""Find mirror partners: the landmark that each landmark becomes in a mirrored image (Sec. 3.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


def mirror_cooccurrence(
    label: npt.NDArray[np.int64], mirrored_label: npt.NDArray[np.int64], landmarks: int
) -> npt.NDArray[np.int64]:
    """Count how often landmark k becomes landmark l when the image is mirrored, [K, K].

    Args:
        label: [P] landmark of each point; below 0 for none.
        mirrored_label: [P] landmark of the same point in the mirror image; below 0 for none.
        landmarks: number of landmarks K.

    >>> mirror_cooccurrence(np.array([0, 0, 1]), np.array([1, 1, -1]), 2).tolist()
    [[0, 2], [0, 0]]
    """
    is_labeled = (label >= 0) & (mirrored_label >= 0)
    table = np.zeros((landmarks, landmarks), dtype=np.int64)
    np.add.at(table, (label[is_labeled], mirrored_label[is_labeled]), 1)
    return table


def count_nearest_in_mirror(
    xy: npt.NDArray[np.float32], mirrored_xy: npt.NDArray[np.float32]
) -> npt.NDArray[np.int64]:
    """Count how often landmark l of the mirror image is nearest to landmark k of the image, [K, K].

    Args:
        xy: [N, K, 2] landmarks of N images, in pixels.
        mirrored_xy: [N, K, 2] landmarks of the mirror images, mapped back to the original images.

    >>> eyes = np.array([[[0.0, 0.0], [9.0, 0.0]]])
    >>> count_nearest_in_mirror(eyes, eyes[:, ::-1]).tolist()
    [[0, 1], [1, 0]]
    """
    landmarks = xy.shape[1]
    table = np.zeros((landmarks, landmarks), dtype=np.int64)
    for landmark in range(landmarks):
        distance = np.linalg.norm(mirrored_xy - xy[:, landmark, None], axis=2)
        table[landmark] = np.bincount(distance.argmin(axis=1), minlength=landmarks)
    return table


@dataclass(frozen=True)
class LandmarkPartners:
    """Mirror partners of K landmarks.

    mirror:    [K] the landmark that each landmark becomes in a mirrored image; itself if no partner was found
    is_paired: [K] whether a partner was found; a landmark on the symmetry axis is its own partner
    """

    mirror: tuple[int, ...]
    is_paired: tuple[bool, ...]

    @classmethod
    def identity(cls, landmarks: int) -> LandmarkPartners:
        """Make each of K landmarks its own partner."""
        return cls(tuple(range(landmarks)), (True,) * landmarks)

    @property
    def unpaired(self) -> tuple[int, ...]:
        """Return the landmarks without a partner, ascending."""
        return tuple(index for index, paired in enumerate(self.is_paired) if not paired)

    def select(self, chosen: Sequence[int]) -> LandmarkPartners:
        """Keep some landmarks and number them 0, 1, ...; those whose partner is left out become unpaired.

        >>> LandmarkPartners((2, 1, 0, 3), (True, True, True, False)).select([0, 1, 3])
        LandmarkPartners(mirror=(0, 1, 2), is_paired=(False, True, False))
        """
        number = {landmark: index for index, landmark in enumerate(chosen)}
        return LandmarkPartners(
            tuple(number.get(self.mirror[landmark], number[landmark]) for landmark in chosen),
            tuple(self.is_paired[landmark] and self.mirror[landmark] in number for landmark in chosen),
        )


def find_mirror_partners(table: npt.NDArray[np.int64]) -> LandmarkPartners:
    """Find the partner of each landmark in the [K, K] table of `mirror_cooccurrence`.

    The paper pairs each cluster with the cluster that it becomes most often. Here the choice must be mutual,
    because flipping twice must change nothing: two landmarks are partners only if each exchanges places with
    the other more often than with any other landmark.

    >>> find_mirror_partners(np.array([[0, 9, 0, 0], [8, 0, 1, 3], [0, 0, 7, 0], [0, 2, 0, 1]])).mirror
    (1, 0, 2, 3)
    >>> find_mirror_partners(np.array([[0, 9, 0, 0], [8, 0, 1, 3], [0, 0, 7, 0], [0, 2, 0, 1]])).unpaired
    (3,)
    """
    strength = (table + table.T) / 2  # the mean of both directions
    best = strength.argmax(axis=1)
    index = np.arange(len(table))
    is_paired = (best[best] == index) & (strength[index, best] > 0)
    return LandmarkPartners(
        tuple(int(partner) for partner in np.where(is_paired, best, index)),
        tuple(bool(paired) for paired in is_paired),
    )


def measure_partner_likeness(
    descriptor: npt.NDArray[np.float32],
    mirrored_descriptor: npt.NDArray[np.float32],
    partners: LandmarkPartners,
) -> npt.NDArray[np.float64]:
    """Return the fraction of mirror images in which a landmark resembles its partner more than itself, [K].

    A left eye looks like a right eye in the mirror. A fore paw seen from the side still looks like a fore paw
    in the mirror, even at the usual place of the hind paw. Both landmarks of a pair get the mean of their two
    fractions.
    A landmark that is its own partner gets 1.

    Args:
        descriptor: [N, K, D] appearance of the landmarks of N images, without their places; unit vectors.
        mirrored_descriptor: [N, K, D] appearance of the same places in the mirror images.
        partners: mirror partners of the K landmarks.

    >>> left, right = [1.0, 0.0], [0.0, 1.0]
    >>> eyes = np.array([[left, right]])
    >>> measure_partner_likeness(eyes, eyes[:, ::-1], LandmarkPartners((1, 0), (True, True))).tolist()
    [1.0, 1.0]
    >>> measure_partner_likeness(eyes, eyes, LandmarkPartners((1, 0), (True, True))).tolist()
    [0.0, 0.0]
    """
    mirror = np.array(partners.mirror)
    mean = descriptor.astype(np.float64).mean(axis=0)
    mean /= np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)
    to_itself = np.einsum("nkd,kd->nk", mirrored_descriptor, mean)
    to_partner = np.einsum("nkd,kd->nk", mirrored_descriptor, mean[mirror])
    fraction = (to_partner > to_itself).mean(axis=0)
    return np.where(mirror == np.arange(len(mirror)), 1.0, (fraction + fraction[mirror]) / 2)


def drop_unlike_partners(
    partners: LandmarkPartners, likeness: npt.NDArray[np.float64], min_likeness: float
) -> LandmarkPartners:
    """Make landmarks unpaired if their likeness (`measure_partner_likeness`) is below `min_likeness`.

    >>> drop_unlike_partners(LandmarkPartners((1, 0), (True, True)), np.array([0.1, 0.1]), 0.3).unpaired
    (0, 1)
    """
    is_kept = likeness >= min_likeness
    pairs = enumerate(zip(partners.mirror, partners.is_paired, is_kept.tolist(), strict=True))
    mirror, is_paired = zip(
        *((partner, paired) if kept else (index, False) for index, (partner, paired, kept) in pairs),
        strict=True,
    )
    return LandmarkPartners(mirror, is_paired)
