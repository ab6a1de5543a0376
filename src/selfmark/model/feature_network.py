"""Compute K heatmaps from the features of a pretrained encoder.

`FeaturePsi` has a trained head; `ZeroShotPsi` compares features with centroids. Both have the interface of
`network.Psi`: they map images [B, 3, S, S] in 0..1 to heatmaps [B, K, S/4, S/4]. The encoder has cells of 8
pixels, so the heatmaps are enlarged to cells of 4 pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import STRIDE, Features, Student
from selfmark.config.memory import ENCODER_CHANNELS, estimate_feature_bytes
from selfmark.features.cells import append_places
from selfmark.features.encoder import CELL, Encoder
from selfmark.features.orientation import average_rotations
from selfmark.model.backend import Backend
from selfmark.model.plain_backend import PLAIN_BACKEND


class FeaturePsi(nn.Module):
    """Network with a small head that computes K heatmaps from the features of a pretrained encoder."""

    def __init__(self, encoder: Encoder, settings: Student, landmarks: int) -> None:
        """Create a head with `landmarks` maps on the encoder."""
        super().__init__()
        self.backend: Backend = PLAIN_BACKEND
        self.encoder = encoder
        self.feature_scale = settings.feature_scale
        width = settings.width
        layers: list[nn.Module] = [nn.Conv2d(encoder.channels, width, 1), nn.ReLU()]
        for _ in range(settings.depth - 1):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.head = nn.Sequential(*layers, nn.Conv2d(width, landmarks, 1))

    @torch.no_grad()
    def keep_landmarks(self, chosen: Tensor) -> None:
        """Remove all maps except those with these indices [L]; the remaining maps become 0, 1, ..."""
        last = self.head[-1]
        assert isinstance(last, nn.Conv2d)
        assert last.bias is not None
        last.weight = nn.Parameter(last.weight[chosen].clone())
        last.bias = nn.Parameter(last.bias[chosen].clone())
        last.out_channels = len(chosen)

    def forward(self, images: Tensor) -> Tensor:
        """Return heatmaps [B, K, S/4, S/4] of images [B, 3, S, S] in 0..1."""
        is_encoder_trained = any(parameter.requires_grad for parameter in self.encoder.parameters())
        with self.backend.execution.forward_context(self):
            # Without gradients, a frozen encoder is faster and its maps are freed immediately.
            with torch.set_grad_enabled(is_encoder_trained and torch.is_grad_enabled()):
                features = self.encoder(images)
            maps = self.head(features * self.feature_scale)
        return enlarge_maps(maps.float())


class ZeroShotPsi(nn.Module):
    """Network without training: K heatmaps of the similarity of each cell to K centroids.

    A heatmap is highest where the features are most similar to the centroid, and decays exponentially as the
    similarity decreases. The center of mass of its squared heat (`heatmaps.heat_centroids`) is therefore a
    soft-argmax.
    """

    centroids: Tensor

    def __init__(self, encoder: Encoder, centroids: Tensor, settings: Features) -> None:
        """Compare features with centroids.

        Args:
            encoder: describes the cells.
            centroids: [K, D]; D includes the places of the cells, see `features.cells.append_places`.
            settings: sharpness of the soft-argmax, rotations to average over, weight of places.
        """
        super().__init__()
        self.backend: Backend = PLAIN_BACKEND
        self.encoder = encoder
        self.sharpness = settings.sharpness
        self.rotations = settings.averaged_rotations
        self.settings = settings
        self.register_buffer("centroids", centroids)

    def forward(self, images: Tensor) -> Tensor:
        """Return heatmaps [B, K, S/4, S/4] of images [B, 3, S, S] in 0..1."""
        return self.compute_features_and_heatmaps(images)[1]

    def compute_features_and_heatmaps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features [B, D, S/8, S/8] and the heatmaps of images [B, 3, S, S] in 0..1."""
        with self.backend.execution.forward_context(self):
            features = average_rotations(self.encoder.describe, images, self.rotations).float()
        features = append_places(features, self.settings)
        return features, enlarge_maps(similarity_heat(features, self.centroids, self.sharpness))


def similarity_heat(features: Tensor, centroids: Tensor, sharpness: float) -> Tensor:
    """Return heatmaps [B, K, h, w] of the similarity to each centroid, see `sharpen_similarity`.

    The similarity of two vectors is 1 minus half their squared distance; for unit vectors, it is the cosine.

    Args:
        features: [B, D, h, w].
        centroids: [K, D].
        sharpness: inverse temperature of the soft-argmax.
    """
    product = torch.einsum("kd,bdhw->bkhw", centroids, features)
    norms = features.square().sum(dim=1, keepdim=True) + centroids.square().sum(dim=1)[:, None, None]
    return sharpen_similarity(product + (1 - norms / 2), sharpness)


def sharpen_similarity(similarity: Tensor, sharpness: float) -> Tensor:
    """Turn similarities into heatmaps [B, K, h, w] whose squares are proportional to soft-argmax weights.

    The peak of a heatmap is its highest similarity, or 0 if all similarities are negative.

    Args:
        similarity: [B, K, h, w], 1 for equal features.
        sharpness: inverse temperature of the soft-argmax.
    """
    highest = similarity.amax(dim=(2, 3), keepdim=True)
    return highest.clamp_min(0) * torch.exp((similarity - highest) * (sharpness / 2))


def bytes_per_feature_image(size: int) -> int:
    """Return the bytes that one image of `size` pixels takes in a pass of an encoder without gradients."""
    return estimate_feature_bytes(ENCODER_CHANNELS, size // STRIDE)


def enlarge_maps(maps: Tensor) -> Tensor:
    """Enlarge maps [B, K, S/8, S/8] bilinearly to [B, K, S/4, S/4]."""
    return F.interpolate(maps, scale_factor=CELL // STRIDE, mode="bilinear", align_corners=False)
