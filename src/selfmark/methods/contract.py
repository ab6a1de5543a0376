"""What a method of another paper provides: a network with K maps, and the losses of a batch of images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor, nn

from selfmark.config import Config, Methods, Softmax
from selfmark.images.augment import (
    ColorChanges,
    apply_color_changes,
    random_color_changes,
    random_noise,
)
from selfmark.images.feed import PixelFeed
from selfmark.methods.warps import Warps, random_warps
from selfmark.model.soft_argmax import SoftArgmaxPsi
from selfmark.train.batch_plan import BatchSlice
from selfmark.train.engine import Losses


@dataclass(frozen=True)
class RandomChanges:
    """Random warps and colors of a batch; every process draws those of the whole batch and takes its part.

    config:    settings
    part:      the images of this process
    generator: source of the random numbers
    """

    config: Config
    part: BatchSlice
    generator: torch.Generator

    def warps(self) -> Warps:
        """Draw one warp per image."""
        return random_warps(self.config.methods, self.part, self.generator)

    def change_colors(self, images: Tensor) -> Tensor:
        """Return images [B, 3, S, S], values in 0..1, with random colors, contrast, blur and noise."""
        total, size = self.part.total, images.shape[-1]
        drawn = random_color_changes(total, self.config.augment, self.generator)
        changes = ColorChanges(*(self.part.take(getattr(drawn, item.name)) for item in fields(drawn)))
        noise = self.part.take(random_noise(total, size, self.generator))
        return apply_color_changes(images, changes, noise)


class TrainedMethod(nn.Module, ABC):
    """A network with K maps and whatever else its training needs, such as a decoder.

    softmax:          how the maps become distributions
    uses_frame_pairs: whether the second image of a pair may be another frame of the same video
    """

    softmax: ClassVar[Softmax] = "space"
    uses_frame_pairs: ClassVar[bool] = False

    def __init__(self, config: Config) -> None:
        """Create the network with K maps; subclasses add their parts."""
        super().__init__()
        self.config = config
        self.psi = self.build_psi(config)

    @classmethod
    def build_psi(cls, config: Config) -> SoftArgmaxPsi:
        """Create the network with K maps."""
        return SoftArgmaxPsi(config.network, config.K, cls.softmax)

    @property
    def settings(self) -> Methods:
        """Settings that all methods share."""
        return self.config.methods

    @property
    @abstractmethod
    def lr(self) -> float:
        """Learning rate of Adam."""

    @abstractmethod
    def compute_losses(self, images: Tensor, others: Tensor, changes: RandomChanges) -> Losses:
        """Return the loss terms of a batch; "total" is minimized.

        Args:
            images: [B, 3, S, S], values in 0..1.
            others: the second images of the pairs: other frames of the same videos, or the same images.
            changes: random warps and colors.
        """

    def choose_landmarks(self, feed: PixelFeed, generator: torch.Generator) -> None:
        """Choose what the K maps show once the training is done; most methods learn it in the training.

        Args:
            feed: the training images.
            generator: source of the random numbers.
        """
