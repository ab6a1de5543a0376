"""Find landmarks in pretrained features without training, by clustering the cells of the object.

A cell is a square of 8 x 8 pixels, which a pretrained network describes by a feature vector. The same part of
an object has similar features in all images. K-means over the features of the object's cells therefore finds
parts. Each centroid becomes a landmark; in an image, the landmark is where the features are most similar to
the centroid.

`find_foreground` finds the cells of the object. It clusters all cells, and keeps the clusters that occur much
more often inside the images than at their border. The other clusters are background.

If several processes share the images, each process has the features of its own images.
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
    """Positions of K landmarks in N images: `xy` [N, K, 2] in network pixels, and `score` [N, K]."""

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

    Features of a cell also depend on its surroundings: the floor next to an animal has other features than
    the floor elsewhere, but the same colors. So a cell must also stand out by its colors. Colors are ignored
    if too many images would keep hardly any cells. This happens for faces and birds: their colors differ from
    image to image, so colors would select random parts of them.

    Colors are also ignored if less than the fraction `min_foreground` of all cells would remain. If less than
    this fraction remains even without colors, all cells are marked.

    Args:
        cells: [N, D, h, w] features of the cells.
        colors: [N, C, h, w] colors of the cells.
        settings: number of clusters, width of the border in cells, and limits.
        generator: source of the random numbers; the computation runs on the device of the generator.
        group: the processes that share the images.
    """
    by_features = _mark_rare_at_border(cells, settings.max_border_ratio, settings, generator, group)
    by_colors = _mark_rare_at_border(colors, settings.max_color_border_ratio, settings, generator, group)
    by_both = by_features & by_colors
    num_by_features, num_by_both = (mask.flatten(1).sum(dim=1) for mask in (by_features, by_both))
    colors_agree = num_by_both >= settings.min_color_remainder * num_by_features  # [N], one per image
    use_colors = _fraction_true(colors_agree, group) >= settings.min_color_images
    for foreground in (by_both, by_features) if use_colors else (by_features,):
        if _fraction_true(foreground, group) >= settings.min_foreground:
            return foreground
    return torch.ones_like(by_features)


def _fraction_true(flags: Tensor, group: ProcessGroup) -> float:
    """Return the fraction of flags that are True, over all processes."""
    counts = torch.stack([flags.sum(), torch.ones_like(flags).sum()])
    num_true, num_flags = group.all_sum(counts.float()).tolist()
    return float(num_true / num_flags)


def _mark_rare_at_border(
    cells: Tensor, max_ratio: float, settings: Features, generator: torch.Generator, group: ProcessGroup
) -> Tensor:
    """Mark the cells of clusters that are rare at the border of the images, [N, h, w] bool.

    All cells are clustered. A cluster is rare if its frequency at the border is less than `max_ratio` times
    its frequency inside.
    """
    num_images, _, height, width = cells.shape
    all_cells = torch.ones(num_images, height, width, dtype=torch.bool, device=generator.device)
    sample = _sample_cells(cells, all_cells, settings, generator, group)
    clusters = min(settings.foreground_clusters, sum(group.gather_counts(len(sample))))
    centroids = kmeans(sample, clusters, settings.iterations, settings.restarts, generator, group)
    labels = torch.cat([_label_cells(block, centroids) for block in _iterate_images(cells, generator.device)])
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
    """Cluster the cells of the object into K parts and return their centroids [K, D].

    The features of a centroid are a unit vector; positions of cells, which `append_places` may append
    to the features, are not normalized.

    Args:
        cells: [N, D, h, w] features of the cells.
        foreground: [N, h, w] bool, cells of the object.
        K: number of parts.
        settings: settings of K-means.
        generator: source of the random numbers; the computation runs on the device of the generator.
        group: the processes that share the images.
    """
    sample = _sample_cells(cells, foreground, settings, generator, group)
    count = sum(group.gather_counts(len(sample)))
    if count < K:
        raise NotEnoughData(f"{count} cells of the object cannot form {K} landmarks: lower K")
    centroids = kmeans(sample, K, settings.iterations, settings.restarts, generator, group)
    return normalize_features(centroids, settings)


def place_parts(cells: Tensor, centroids: Tensor, sharpness: float) -> PlacedLandmarks:
    """Place each landmark at the soft-argmax of the similarity to the landmark's centroid.

    Args:
        cells: [N, D, h, w] features of the cells.
        centroids: [K, D] of `find_part_centroids`, on the device of the computation.
        sharpness: inverse temperature of the soft-argmax.
    """
    xy, score = [], []
    for block in _iterate_images(cells, centroids.device):
        peaks = heat_centroids(enlarge_maps(similarity_heat(block, centroids, sharpness)))
        xy.append(to_pixels(peaks.cells))
        score.append(peaks.score)
    return PlacedLandmarks(torch.cat(xy), torch.cat(score))


def _sample_cells(
    cells: Tensor, mask: Tensor, settings: Features, generator: torch.Generator, group: ProcessGroup
) -> Tensor:
    """Return the features [P, D] of a random sample of the marked cells, float32."""
    marked_cells = torch.nonzero(mask.flatten()).flatten()
    chosen = marked_cells[sample_rows(len(marked_cells), settings.sample, generator, group)]
    height, width = mask.shape[1:]
    image, cell = chosen // (height * width), chosen % (height * width)
    image, row, column = (index.to(cells.device) for index in (image, cell // width, cell % width))
    return cells[image, :, row, column].to(generator.device, torch.float32)


def _label_cells(block: Tensor, centroids: Tensor) -> Tensor:
    """Return the index [B, h, w] of the centroid nearest to each cell; `block` is [B, D, h, w] features."""
    images, _, height, width = block.shape
    vectors = block.permute(0, 2, 3, 1).flatten(0, 2)
    return nearest_centroid(vectors, centroids).cluster.view(images, height, width)


def _iterate_images(cells: Tensor, device: torch.device) -> Iterator[Tensor]:
    """Yield the features of a few images at a time, float32 on the device."""
    for block in torch.split(cells, _BLOCK):
        yield block.to(device).float()
