"""Detect whether objects face any direction, and compute features that do not depend on the direction.

Features usually encode which way is up. This helps if the objects are upright in all images. If they face any
direction, like animals seen from above, the same part gets different features in different images.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.features.encoder import Encoder
from selfmark.images.augment import warp_images
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_RIDGE = 1.0  # L2 penalty of the classifier, per training example; all inputs have unit variance

Describe = Callable[[Tensor], Tensor]
"""Function that maps images [B, 3, S, S] in 0..1 to features [B, D, S/8, S/8]."""


def average_rotations(describe: Describe, images: Tensor, rotations: int) -> Tensor:
    """Rotate the images, compute features, rotate the feature maps back, and return their normalized mean.

    Args:
        describe: computes features.
        images: [B, 3, S, S] in 0..1.
        rotations: number of rotated copies; with 1, the features of the images themselves are returned.

    Returns:
        [B, D, S/8, S/8] float32.
    """
    if rotations == 1:
        return describe(images)
    total: Tensor | None = None
    for number in range(rotations):
        angle = images.new_full((len(images),), 2 * math.pi * number / rotations)
        features = describe(warp_images(images, rotation_matrices(angle, images.shape[-1])))
        turned_back = warp_images(features, rotation_matrices(-angle, features.shape[-1]))
        total = turned_back if total is None else total + turned_back
    assert total is not None
    return F.normalize(total, dim=1)


@torch.no_grad()
def measure_uprightness(
    encoder: Encoder, images: Tensor, batch: int, group: ProcessGroup = SINGLE_PROCESS
) -> float:
    """Return how often a classifier can tell images from upside-down copies: 0.5 is chance, 1 is always.

    A linear classifier on the mean and maximum of the features is trained on the first half of the images and
    tested on the second half; then the halves are swapped. The halves are not interleaved, because
    consecutive images, such as video frames, may be almost the same.

    Args:
        encoder: pretrained network.
        images: [N, 3, S, S] uint8, N >= 4, on the encoder's device.
        batch: images per pass.
        group: the processes that share the images.
    """

    def pool(rows: slice) -> list[Tensor]:
        pooled = []
        for is_turned in (False, True):
            parts = []
            for pixels in torch.split(images[rows], batch):
                values = pixels.float() / 255
                features = encoder.describe(torch.rot90(values, 2, (2, 3)) if is_turned else values).float()
                parts.append(torch.cat([features.mean(dim=(2, 3)), features.amax(dim=(2, 3))], dim=1))
            pooled.append(torch.cat(parts))
        return pooled

    inputs = torch.stack(group.compute_shared(len(images), batch, pool)).double()  # [2, N, 2 D]
    inputs = (inputs - inputs.mean(dim=(0, 1))) / inputs.std(dim=(0, 1)).clamp_min(1e-6)
    truth = torch.tensor([1.0, -1.0], dtype=torch.float64, device=inputs.device)[:, None]
    in_first_half = torch.arange(len(images), device=inputs.device) < len(images) // 2
    correct = [
        _fit_and_test(inputs, truth.expand(2, len(images)), is_training)
        for is_training in (in_first_half, ~in_first_half)
    ]
    return float(torch.cat(correct).double().mean())


def _fit_and_test(inputs: Tensor, truth: Tensor, is_training: Tensor) -> Tensor:
    """Train a ridge classifier; return which test images and upside-down copies it classifies correctly.

    Args:
        inputs: [2, N, F] pooled features of the images and of their upside-down copies.
        truth: [2, N], 1 for images and -1 for upside-down copies.
        is_training: [N] bool, images to train on; the others are test images.
    """
    x, y = inputs[:, is_training].flatten(0, 1), truth[:, is_training].flatten()
    gram = x.T @ x + _RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    weights: Tensor = torch.linalg.solve(gram, x.T @ y)
    margin = inputs[:, ~is_training] @ weights * truth[:, ~is_training]
    return margin.flatten() > 0


def rotation_matrices(angle: Tensor, size: int) -> Tensor:
    """Return matrices [B, 2, 3] for `warp_images` that rotate square images around their center.

    Args:
        angle: [B] radians; positive angles rotate clockwise (from the x axis toward the y axis, which points
            down).
        size: side of the images in pixels, or of maps in cells.
    """
    cosine, sine, center = torch.cos(angle), torch.sin(angle), (size - 1) / 2
    x_offset = center * (1 - cosine + sine)
    y_offset = center * (1 - sine - cosine)
    rows = [torch.stack([cosine, -sine, x_offset], dim=-1), torch.stack([sine, cosine, y_offset], dim=-1)]
    return torch.stack(rows, dim=-2)
