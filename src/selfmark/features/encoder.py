"""Define the interface of pretrained networks, which map an image to unit vectors on a grid of cells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selfmark.errors import InputError

CELL = 8
"""Side of a cell in pixels: an image of S x S pixels has S/8 x S/8 features."""


@dataclass(frozen=True)
class FeatureInfo:
    """What a user should know about pretrained features.

    Attributes:
        name: name of the features for `load_encoder`.
        license: license of the weights.
        training_data: what the network was trained on, and with which labels.
    """

    name: str
    license: str
    training_data: str


class Encoder(nn.Module, ABC):
    """Pretrained network that describes every cell of an image.

    Attributes:
        info: name, license and training data.
        channels: number C of channels that `forward` returns.
        part_channels: number D of channels that `describe` returns.
        is_trainable: whether gradients reach the weights.
        size_multiple: the sides of the images must be multiples of this many pixels.
    """

    info: FeatureInfo
    channels: int
    part_channels: int
    is_trainable: bool = True
    size_multiple: int = CELL

    @abstractmethod
    def compute_maps(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return two lists of feature maps [B, C_i, h_i, w_i]: for `forward`, and for `describe`.

        The maps may have any resolution.
        """

    def forward(self, images: Tensor) -> Tensor:
        """Return the features that a head is trained on.

        Args:
            images: [B, 3, S, S] RGB in 0..1.

        Returns:
            [B, C, S/8, S/8] float32, unit vectors.
        """
        self.check_size(images)
        head_maps, _ = self.compute_maps(images)
        return join_maps(head_maps, grid_shape(images))

    def describe(self, images: Tensor) -> Tensor:
        """Return the features that recognize the same part in different images.

        Args:
            images: [B, 3, S, S] RGB in 0..1.

        Returns:
            [B, D, S/8, S/8] float32, unit vectors.
        """
        self.check_size(images)
        _, part_maps = self.compute_maps(images)
        return join_maps(part_maps, grid_shape(images))

    def forward_and_describe(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the results of `forward` and `describe`; the network runs only once."""
        self.check_size(images)
        head_maps, part_maps = self.compute_maps(images)
        grid = grid_shape(images)
        return join_maps(head_maps, grid), join_maps(part_maps, grid)

    def check_size(self, images: Tensor) -> None:
        """Raise an InputError if the network cannot divide the images [B, 3, S, S] into cells."""
        for side in images.shape[2:]:
            if side == 0 or side % self.size_multiple:
                raise InputError(
                    f"the features '{self.info.name}' need images whose side is a multiple of "
                    f"{self.size_multiple} pixels, not {side}; change images.size"
                )


def grid_shape(images: Tensor) -> tuple[int, int]:
    """Return rows and columns of the cells of images [B, 3, H, W]."""
    return images.shape[2] // CELL, images.shape[3] // CELL


def join_maps(maps: Sequence[Tensor], grid: tuple[int, int]) -> Tensor:
    """Join feature maps of different resolutions into unit vectors in which all maps count equally.

    Args:
        maps: feature maps [B, C_i, h_i, w_i].
        grid: rows and columns of the result.

    Returns:
        [B, sum of C_i, *grid] float32. Each map is resized bilinearly and normalized, then the joined vectors
        are normalized.
    """
    parts = [F.normalize(resize_maps(values.float(), grid), dim=1) for values in maps]
    return parts[0] if len(parts) == 1 else F.normalize(torch.cat(parts, dim=1), dim=1)


def resize_maps(values: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resize maps [B, C, h, w] bilinearly to (rows, columns), unless they have this size."""
    if values.shape[2:] == grid:
        return values
    return F.interpolate(values, grid, mode="bilinear", align_corners=False)
