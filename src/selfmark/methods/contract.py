"""Define the interface of the methods of other papers: a network with K maps, and the losses of a batch."""

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
    """Source of random warps and color changes for a batch.

    Every process draws the changes of the whole batch and uses its part of them.

    config:    settings
    part:      the part of the batch that this process computes
    generator: source of the random numbers
    """

    config: Config
    part: BatchSlice
    generator: torch.Generator

    def draw_warps(self) -> Warps:
        """Draw one warp per image."""
        return random_warps(self.config.methods, self.part, self.generator)

    def change_colors(self, images: Tensor) -> Tensor:
        """Change colors and contrast of images [B, 3, S, S] in 0..1 at random, blur them and add noise."""
        total, size = self.part.total, images.shape[-1]
        drawn = random_color_changes(total, self.config.augment, self.generator)
        changes = ColorChanges(*(self.part.take(getattr(drawn, item.name)) for item in fields(drawn)))
        noise = self.part.take(random_noise(total, size, self.generator))
        return apply_color_changes(images, changes, noise)


class TrainedMethod(nn.Module, ABC):
    """A network with K maps, and everything else that its training needs, such as a decoder.

    softmax:          how the maps become distributions
    uses_frame_pairs: whether a video frame is paired with a random frame of its video, possibly itself; if
                      False, and for still images, an image is paired with itself
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
        """Return the settings that all methods share."""
        return self.config.methods

    @property
    @abstractmethod
    def lr(self) -> float:
        """Return the learning rate of Adam."""

    @abstractmethod
    def compute_losses(self, images: Tensor, others: Tensor, changes: RandomChanges) -> Losses:
        """Return the loss terms of a batch; "total" is minimized.

        Args:
            images: [B, 3, S, S], values in 0..1.
            others: [B, 3, S, S], the second images of the pairs, see `uses_frame_pairs`.
            changes: source of random warps and color changes.
        """

    def choose_landmarks(self, feed: PixelFeed, generator: torch.Generator) -> None:
        """Choose the landmarks of the K maps after training; does nothing unless a subclass overrides it.

        Most methods learn the landmarks during training.

        Args:
            feed: the training images.
            generator: source of the random numbers.
        """
