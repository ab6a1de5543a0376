"""Points passed between packages, as small frozen dataclasses of arrays.

Variable-length points are stored flat: row p is one point, `image_index[p]` says of which image.
Coordinates are (x, y) with pixel centers at integers. Which pixels is said by the type: `Keypoints`
live in network pixels (the square image the network sees), `Landmarks` in pixels of the image the user gave.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

FloatArray = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Keypoints:
    """Unordered points of many images, flat, as torch tensors on one device.

    xy:          [P, 2] float32, network pixels
    image_index: [P] int64, row of the image store, ascending
    score:       [P] float32, the detector's confidence
    descriptor:  [P, D] float32, or None where nothing describes the points
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
        """The points where `keep` ([P] bool mask or index) says so, in their order.

        >>> points = Keypoints(torch.zeros(3, 2), torch.tensor([0, 0, 1]), torch.ones(3))
        >>> points.select(torch.tensor([True, False, True])).image_index.tolist()
        [0, 1]
        """
        descriptor = None if self.descriptor is None else self.descriptor[keep]
        return Keypoints(self.xy[keep], self.image_index[keep], self.score[keep], descriptor)

    def to(self, device: torch.device | str) -> Keypoints:
        descriptor = None if self.descriptor is None else self.descriptor.to(device)
        return Keypoints(self.xy.to(device), self.image_index.to(device), self.score.to(device), descriptor)

    def counts(self, images: int) -> torch.Tensor:
        """Points per image, [images] int64."""
        return torch.bincount(self.image_index, minlength=images)


def concatenate_keypoints(parts: list[Keypoints]) -> Keypoints:
    """Join batches of keypoints whose image_index already counts over the whole data set."""
    if not parts:
        return Keypoints(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    described = all(part.descriptor is not None for part in parts)
    return Keypoints(
        torch.cat([part.xy for part in parts]),
        torch.cat([part.image_index for part in parts]),
        torch.cat([part.score for part in parts]),
        torch.cat([part.descriptor for part in parts if part.descriptor is not None]) if described else None,
    )


@dataclass(frozen=True)
class Landmarks:
    """K indexed points in each of N images: what a detector returns and every export reads.

    xy:    [N, K, 2] float32, pixels of the original image
    score: [N, K] float32, peak of the landmark's heatmap (about 0 to 1)
    names: K names, in index order
    """

    xy: FloatArray
    score: FloatArray
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        images, landmarks = self.score.shape
        if self.xy.shape != (images, landmarks, 2):
            raise ValueError(f"xy must be [N, K, 2] to match score {self.score.shape}, got {self.xy.shape}")
        if len(self.names) != landmarks:
            raise ValueError(f"{landmarks} landmarks need as many names, got {len(self.names)}")

    def __len__(self) -> int:
        return int(self.score.shape[0])


@dataclass(frozen=True)
class LabeledPoints:
    """The pseudo-labels of one round: each keypoint with its cluster, and its cluster in the mirror image.

    points:         P keypoints; descriptors are not kept
    label:          [P] int64, cluster of the point; -1 where the cluster is already taken in this image
    mirrored_label: [P] int64, cluster of the same point seen in the mirrored image; -1 where there is none
    clusters:       number of clusters labels count over
    centroids:      [clusters, D] their centers in descriptor space; None where no clustering made the labels
    """

    points: Keypoints
    label: torch.Tensor
    mirrored_label: torch.Tensor
    clusters: int
    centroids: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.label.shape != (len(self.points),) or self.mirrored_label.shape != (len(self.points),):
            raise ValueError("label and mirrored_label must be [P]")
