"""Define the points that packages pass to each other, as frozen dataclasses of arrays.

Images differ in their number of keypoints, so keypoints are stored flat: row p is one point, and
`image_index[p]` is the row of its image. Coordinates are (x, y) with pixel centers at integers. `Keypoints`
are in network pixels (of the square input of the network), `Landmarks` in pixels of the original image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

FloatArray = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Keypoints:
    """P keypoints of many images, stored flat, as tensors on one device.

    xy:          [P, 2] float32, network pixels
    image_index: [P] int64, row of the image store, ascending
    score:       [P] float32, confidence of the detector
    descriptor:  [P, D] float32, or None if the points have no descriptors
    """

    xy: torch.Tensor
    image_index: torch.Tensor
    score: torch.Tensor
    descriptor: torch.Tensor | None = None

    def __post_init__(self) -> None:
        count = self.xy.shape[0]
        if self.xy.shape != (count, 2):
            raise ValueError(f"xy must be [P, 2], got {tuple(self.xy.shape)}")
        if self.image_index.shape != (count,) or self.score.shape != (count,):
            raise ValueError("image_index and score must be [P]")
        if self.descriptor is not None and self.descriptor.shape[0] != count:
            raise ValueError("descriptor must be [P, D]")

    def __len__(self) -> int:
        return int(self.xy.shape[0])

    def select(self, keep: torch.Tensor) -> Keypoints:
        """Return some of the points.

        Args:
            keep: [P] bool mask, or indices.

        >>> points = Keypoints(torch.zeros(3, 2), torch.tensor([0, 0, 1]), torch.ones(3))
        >>> points.select(torch.tensor([True, False, True])).image_index.tolist()
        [0, 1]
        """
        descriptor = None if self.descriptor is None else self.descriptor[keep]
        return Keypoints(self.xy[keep], self.image_index[keep], self.score[keep], descriptor)

    def to(self, device: torch.device | str) -> Keypoints:
        """Move the points to a device."""
        descriptor = None if self.descriptor is None else self.descriptor.to(device)
        return Keypoints(self.xy.to(device), self.image_index.to(device), self.score.to(device), descriptor)

    def counts(self, images: int) -> torch.Tensor:
        """Count the points of each image, [images] int64."""
        return torch.bincount(self.image_index, minlength=images)


def concatenate_keypoints(parts: list[Keypoints]) -> Keypoints:
    """Concatenate batches of keypoints whose `image_index` refers to the whole image store."""
    if not parts:
        return Keypoints(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    has_descriptors = all(part.descriptor is not None for part in parts)
    return Keypoints(
        torch.cat([part.xy for part in parts]),
        torch.cat([part.image_index for part in parts]),
        torch.cat([part.score for part in parts]),
        torch.cat([part.descriptor for part in parts if part.descriptor is not None])
        if has_descriptors
        else None,
    )


@dataclass(frozen=True)
class Motion:
    """Motion of K landmarks in N video frames, computed from smoothed positions; NaN where unknown.

    seconds:   [N] float64, time of the frame from the start of its video
    speed:     [N, K] float32, pixels per second
    distance:  [N, K] float32, pixels traveled since the start of the track
    predicted: [N, K, 2] float32, the positions before smoothing; NaN in frames that smoothing added
    is_filled: [N, K] bool, whether a position is interpolated because its prediction was missing or left out
    method:    name of the smoothing method
    """

    seconds: npt.NDArray[np.float64]
    speed: FloatArray
    distance: FloatArray
    predicted: FloatArray
    is_filled: npt.NDArray[np.bool_]
    method: str

    def select(self, landmarks: Sequence[int]) -> Motion:
        """Return the motion of some of the landmarks."""
        kept = list(landmarks)
        return replace(
            self,
            speed=self.speed[:, kept],
            distance=self.distance[:, kept],
            predicted=self.predicted[:, kept],
            is_filled=self.is_filled[:, kept],
        )


@dataclass(frozen=True)
class Landmarks:
    """K landmarks in each of N images, as returned by a detector.

    xy:     [N, K, 2] float32, pixels of the original image; after smoothing, NaN in gaps that were not filled
    score:  [N, K] float32, peak of the landmark's heatmap, 0 to 1
    names:  K names, in index order
    motion: motion of smoothed landmarks; None for landmarks as a detector predicts them
    """

    xy: FloatArray
    score: FloatArray
    names: tuple[str, ...]
    motion: Motion | None = None

    def __post_init__(self) -> None:
        images, landmarks = self.score.shape
        if self.xy.shape != (images, landmarks, 2):
            raise ValueError(f"xy must be [N, K, 2] to match score {self.score.shape}, got {self.xy.shape}")
        if len(self.names) != landmarks:
            raise ValueError(f"{landmarks} landmarks need {landmarks} names, got {len(self.names)}")

    def __len__(self) -> int:
        return int(self.score.shape[0])

    def select(self, landmarks: Sequence[int]) -> Landmarks:
        """Return some of the landmarks of every image."""
        kept = list(landmarks)
        names = tuple(self.names[index] for index in kept)
        motion = None if self.motion is None else self.motion.select(kept)
        return Landmarks(self.xy[:, kept], self.score[:, kept], names, motion)


@dataclass(frozen=True)
class LabeledPoints:
    """Keypoints with the pseudo-labels of one round.

    points:         P keypoints without descriptors
    label:          [P] int64, cluster of the point; -1 if the point has none, usually because another point
                    of the same image is nearer to the center of the cluster
    mirrored_label: [P] int64, cluster of the same point in the mirrored image; -1 if the point has none
    clusters:       number of clusters
    centroids:      [clusters, D] float32, centers of the clusters; None if no clustering made the labels
    """

    points: Keypoints
    label: torch.Tensor
    mirrored_label: torch.Tensor
    clusters: int
    centroids: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.label.shape != (len(self.points),) or self.mirrored_label.shape != (len(self.points),):
            raise ValueError("label and mirrored_label must be [P]")

    def select(self, keep: torch.Tensor) -> LabeledPoints:
        """Return the points for which `keep` [P] bool is True."""
        return LabeledPoints(
            self.points.select(keep),
            self.label[keep],
            self.mirrored_label[keep],
            self.clusters,
            self.centroids,
        )
