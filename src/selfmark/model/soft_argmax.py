"""Build networks whose K maps are distributions over cells; a landmark is the mean of its distribution.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import STRIDE, Network, Softmax
from selfmark.model.network import Psi, compute_border_width


class SoftArgmaxPsi(Psi):
    """Psi whose maps are turned into distributions, for the methods of other papers."""

    architecture: ClassVar[Literal["soft-argmax", "embedding"]] = "soft-argmax"

    def __init__(self, settings: Network, landmarks: int, softmax: Softmax) -> None:
        """Create the backbone and a head; with "channels", the head has one more map, for the background."""
        super().__init__(settings, landmarks + (softmax == "channels"))
        self.softmax = softmax
        self.border = compute_border_width(settings)

    def describe_and_score(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, channels, h, w] and scores of images [B, 3, S, S] in 0..1.

        The features are the input of the last layer. The scores are the maps before the softmax.
        """
        backend = self.backend
        if self.border:
            images = F.pad(images, 4 * (self.border,), mode="replicate")
        with backend.execution.forward_context(self):
            features = self.head.hidden(self.backbone(images, backend), backend)
            scores = backend.layers.output_conv(self.head.last, features)
        inner = slice(self.border // STRIDE, features.shape[-1] - self.border // STRIDE)
        return features[..., inner, inner], scores[..., inner, inner].float()

    def compute_features_and_heatmaps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of `describe_and_score` and the heatmaps of `forward`."""
        features, scores = self.describe_and_score(images)
        return features, to_distributions(scores, self.softmax).sqrt()

    def scores(self, images: Tensor) -> Tensor:
        """Return the maps [B, K, h, w] before the softmax, in float32; with "channels", [B, K + 1, h, w]."""
        return self.describe_and_score(images)[1]

    def distributions(self, images: Tensor) -> Tensor:
        """Return distributions [B, K, h, w] over the cells; each map sums to 1."""
        return to_distributions(self.scores(images), self.softmax)

    def forward(self, images: Tensor) -> Tensor:
        """Return heatmaps [B, K, h, w]: the square roots of the distributions.

        A detector reads positions as centroids of squared heat, which are the means of the distributions.
        """
        return self.distributions(images).sqrt()


class EmbeddingPsi(SoftArgmaxPsi):
    """Psi that maps every cell to a unit vector, its embedding.

    The map of a landmark is the softmax, over the cells, of the dot products with the landmark's reference.

    references: [K, D], one vector per landmark; the norm of the vector is the inverse temperature
    """

    architecture = "embedding"
    references: Tensor

    def __init__(self, settings: Network, landmarks: int) -> None:
        """Create a network with embeddings of length D = `settings.descriptor`; all references are 0."""
        super().__init__(settings, settings.descriptor, "space")
        self.register_buffer("references", torch.zeros(landmarks, settings.descriptor))

    def embed(self, images: Tensor) -> Tensor:
        """Return unit vectors [B, D, S/4, S/4] of images [B, 3, S, S] in 0..1, in float32."""
        return F.normalize(super().describe_and_score(images)[1], dim=1)

    def describe_and_score(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings [B, D, h, w] and their dot products [B, K, h, w] with the references."""
        embedded = self.embed(images)
        return embedded, torch.einsum("kd,bdhw->bkhw", self.references, embedded)


def to_distributions(scores: Tensor, softmax: Softmax) -> Tensor:
    """Turn maps [B, C, h, w] into distributions [B, K, h, w] over the cells; see `config.Softmax`.

    >>> to_distributions(torch.zeros(1, 3, 2, 2), "channels").shape
    torch.Size([1, 2, 2, 2])
    """
    if softmax == "axes":
        rows, columns = (scores.mean(axis).softmax(-1) for axis in (3, 2))
        return rows[..., :, None] * columns[..., None, :]
    if softmax == "channels":
        # A softmax over the channels distributes each cell over the landmarks and the background. Each map
        # must then be divided by its sum over the cells, which is the same as a softmax of its logarithm.
        scores = scores.log_softmax(dim=1)[:, :-1]
    return scores.flatten(2).softmax(-1).view(scores.shape)


def mean_positions(distributions: Tensor) -> Tensor:
    """Return the means (x, y) of distributions [B, K, h, w] as [B, K, 2], from -1 to 1.

    -1 and 1 are the outer edges of the border cells.

    >>> mean_positions(torch.full((1, 1, 4, 4), 1 / 16)).tolist()
    [[[0.0, 0.0]]]
    """
    height, width = distributions.shape[-2:]
    y, x = ((torch.arange(n, device=distributions.device) + 0.5) * (2 / n) - 1 for n in (height, width))
    return torch.stack([distributions.sum(2) @ x, distributions.sum(3) @ y], dim=-1)
