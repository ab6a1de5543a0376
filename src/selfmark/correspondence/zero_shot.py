"""Landmarks from pretrained features without training: clusters of the cells of the object.

Parts of an object have similar features in all images. K-means over the features of all cells therefore finds
parts; each centroid becomes a landmark, at the place where an image is most similar to it. Cells of the
background are left out first: their clusters occur at the border of the images about as often as inside.

In a group, each process has the features of its own images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from selfmark.config import Features
from selfmark.correspondence.kmeans import kmeans, nearest_centroid, sample_rows
from selfmark.errors import NotEnoughData
from selfmark.features.cells import normalize_features
from selfmark.model.feature_network import enlarge_maps, similarity_heat
from selfmark.model.heatmaps import heat_centroids, to_pixels
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_BLOCK = 64  # images compared with centroids at a time


class PlacedLandmarks(NamedTuple):
    """One position for each of K landmarks in each of N images: xy [N, K, 2] network pixels, score [N, K]."""

    xy: Tensor
    score: Tensor


def find_foreground(
    cells: Tensor,
    colors: Tensor,
    settings: Features,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Tensor:
    """Mark the cells [N, h, w] that belong to the object, by their features and by their colors.

    Features of a cell also depend on its surroundings, so those of the floor around an animal differ from
    those of the floor elsewhere; its colors do not. Colors count only if they separate the object from the
    background in most images: faces and birds have colors of their own in each image, and what colors leave
    of them is random. If features leave fewer than the fraction `min_foreground` of the cells, all cells are
    marked.

    Args:
        cells: [N, D, h, w] features of the cells.
        colors: [N, C, h, w] colors of the cells.
        settings: number of clusters, width of the border, limits.
        generator: source of the random numbers; the computation runs on its device.
        group: the processes that share the images.
    """
    by_features = _stands_out(cells, settings.max_border_ratio, settings, generator, group)
    by_colors = _stands_out(colors, settings.max_color_border_ratio, settings, generator, group)
    by_both = by_features & by_colors
    remaining = by_both.flatten(1).sum(dim=1) >= settings.min_color_remainder * by_features.flatten(1).sum(
        dim=1
    )
    candidates = (
        (by_both, by_features) if _mean(remaining, group) >= settings.min_color_images else (by_features,)
    )
    for foreground in candidates:
        if _mean(foreground, group) >= settings.min_foreground:
            return foreground
    return torch.ones_like(by_features)


def _mean(flags: Tensor, group: ProcessGroup) -> float:
    """Return the fraction of flags that are True, over all processes."""
    counts = torch.stack([flags.sum(), torch.ones_like(flags).sum()])
    num_true, num_flags = group.all_sum(counts.float()).tolist()
    return float(num_true / num_flags)


def _stands_out(
    cells: Tensor, max_ratio: float, settings: Features, generator: torch.Generator, group: ProcessGroup
) -> Tensor:
    """Cluster all cells and mark [N, h, w] those of clusters that are rare at the border of the images.

    A cluster is rare if its frequency at the border is less than `max_ratio` times its frequency inside.
    """
    num_images, _, height, width = cells.shape
    everything = torch.ones(num_images, height, width, dtype=torch.bool, device=generator.device)
    sample = _sample_cells(cells, everything, settings, generator, group)
    clusters = min(settings.foreground_clusters, sum(group.gather_counts(len(sample))))
    centroids = kmeans(sample, clusters, settings.iterations, settings.restarts, generator, group)
    labels = torch.cat([_label_cells(block, centroids) for block in _blocks(cells, generator.device)])
    margin = settings.border
    is_border = torch.ones(height, width, dtype=torch.bool, device=labels.device)
    is_border[margin:-margin, margin:-margin] = False

    def frequency(region: Tensor) -> Tensor:
        counts = group.all_sum(labels[:, region].flatten().bincount(minlength=clusters).float())
        return counts / region.sum()

    ratio = frequency(is_border) / frequency(~is_border).clamp_min(1e-9)
    return (ratio < max_ratio)[labels]


def find_part_centroids(
    cells: Tensor,
    foreground: Tensor,
    K: int,
    settings: Features,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Tensor:
    """Cluster the cells of the object into K parts and return their centroids [K, D], see `append_places`.

    Args:
        cells: [N, D, h, w] features of the cells.
        foreground: [N, h, w] bool, cells of the object.
        K: number of parts.
        settings: settings of K-means.
        generator: source of the random numbers; the computation runs on its device.
        group: the processes that share the images.
    """
    sample = _sample_cells(cells, foreground, settings, generator, group)
    count = sum(group.gather_counts(len(sample)))
    if count < K:
        raise NotEnoughData(f"{count} cells of the object cannot form {K} landmarks: lower K")
    centroids = kmeans(sample, K, settings.iterations, settings.restarts, generator, group)
    return normalize_features(centroids, settings)


def place_parts(cells: Tensor, centroids: Tensor, sharpness: float) -> PlacedLandmarks:
    """Place each landmark at the soft-argmax of the similarity to its centroid.

    Args:
        cells: [N, D, h, w] features of the cells.
        centroids: [K, D] unit vectors, on the device of the computation.
        sharpness: inverse temperature of the soft-argmax.
    """
    xy, score = [], []
    for block in _blocks(cells, centroids.device):
        peaks = heat_centroids(enlarge_maps(similarity_heat(block, centroids, sharpness)))
        xy.append(to_pixels(peaks.cells))
        score.append(peaks.score)
    return PlacedLandmarks(torch.cat(xy), torch.cat(score))


def _sample_cells(
    cells: Tensor, mask: Tensor, settings: Features, generator: torch.Generator, group: ProcessGroup
) -> Tensor:
    """Return the features [P, D] of a random sample of the marked cells, float32."""
    marked = torch.nonzero(mask.flatten()).flatten()
    chosen = marked[sample_rows(len(marked), settings.sample, generator, group)]
    height, width = mask.shape[1:]
    image, cell = chosen // (height * width), chosen % (height * width)
    image, row, column = (index.to(cells.device) for index in (image, cell // width, cell % width))
    return cells[image, :, row, column].to(generator.device, torch.float32)


def _label_cells(block: Tensor, centroids: Tensor) -> Tensor:
    """Return the nearest centroid of each cell of [B, D, h, w] features, [B, h, w]."""
    images, _, height, width = block.shape
    vectors = block.permute(0, 2, 3, 1).flatten(0, 2)
    return nearest_centroid(vectors, centroids).cluster.view(images, height, width)


def _blocks(cells: Tensor, device: torch.device) -> Iterator[Tensor]:
    """Yield the features of a few images at a time, float32 on the device."""
    for block in torch.split(cells, _BLOCK):
        yield block.to(device).float()
