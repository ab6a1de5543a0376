"""Implement AutoLink, which draws learned edges between landmarks and uses them to complete masked images.

He, Wandt and Rhodin: AutoLink: Self-supervised learning of human skeletons and object outlines by linking
keypoints (NeurIPS 2022).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import Config
from selfmark.errors import InputError
from selfmark.methods.autolink_decoder import UNetDecoder, init_like_authors
from selfmark.methods.contract import RandomChanges
from selfmark.methods.perceptual import PerceptualMethod
from selfmark.methods.warps import cell_positions
from selfmark.model.soft_argmax import mean_positions
from selfmark.run.devices import uses_bf16
from selfmark.train.batch_plan import BatchSlice
from selfmark.train.engine import Losses

_CHUNK = 2**23  # number of distances from pixels to edges that are computed at a time, to save memory
_CPU_CHUNK = 2**20  # the same on a CPU, whose cache is small
_MIN_SQUARED_LENGTH = 1e-8  # minimum for an edge; avoids a division by 0 if two landmarks are equal


class AutoLink(PerceptualMethod):
    """K landmarks, one weight per pair of landmarks, and a decoder that completes masked images."""

    pairs: Tensor

    def __init__(self, config: Config) -> None:
        """Create the network, the edge weights and the decoder.

        Raises:
            InputError: if there are fewer than two landmarks, and so no edge.
        """
        super().__init__(config)
        if config.K < 2:
            raise InputError(f"method autolink connects landmarks, so -k must be at least 2, not {config.K}")
        settings, network = config.autolink, config.network
        self.register_buffer("pairs", torch.triu_indices(config.K, config.K, 1), persistent=False)
        mean = math.log(math.expm1(settings.edge_weight))  # the inverse of softplus, see `edge_weights`
        initial = mean + settings.edge_deviation * torch.randn(self.pairs.shape[1])
        self.edges = nn.Parameter(initial / settings.edge_speed)
        self.image_scale = nn.Parameter(torch.ones(1))
        groups = network.norm_groups
        width = groups * max(1, round(network.channels * settings.decoder_width / groups))
        self.decoder = UNetDecoder(3 + 1, 3, width, groups)
        # These weights are larger than torch's default, so that landmarks start farther apart.
        init_like_authors(self.psi.head.last)

    @property
    def lr(self) -> float:
        """Return the learning rate of Adam."""
        return self.config.autolink.lr

    @property
    def edge_weights(self) -> Tensor:
        """Return the weights [E] of the edges, greater than 0."""
        return F.softplus(self.edges * self.config.autolink.edge_speed)

    def compute_losses(self, images: Tensor, others: Tensor, changes: RandomChanges) -> Losses:
        """Complete masked images with their edge maps, and compare the results with the original images."""
        settings = self.config.autolink
        images = mirror_some(images, settings.mirrored, changes.part, changes.generator)
        landmarks = mean_positions(self.psi.distributions(images))
        targets = _resize(images, min(settings.size, images.shape[-1]))
        side = targets.shape[-1]
        edge_map = draw_edges(landmarks, self.pairs, self.edge_weights, settings.thickness, side)
        visible = random_patches(settings.mask_grid, settings.masked, changes.part, changes.generator)
        completed = self._complete(targets, F.interpolate(visible, size=(side, side)), edge_map)
        terms = self.load_features(images.device).compare(
            _resize(completed, settings.perceptual_size),
            _resize(targets, settings.perceptual_size),
            squared=False,
        )
        return {"total": torch.stack(terms).sum()}

    def _complete(self, images: Tensor, visible: Tensor, edge_map: Tensor) -> Tensor:
        """Reconstruct images [B, 3, S, S] from their visible pixels and the edge maps.

        The values of the result are about 0..1; they are not clamped.

        Args:
            images: [B, 3, S, S], values in 0..1.
            visible: [B, 1, S, S], 0 for hidden pixels and 1 for visible pixels.
            edge_map: [B, 1, S, S].
        """
        masked = (2 * images - 1) * visible * self.image_scale  # hidden pixels are gray
        is_bf16 = uses_bf16(self.config.runtime, images.device)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=is_bf16):
            completed: Tensor = self.decoder(torch.cat([masked, edge_map], dim=1))
        return (completed.float() + 1) / 2


def squared_distance_to_segment(points: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the squared distance of points [..., 2] to segments from start [..., 2] to end [..., 2].

    The position of the nearest point along the segment is computed without gradients. The gradient of the
    distance is exact nevertheless. Between the ends of the segment, moving the nearest point a little along
    the segment does not change the distance. At an end, the position is constant.
    """
    # The axes are computed separately, because sums over a last dimension of 2 are slow.
    (along_x, along_y), (offset_x, offset_y) = (end - start).unbind(-1), (points - start).unbind(-1)
    with torch.no_grad():
        squared_length = (along_x.square() + along_y.square()).clamp(min=_MIN_SQUARED_LENGTH)
        fraction = ((offset_x * along_x + offset_y * along_y) / squared_length).clamp(0, 1)
    return (offset_x - fraction * along_x).square() + (offset_y - fraction * along_y).square()


def draw_edges(landmarks: Tensor, pairs: Tensor, weights: Tensor, thickness: float, side: int) -> Tensor:
    """Draw edge maps [B, 1, side, side]: at each pixel, the maximum of the values of all edges.

    The value of an edge at a pixel is weight * exp(-distance^2 / thickness). Only the edge with the maximum
    has a gradient at the pixel. So the best edge of each pixel is found without gradients, a few edges at a
    time, and only this edge is drawn with gradients. The memory per pixel does not depend on the number of
    edges.

    Args:
        landmarks: [B, K, 2], in units of half the image side.
        pairs: [2, E] int64, the landmarks that each edge connects.
        weights: [E], weights of the edges, greater than 0.
        thickness: squared distance at which the value of an edge falls to 1/e of its weight; distances are in
            units of half the image side.
        side: width and height of the map in pixels.
    """
    count = len(landmarks)
    pixels = cell_positions(side, side, landmarks.device)
    segments = torch.cat([landmarks[:, pairs[0]], landmarks[:, pairs[1]]], dim=-1)  # [B, E, 4]
    best = _find_best_edges(segments.detach(), weights.detach(), thickness, pixels)
    edges = torch.cat([segments, weights[:, None].expand(count, -1, -1)], dim=-1)  # [B, E, 5]
    drawn = edges.gather(1, best[..., None].expand(-1, -1, 5))  # [B, P, 5]
    squared_distance = squared_distance_to_segment(pixels, drawn[..., :2], drawn[..., 2:4])
    maps = drawn[..., 4] * torch.exp(-squared_distance / thickness)
    return maps.view(count, 1, side, side)


@torch.no_grad()
def _find_best_edges(segments: Tensor, weights: Tensor, thickness: float, pixels: Tensor) -> Tensor:
    """Return the edge [B, P] int64 with the largest value at each pixel; see `draw_edges`.

    Logarithms of the values are compared, because far from all edges the values are too small for float32.

    Args:
        segments: [B, E, 4], start and end of each edge.
        weights: [E].
        thickness: see `draw_edges`.
        pixels: [P, 2].
    """
    count, num_edges = segments.shape[:2]
    chunk = _CPU_CHUNK if segments.device.type == "cpu" else _CHUNK
    step = max(1, chunk // (count * len(pixels)))
    best = torch.zeros((count, len(pixels)), dtype=torch.int64, device=segments.device)
    largest = torch.full_like(best, -torch.inf, dtype=segments.dtype)
    for first in range(0, num_edges, step):
        start, end = segments[:, first : first + step, None].chunk(2, dim=-1)
        values = weights[first : first + step, None].log()
        values = values - squared_distance_to_segment(pixels, start, end) / thickness
        value, index = values.max(dim=1)
        best = torch.where(value > largest, index + first, best)
        largest = torch.maximum(value, largest)
    return best


def random_patches(grid: int, masked_fraction: float, part: BatchSlice, generator: torch.Generator) -> Tensor:
    """Choose visible patches at random: [B, 1, grid, grid], 0 for hidden and 1 for visible patches.

    Args:
        grid: number of patches along each axis.
        masked_fraction: probability that a patch is hidden.
        part: the part of the batch that this process computes. Random numbers are drawn for the whole batch,
            so that they do not depend on the number of processes.
        generator: source of the random numbers.
    """
    draws = torch.rand((part.total, 1, grid, grid), generator=generator, device=generator.device)
    return part.take((draws >= masked_fraction).float())


def mirror_some(
    images: Tensor, mirrored_fraction: float, part: BatchSlice, generator: torch.Generator
) -> Tensor:
    """Mirror images [B, 3, S, S] with probability `mirrored_fraction`; see `random_patches` for `part`."""
    draws = part.take(torch.rand((part.total, 1, 1, 1), generator=generator, device=generator.device))
    return torch.where(draws < mirrored_fraction, images.flip(-1), images)


def _resize(images: Tensor, side: int) -> Tensor:
    """Resize images [B, C, S, S] to [B, C, side, side], without aliasing."""
    if side == images.shape[-1]:
        return images
    return F.interpolate(images, size=(side, side), mode="bilinear", antialias=side < images.shape[-1])
