"""Implement DVE: a dense embedding of parts, trained by matching two views of an image through another image.

Thewlis, Albanie, Bilen and Vedaldi: Unsupervised learning of landmarks by descriptor vector exchange (ICCV
2019). The landmarks are clusters of the embeddings; docs/methods.md explains why.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import STRIDE, Config
from selfmark.correspondence.zero_shot import find_foreground, find_part_centroids
from selfmark.features.cells import describe_colors
from selfmark.features.encoder import CELL
from selfmark.images.feed import PixelFeed
from selfmark.methods.contract import RandomChanges, TrainedMethod
from selfmark.methods.warps import cell_positions
from selfmark.model.soft_argmax import EmbeddingPsi
from selfmark.sampling import evenly_spaced
from selfmark.train.engine import Losses


class Dve(TrainedMethod):
    """Learn an embedding of each cell, which is a pixel of the network's output.

    An object part has the same embedding in all views and all objects.
    """

    @classmethod
    def build_psi(cls, config: Config) -> EmbeddingPsi:
        """Create the embedding network; `choose_landmarks` sets its K reference vectors after training."""
        return EmbeddingPsi(config.network, config.K)

    @property
    def lr(self) -> float:
        """Return the learning rate of Adam."""
        return self.config.dve.lr

    @property
    def embedding(self) -> EmbeddingPsi:
        """Return the embedding network."""
        assert isinstance(self.psi, EmbeddingPsi)
        return self.psi

    def compute_losses(self, images: Tensor, others: Tensor, changes: RandomChanges) -> Losses:
        """Match the cells of a warped view with the cells of the view before warping.

        Before matching, each embedding of the warped view is replaced by a mean of similar embeddings of
        another image of the batch, see `exchange`.
        """
        settings = self.config.dve
        first = changes.draw_warps().apply(images)
        warps = changes.draw_warps()
        views = torch.cat([changes.change_colors(first), changes.change_colors(warps.apply(first))])
        given, warped = self.embedding.embed(views).chunk(2)
        side = given.shape[-1]
        stride = max(1, side // settings.matched_cells)
        source = warped[..., stride // 2 :: stride, stride // 2 :: stride]
        cells = cell_positions(side, side, images.device)
        matched = cells.view(side, side, 2)[stride // 2 :: stride, stride // 2 :: stride].reshape(-1, 2)
        targets = given.flatten(2).transpose(1, 2)
        exchanged = exchange(source.flatten(2).transpose(1, 2), targets.roll(1, 0), settings.sharpness)
        positions = warps(matched.expand(len(images), -1, -1))
        loss = matching_loss(exchanged, targets, positions, cells, settings.sharpness, settings.power)
        return {"total": loss}

    @torch.no_grad()
    def choose_landmarks(self, feed: PixelFeed, generator: torch.Generator) -> None:
        """Cluster the embeddings of the object's cells; the centroids become the landmarks' references."""
        config = self.config
        rows = evenly_spaced(len(feed), config.dve.max_images)
        sample = PixelFeed(feed.pixels[torch.from_numpy(rows)], feed.device)
        self.eval()
        batch, all_rows = config.runtime.predict_batch, slice(0, len(sample))
        embedded = [
            F.avg_pool2d(self.embedding.embed(pixels.float() / 255), CELL // STRIDE).half()
            for pixels in sample.sequential_batches(batch, all_rows)
        ]
        cells = F.normalize(torch.cat(embedded), dim=1)
        colors = describe_colors(sample, all_rows, batch)
        foreground = find_foreground(cells, colors, config.features, generator)
        centroids = find_part_centroids(cells, foreground, config.K, config.features, generator)
        self.embedding.references.copy_(config.dve.landmark_sharpness * centroids)


def exchange(source: Tensor, auxiliary: Tensor, sharpness: float) -> Tensor:
    """Replace each vector by the mean of all vectors of another image, weighted by a softmax of similarity.

    Args:
        source: [B, P, D] unit vectors to replace.
        auxiliary: [B, Q, D] unit vectors of the other images.
        sharpness: inverse temperature of the softmax over Q.

    Returns:
        [B, P, D] vectors; the norm of a vector is below 1 if several different vectors resemble the source.
    """
    similarity = source @ auxiliary.transpose(1, 2)
    return (sharpness * similarity).softmax(dim=-1) @ auxiliary


def matching_loss(
    source: Tensor, target: Tensor, positions: Tensor, cells: Tensor, sharpness: float, power: float
) -> Tensor:
    """Return the mean of d ** `power`, where d is the distance of the matched from the correct position.

    The mean is taken over the cells that a source may match, weighted by their probabilities, and over all
    sources. The probabilities are a softmax of the dot products of the source with the targets. Sources whose
    correct position is outside the image are ignored.

    Args:
        source: [B, P, D] vectors to match.
        target: [B, Q, D] unit vectors, one for each cell.
        positions: [B, P, 2] correct positions of the sources; the image is from -1 to 1.
        cells: [Q, 2] positions of the cells, in the same unit.
        sharpness: inverse temperature of the softmax over Q.
        power: exponent of the distance.
    """
    probability = (sharpness * (source @ target.transpose(1, 2))).softmax(dim=-1)
    with torch.no_grad():
        squared = sum((positions[..., axis, None] - cells[:, axis]).square() for axis in range(2))
        cost = torch.as_tensor(squared).pow(power / 2)
        is_inside = (positions.abs() <= 1).all(dim=-1)
    expected = (probability * cost).sum(dim=-1)
    total: Tensor = (expected * is_inside).sum() / is_inside.sum().clamp_min(1)
    return total
