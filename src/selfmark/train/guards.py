"""Check for collapsed training, once per round and before a model is saved.

The checks stop a run early with an explanation, instead of saving a model that detects nothing. The limits
are in the config section `guards`; healthy training is far away from all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfmark.config import Guards
from selfmark.correspondence.recovery import DescribedPoints
from selfmark.errors import CollapsedTraining
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_MAX_DESCRIPTORS = 100_000  # maximum number of descriptors per process whose spread is measured


def check_points(
    described: DescribedPoints,
    num_images: int,
    size: int,
    settings: Guards,
    group: ProcessGroup = SINGLE_PROCESS,
) -> None:
    """Raise if the network found too few points, or if all descriptors or all positions are alike.

    Args:
        described: the points of this process's images.
        num_images: number of images over all processes.
        size: side of the network's image in pixels.
        settings: the limits.
        group: the processes that share the images.
    """
    points_per_image = sum(group.gather_counts(len(described.points))) / num_images
    if points_per_image < settings.min_points:
        raise CollapsedTraining(
            f"training has collapsed: the network finds only {points_per_image:.2f} points per image. "
            "Start again with a lower optimizer.lr, a lower heatmaps.threshold, or another --detector"
        )
    if described.points.descriptor is not None:
        spread = measure_descriptor_spread(described.points.descriptor[:_MAX_DESCRIPTORS], group)
        if not spread >= settings.min_descriptor_spread:
            raise CollapsedTraining(
                f"training has collapsed: the descriptors of all points are alike (spread {spread:.2g}, "
                f"minimum {settings.min_descriptor_spread:g}). Start again with a lower optimizer.lr or a "
                "higher loss.negative_weight"
            )
    spread = measure_point_spread(described.points, group) / size
    if not spread >= settings.min_point_spread:
        raise CollapsedTraining(
            f"training has collapsed: all points of an image lie in one place (within {100 * spread:.2g} % "
            "of its side). Start again with another --detector or a lower optimizer.lr"
        )


def check_labels(labeled: LabeledPoints, settings: Guards) -> None:
    """Raise if too many clusters are empty."""
    used = len(torch.unique(labeled.label[labeled.label >= 0]))
    if 1 - used / labeled.clusters > settings.max_empty_fraction:
        raise CollapsedTraining(
            f"training has collapsed: {labeled.clusters - used} of {labeled.clusters} clusters have no "
            "points. Start again with a smaller K and M, with more images, or with a lower optimizer.lr"
        )


def check_landmarks(xy: Tensor, score: Tensor, size: int, settings: Guards) -> None:
    """Raise if landmarks are not finite, if all scores are low, or if all landmarks lie in one place.

    Args:
        xy: [B, K, 2] landmarks of B images, network pixels.
        score: [B, K].
        size: side of the network's image in pixels.
        settings: the limits.
    """
    if not (xy.isfinite().all() and score.isfinite().all()):
        raise CollapsedTraining(
            "training has collapsed: landmark positions are not finite numbers. Start again with a lower "
            "optimizer.lr"
        )
    best = float(score.max())
    if best < settings.min_score:
        raise CollapsedTraining(
            f"training has collapsed: no landmark has a score above {best:.2g}. Start again with more "
            "stage2.iterations or a lower optimizer.lr"
        )
    distance = (xy - xy.mean(dim=1, keepdim=True)).norm(dim=2)
    spread = float(distance.mean()) / size
    if xy.shape[1] > 1 and spread < settings.min_point_spread:
        raise CollapsedTraining(
            f"training has collapsed: all landmarks lie in one place (within {100 * spread:.2g} % of the "
            "image's side). Start again with a lower optimizer.lr or with other images"
        )


def measure_descriptor_spread(vectors: Tensor, group: ProcessGroup = SINGLE_PROCESS) -> float:
    """Return the mean squared distance of unit vectors [P, D] from their mean.

    The result is 0 if all vectors are equal, and 1 if their mean is zero.

    >>> measure_descriptor_spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    1.0
    >>> measure_descriptor_spread(torch.tensor([[1.0, 0.0]] * 5))
    0.0
    """
    sums = torch.cat([vectors.sum(dim=0), vectors.square().sum()[None], vectors.new_tensor([len(vectors)])])
    total = group.all_sum(sums.double().to(_reduction_device(group, vectors)))
    mean, squares = total[:-2] / total[-1], total[-2] / total[-1]
    return float(squares - mean.square().sum())


def measure_point_spread(points: Keypoints, group: ProcessGroup = SINGLE_PROCESS) -> float:
    """Return the mean distance of points from the center of all points of their image, in pixels.

    Images with a single point are ignored.

    >>> xy = torch.tensor([[0.0, 0.0], [6.0, 8.0], [1.0, 1.0]])
    >>> measure_point_spread(Keypoints(xy, torch.tensor([0, 0, 1]), torch.ones(3)))
    5.0
    """
    _, row, count = torch.unique(points.image_index, return_inverse=True, return_counts=True)
    center = points.xy.new_zeros(len(count), 2).index_add_(0, row, points.xy) / count[:, None]
    has_others = count[row] > 1
    distance = (points.xy - center[row]).norm(dim=1)[has_others]
    sums = torch.stack([distance.sum().double(), has_others.sum().double()])
    total = group.all_sum(sums.to(_reduction_device(group, points.xy)))
    return float(total[0] / total[1].clamp_min(1))


def _reduction_device(group: ProcessGroup, like: Tensor) -> torch.device:
    """Return the device on which sums over processes are computed.

    `like` may be in host memory, but processes exchange tensors on `group.device`.
    """
    return like.device if group.size == 1 else group.device
