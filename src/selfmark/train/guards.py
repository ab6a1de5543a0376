"""Signs that training has collapsed, looked for once a round and before a model is saved.

Whoever runs for hours wants to hear of it at once and in words, and never to be handed a model that points at
nothing. The numbers are those of the config's section `guards`; sound training is far from all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfmark.config import Guards
from selfmark.correspondence.recovery import DescribedPoints
from selfmark.errors import TrainingError
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_SAMPLE = 100_000  # descriptors that are looked at, at most


def check_points(
    described: DescribedPoints, images: int, size: int, settings: Guards, group: ProcessGroup = SINGLE_PROCESS
) -> None:
    """Refuse what Phi found in all images if that is next to nothing, all alike or all in one place.

    Args:
        described: this process's share of the points.
        images: how many images there are in all.
        size: side of the network's image.
        settings: when to refuse.
        group: the processes that share the images.
    """
    found = sum(group.gather_counts(len(described.points))) / images
    if found < settings.min_points:
        raise TrainingError(
            f"training has collapsed: only {found:.2f} points per image are still found; start again with "
            "a lower optimizer.lr, a lower heatmaps.threshold, or another --detector"
        )
    if described.points.descriptor is not None:
        spread = descriptor_spread(described.points.descriptor[:_SAMPLE], group)
        if not spread >= settings.min_descriptor_spread:
            raise TrainingError(
                f"training has collapsed: the descriptors of all points are alike (spread {spread:.2g}, "
                f"where {settings.min_descriptor_spread:g} is the least); start again with a lower optimizer.lr, or "
                "raise loss.negative_weight"
            )
    reach = point_spread(described.points, group) / size
    if not reach >= settings.min_point_spread:
        raise TrainingError(
            f"training has collapsed: all points of an image lie in one place (within {100 * reach:.2g} % of "
            "its side); start again with another --detector, or with a lower optimizer.lr"
        )


def check_labels(labeled: LabeledPoints, settings: Guards) -> None:
    """Refuse labels of which too many are given to no point."""
    used = len(torch.unique(labeled.label[labeled.label >= 0]))
    empty = 1 - used / labeled.clusters
    if empty > settings.max_empty_fraction:
        raise TrainingError(
            f"training has collapsed: {labeled.clusters - used} of {labeled.clusters} clusters have no "
            "points; start again with a smaller K and M, with more images, or with a lower optimizer.lr"
        )


def check_landmarks(xy: Tensor, score: Tensor, size: int, settings: Guards) -> None:
    """Refuse a detector whose landmarks [B, K, 2] lie nowhere, or all K of them in one place, in B images."""
    if not (xy.isfinite().all() and score.isfinite().all()):
        raise TrainingError(
            "training has collapsed: landmarks are no finite numbers; start again with a lower optimizer.lr"
        )
    best = float(score.max())
    if best < settings.min_score:
        raise TrainingError(
            f"training has collapsed: no landmark is found with a score of more than {best:.2g}; "
            "start again with more stage2.iterations, or with a lower optimizer.lr"
        )
    away = (xy - xy.mean(dim=1, keepdim=True)).norm(dim=2)
    reach = float(away.mean()) / size
    if xy.shape[1] > 1 and reach < settings.min_point_spread:
        raise TrainingError(
            f"training has collapsed: all landmarks lie in one place (within {100 * reach:.2g} % of the "
            "image's side); start again with a lower optimizer.lr, or with other images"
        )


def descriptor_spread(vectors: Tensor, group: ProcessGroup = SINGLE_PROCESS) -> float:
    """Mean square distance of unit vectors from their mean: 0 if all are alike, 1 if they point everywhere.

    >>> spread_of(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), spread_of(torch.tensor([[1.0, 0.0]] * 5))
    (1.0, 0.0)
    """
    summed = torch.cat([vectors.sum(dim=0), vectors.square().sum()[None], vectors.new_tensor([len(vectors)])])
    total = group.all_sum(summed.double().to(_home(group, vectors)))
    mean, squares = total[:-2] / total[-1], total[-2] / total[-1]
    return float(squares - mean.square().sum())


def point_spread(points: Keypoints, group: ProcessGroup = SINGLE_PROCESS) -> float:
    """Mean distance of points from the middle of the points of their image, in pixels.

    >>> xy = torch.tensor([[0.0, 0.0], [6.0, 8.0], [1.0, 1.0]])
    >>> reach_of(Keypoints(xy, torch.tensor([0, 0, 1]), torch.ones(3)))  # an image's only point says nothing
    5.0
    """
    _, row, count = torch.unique(points.image_index, return_inverse=True, return_counts=True)
    middle = points.xy.new_zeros(len(count), 2).index_add_(0, row, points.xy) / count[:, None]
    company = count[row] > 1
    away = (points.xy - middle[row]).norm(dim=1)[company]
    total = group.all_sum(
        torch.stack([away.sum().double(), company.sum().double()]).to(_home(group, points.xy))
    )
    return float(total[0] / total[1].clamp_min(1))


def _home(group: ProcessGroup, like: Tensor) -> torch.device:
    """Where sums must be to be joined; descriptors may be in host memory."""
    return like.device if group.size == 1 else group.device
