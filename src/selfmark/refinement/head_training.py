"""Train the head of a detector on the stored features of a few images.

The frozen part of the network computes the features of augmented copies of the images (views) once. Training
the head is then fast, because the head is small. So the training can be repeated with other images left out,
to measure errors on these images. Landmarks without a label should not move, so the targets of their heatmaps
are the heatmaps of the original head.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from selfmark.config import Augment, Refinement
from selfmark.errors import InputError
from selfmark.features.orientation import rotation_matrices
from selfmark.images.augment import (
    augment_colors,
    move_points,
    points_inside,
    prepend_flip,
    random_affine,
    warp_images,
)
from selfmark.model.feature_network import FeaturePsi, enlarge_maps
from selfmark.model.heatmaps import draw_gaussians, to_cells
from selfmark.model.landmark_network import LandmarkNetwork
from selfmark.model.network import Psi
from selfmark.model.soft_argmax import SoftArgmaxPsi
from selfmark.model.turned_network import DirectionFinder, TurnedPsi

_BATCH = 16  # images per forward pass of the frozen part


@dataclass(frozen=True)
class SplitNetwork:
    """A network that is split into a frozen part and a head.

    Attributes:
        describe: maps images [B, 3, S, S] in 0..1 to features [B, C, h, w].
        head: trainable part.
        read: maps a head and features [B, C, h, w] to heatmaps [B, K, S/4, S/4].
        finder: finds the direction that each object faces. The image is rotated by this direction before
            `describe`. None if images are not rotated.
    """

    describe: Callable[[Tensor], Tensor]
    head: nn.Module
    read: Callable[[nn.Module, Tensor], Tensor]
    finder: DirectionFinder | None = None


def split_network(network: LandmarkNetwork) -> SplitNetwork:
    """Split a network into a frozen part and a head.

    Raises:
        InputError: if the network has no head that can be trained with heatmaps.
    """
    if isinstance(network, TurnedPsi):
        inner = split_network(network.psi)
        return SplitNetwork(inner.describe, inner.head, inner.read, network.finder)
    if isinstance(network, FeaturePsi):
        scale = network.feature_scale
        return SplitNetwork(
            lambda images: network.encoder(images) * scale,
            network.head,
            lambda head, features: enlarge_maps(head(features).float()),
        )
    if isinstance(network, Psi) and not isinstance(network, SoftArgmaxPsi):
        return SplitNetwork(network.backbone, network.head, lambda head, features: head(features))
    raise InputError(
        "this detector has no head that could be trained with corrections: train a detector with the default "
        "method of 'selfmark discover', or learn your points with 'selfmark map'"
    )


class HeadExamples(NamedTuple):
    """Stored features of V augmented views and their labels.

    features: [V, C, h, w] float16, on the CPU
    cells:    [V, K, 2] float32, labels in cells of the heatmaps
    present:  [V, K] bool, landmarks that are labeled and inside the view
    image:    [V] int64, index of the image of each view
    """

    features: Tensor
    cells: Tensor
    present: Tensor
    image: Tensor


class LabeledPixels(NamedTuple):
    """N images with labeled landmarks.

    pixels:  [N, 3, S, S] uint8
    xy:      [N, K, 2] float32, positions of the labeled landmarks in network pixels; any values for others
    present: [N, K] bool, landmarks that are labeled
    """

    pixels: Tensor
    xy: Tensor
    present: Tensor


@torch.no_grad()
def describe_views(
    network: SplitNetwork,
    images: LabeledPixels,
    views: int,
    augment: Augment,
    mirror: Sequence[int] | None,
    generator: torch.Generator,
) -> HeadExamples:
    """Compute the features of augmented views of images; the first view of an image is not augmented.

    Args:
        network: the network.
        images: the images.
        views: number of views per image.
        augment: strength of the random changes.
        mirror: [K] mirror partners: landmark k becomes landmark mirror[k] in a mirrored image. None if images
            must not be mirrored.
        generator: source of the random numbers; the computation runs on its device.
    """
    device, size = generator.device, images.pixels.shape[-1]
    parts: list[HeadExamples] = []
    rows = torch.arange(len(images.pixels)).repeat_interleave(views)
    is_plain = torch.arange(len(rows)) % views == 0
    for start in range(0, len(rows), _BATCH):
        index, plain = rows[start : start + _BATCH], is_plain[start : start + _BATCH].to(device)
        pixels = images.pixels[index].to(device).float() / 255
        xy, present = images.xy[index].to(device), images.present[index].to(device)
        if network.finder is not None:
            turn = rotation_matrices(network.finder(pixels), size)
            pixels, xy = warp_images(pixels, turn), move_points(xy, turn)
        matrix = random_affine(len(index), size, augment, generator)
        if mirror is not None:
            flip = (torch.rand(len(index), generator=generator, device=device) < 0.5) & ~plain
            partner = torch.tensor(mirror, device=device)
            xy = torch.where(flip[:, None, None], xy[:, partner], xy)
            present = torch.where(flip[:, None], present[:, partner], present)
            matrix = prepend_flip(matrix, flip, size)
        identity = torch.eye(2, 3, device=device).expand_as(matrix)
        matrix = torch.where(plain[:, None, None], identity, matrix)
        changed = augment_colors(warp_images(pixels, matrix), augment, generator)
        features = network.describe(torch.where(plain[:, None, None, None], pixels, changed))
        moved = move_points(xy, matrix)
        present = present & points_inside(moved, size)
        parts.append(
            HeadExamples(features.to("cpu", torch.float16), to_cells(moved).cpu(), present.cpu(), index)
        )
    return HeadExamples(*(torch.cat(column) for column in zip(*parts, strict=True)))


def train_head(
    network: SplitNetwork,
    corrected: HeadExamples,
    kept: HeadExamples | None,
    settings: Refinement,
    sigma: float,
    generator: torch.Generator,
) -> nn.Module:
    """Return a copy of the head, trained on corrected landmarks.

    Args:
        network: the network; it is not changed.
        corrected: views with labels.
        kept: views of other images, on which heatmaps should not change; None if there are no such images.
        settings: iterations, batch, learning rate, and the weight of heatmaps without a label.
        sigma: standard deviation of the target Gaussians, cells.
        generator: source of the random numbers; the computation runs on its device.
    """
    device = generator.device
    head = copy.deepcopy(network.head).requires_grad_(True).train()
    optimizer = torch.optim.AdamW(head.parameters(), settings.lr, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.lr, total_steps=settings.iterations, pct_start=settings.warmup_fraction
    )
    groups = [corrected] if kept is None else [corrected, kept]
    per_group = max(1, settings.batch // len(groups))
    for _ in range(settings.iterations):
        batch = [_draw_batch(group, per_group, generator) for group in groups]
        features, cells, present, _ = (torch.cat(column).to(device) for column in zip(*batch, strict=True))
        # The gradients of the features are not used. But torch crashes in the backward pass of a GroupNorm
        # whose channels-last input does not require gradients.
        features = features.float().requires_grad_(True)
        with torch.no_grad():
            original_maps = network.read(network.head, features)
            gaussians = draw_gaussians(cells, original_maps.shape[-1], sigma)
        target = torch.where(present[..., None, None], gaussians, original_maps)
        maps = network.read(head, features)
        error = (maps - target).square().mean(dim=(2, 3))
        labeled_loss = (error * present).sum() / present.sum().clamp_min(1)
        other_error = (error * ~present).sum()
        loss = labeled_loss + settings.keep_weight * other_error / (~present).sum().clamp_min(1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return head.eval().requires_grad_(False)


def _draw_batch(examples: HeadExamples, count: int, generator: torch.Generator) -> HeadExamples:
    """Return `count` random views, with replacement."""
    index = torch.randint(len(examples.image), (count,), generator=generator, device=generator.device).cpu()
    return HeadExamples(*(column[index] for column in examples))


def leave_out(examples: HeadExamples, images: Tensor) -> HeadExamples:
    """Return the views of all images except those with the indices `images` [M]."""
    is_kept = ~torch.isin(examples.image, images)
    return HeadExamples(*(column[is_kept] for column in examples))


def measure_bytes_per_view(network: SplitNetwork, size: int, device: torch.device) -> int:
    """Return the size of the stored features of one view, in bytes."""
    with torch.no_grad():
        features = network.describe(torch.zeros(1, 3, size, size, device=device))
    return features.numel() * torch.float16.itemsize
