"""Build the network for objects that face any direction: it turns the image, then finds its landmarks.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

from torch import Tensor, nn

from selfmark.config import Features
from selfmark.features.direction import describe_rotations, match_template
from selfmark.features.encoder import Encoder
from selfmark.features.orientation import rotation_matrices
from selfmark.images.augment import warp_images
from selfmark.model.backend import Backend
from selfmark.model.feature_network import FeaturePsi, ZeroShotPsi
from selfmark.model.plain_backend import PLAIN_BACKEND


class DirectionFinder(nn.Module):
    """Network that finds the angles by which to rotate images so that all objects face the same direction."""

    template: Tensor
    offset: Tensor

    def __init__(self, encoder: Encoder, settings: Features, template: Tensor, offset: Tensor) -> None:
        """Compare features with a template.

        Args:
            encoder: pretrained network.
            settings: number of rotations, size of the reduced images.
            template: [D, g, g], see `features.direction.DirectionTemplate`.
            offset: angle in radians, see `features.direction.DirectionTemplate`.
        """
        super().__init__()
        self.backend: Backend = PLAIN_BACKEND
        self.encoder = encoder
        self.settings = settings
        self.register_buffer("template", template)
        self.register_buffer("offset", offset)

    def forward(self, images: Tensor) -> Tensor:
        """Return the angles [B] in radians of images [B, 3, S, S] in 0..1; see `rotation_matrices`."""
        with self.backend.execution.forward_context(self):
            views = describe_rotations(self.encoder, images, self.settings)
        return match_template(views, self.template) + self.offset


class TurnedPsi(nn.Module):
    """Network that turns each image, so that an inner network always sees objects facing the same direction.

    Left and right parts of an animal look alike. A network can tell them apart only if it knows which way the
    animal faces.
    """

    def __init__(self, finder: DirectionFinder, psi: FeaturePsi | ZeroShotPsi) -> None:
        """Combine a direction finder with a network for turned images."""
        super().__init__()
        self.finder = finder
        self.psi = psi

    @property
    def encoder(self) -> Encoder:
        """Return the encoder of the inner network."""
        return self.psi.encoder

    def forward(self, images: Tensor) -> Tensor:
        """Return heatmaps [B, K, S/4, S/4] of images [B, 3, S, S] in 0..1."""
        angle = self.finder(images)
        maps = self.psi(warp_images(images, rotation_matrices(angle, images.shape[-1])))
        return warp_images(maps, rotation_matrices(-angle, maps.shape[-1]), padding="zeros")
