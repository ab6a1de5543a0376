"""Network whose K maps are distributions over the cells; a landmark is the mean of its distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from selfmark.config import Network, Softmax
from selfmark.model.network import Psi


class SoftArgmaxPsi(Psi):
    """Psi whose maps are turned into distributions, for the methods of other papers."""

    def __init__(self, settings: Network, landmarks: int, softmax: Softmax) -> None:
        """Create the backbone and a head; with softmax over channels, the head has one more for the rest."""
        super().__init__(settings, landmarks + (softmax == "channels"))
        self.softmax = softmax

    def describe_and_score(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the last layer [B, channels, h, w], which describes cells, and the scores."""
        backend = self.backend
        with backend.execution.forward_context(self):
            features = self.head.hidden(self.backbone(images, backend), backend)
            scores = backend.layers.output_conv(self.head.last, features)
        return features, scores.float()

    def describe_and_place(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of `describe_and_score` and the heatmaps of `forward`."""
        features, scores = self.describe_and_score(images)
        return features, to_distributions(scores, self.softmax).sqrt()

    def scores(self, images: Tensor) -> Tensor:
        """Return the maps [B, K, h, w] before the softmax, in float32; with "channels", [B, K + 1, h, w]."""
        return super().forward(images).float()

    def distributions(self, images: Tensor) -> Tensor:
        """Return distributions [B, K, h, w] over the cells; each map sums to 1."""
        return to_distributions(self.scores(images), self.softmax)

    def forward(self, images: Tensor) -> Tensor:
        """Return heatmaps [B, K, h, w]: the square roots of the distributions.

        Detectors read them as centroids of squared heat, which are the means of the distributions.
        """
        return self.distributions(images).sqrt()


def to_distributions(scores: Tensor, softmax: Softmax) -> Tensor:
    """Turn maps [B, C, h, w] into distributions [B, K, h, w] over the cells; see `Softmax`.

    >>> to_distributions(torch.zeros(1, 3, 2, 2), "channels").shape
    torch.Size([1, 2, 2, 2])
    """
    if softmax == "axes":
        rows, columns = (scores.mean(axis).softmax(-1) for axis in (3, 2))
        return rows[..., :, None] * columns[..., None, :]
    if softmax == "channels":
        # Dividing shares by their sum is the softmax of their logarithms over the cells.
        scores = scores.log_softmax(dim=1)[:, :-1]
    return scores.flatten(2).softmax(-1).view(scores.shape)


def mean_positions(distributions: Tensor) -> Tensor:
    """Return the means [B, K, 2] of distributions [B, K, h, w], in units of half the image side.

    -1 and 1 are the outer edges of the border cells.

    >>> mean_positions(torch.full((1, 1, 4, 4), 1 / 16)).tolist()
    [[[0.0, 0.0]]]
    """
    height, width = distributions.shape[-2:]
    y, x = ((torch.arange(n, device=distributions.device) + 0.5) * (2 / n) - 1 for n in (height, width))
    return torch.stack([distributions.sum(2) @ x, distributions.sum(3) @ y], dim=-1)
