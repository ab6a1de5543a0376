"""Compute the features of all cells of all images once, and keep them in half precision.

A cell is a square of 8 pixels. The features are kept in device memory if they fit there, otherwise in host
memory. If they fit into neither, they are kept in a file of the run folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Config, Features, Runtime
from selfmark.errors import DiskError
from selfmark.features.encoder import CELL, Encoder
from selfmark.features.orientation import average_rotations
from selfmark.images.feed import PixelFeed
from selfmark.run.devices import measure_free_memory, uses_bf16
from selfmark.run.guarded_files import allocate, create_file, remove_file

_FILES = "features-*.f16"  # pattern of the feature files in the run folder
# Unit of places, as a fraction of the image's side: about the radius of an object.
_PLACE_UNIT = 0.2


@torch.no_grad()
def describe_cells(
    encoder: Encoder,
    feed: PixelFeed,
    rows: slice,
    config: Config,
    folder: Path,
    is_mirrored: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Describe every cell of some images with the features that recognize parts.

    Args:
        encoder: pretrained network.
        feed: the images.
        rows: the images to describe.
        config: precision, images per pass, memory the features may take, and rotations to average over.
        folder: run folder, for features that do not fit into memory; see `remove_stored_cells`.
        is_mirrored: describe the mirror images; the resulting maps are mirrored back.
        on_progress: called with the number of images done and their total.

    Returns:
        [N, D, S/8, S/8] float16. The features are unit vectors; `append_places` may append the positions of
        the cells.
    """
    rotations = config.features.averaged_rotations

    def describe(images: Tensor) -> Tensor:
        views = images.flip(-1) if is_mirrored else images
        features = append_places(average_rotations(encoder.describe, views, rotations), config.features)
        return features.flip(-1) if is_mirrored else features

    # All files are in use at the same time: each process has one for images and one for mirror images.
    name = f"{rows.start}-mirrored" if is_mirrored else str(rows.start)
    channels = described_channels(encoder, config.features)
    cells = _allocate(channels, feed, rows, config.runtime, folder / _FILES.replace("*", name))
    return _fill(cells, feed, rows, config.runtime, describe, on_progress)


def append_places(features: Tensor, settings: Features) -> Tensor:
    """Append the place of each cell, which is its position in the image, to the features of the cell.

    The left and the right eye have similar features, but are at different places. Two cells that are a fifth
    of the image apart get an additional squared distance of `place_weight`.

    Args:
        features: [B, D, h, w].
        settings: weight of the places.

    Returns:
        [B, D + 2, h, w]; the features themselves if the weight is 0.
    """
    if settings.used_place_weight == 0:
        return features
    images, _, height, width = features.shape
    x, y = (
        ((torch.arange(count, device=features.device) + 0.5) / count - 0.5) / _PLACE_UNIT
        for count in (width, height)
    )
    places = torch.stack([x.expand(height, width), y[:, None].expand(height, width)])
    weighted = (settings.used_place_weight**0.5 * places).to(features.dtype)
    return torch.cat([features, weighted.expand(images, 2, height, width)], dim=1)


def described_channels(encoder: Encoder, settings: Features) -> int:
    """Return the number of channels of the cells that `describe_cells` returns."""
    return encoder.part_channels + num_place_channels(settings)


def num_place_channels(settings: Features) -> int:
    """Return the number of channels that `append_places` appends."""
    return 2 if settings.used_place_weight else 0


def normalize_features(vectors: Tensor, settings: Features) -> Tensor:
    """Scale the features of vectors [..., D] to unit length; appended places stay as they are."""
    num_features = vectors.shape[-1] - num_place_channels(settings)
    features, places = vectors[..., :num_features], vectors[..., num_features:]
    return torch.cat([F.normalize(features, dim=-1), places], dim=-1)


def describe_colors(feed: PixelFeed, rows: slice, batch: int) -> Tensor:
    """Describe every cell of some images by the mean and the standard deviation of its colors.

    Args:
        feed: the images.
        rows: the images to describe.
        batch: images per pass.

    Returns:
        [N, 6, S/8, S/8] float16, values between 0 and 1.
    """
    parts = []
    for pixels in feed.sequential_batches(batch, rows):
        images = pixels.float() / 255
        mean = F.avg_pool2d(images, CELL)
        variance = (F.avg_pool2d(images.square(), CELL) - mean.square()).clamp_min(0)
        parts.append(torch.cat([mean, variance.sqrt()], dim=1).half())
    return torch.cat(parts)


def remove_stored_cells(folder: Path) -> None:
    """Delete the feature files of a run folder; processes that have them open can still read them."""
    for path in folder.glob(_FILES):
        remove_file(path)


def _fill(
    cells: Tensor,
    feed: PixelFeed,
    rows: slice,
    runtime: Runtime,
    describe: Callable[[Tensor], Tensor],
    on_progress: Callable[[int, int], None] | None,
) -> Tensor:
    """Fill `cells` [N, D, S/8, S/8] batch by batch; `describe` gets images [B, 3, S, S] in 0..1."""
    bf16 = uses_bf16(runtime, feed.device)
    done = 0
    for pixels in feed.sequential_batches(runtime.predict_batch, rows):
        with torch.autocast(feed.device.type, torch.bfloat16, enabled=bf16):
            cells[done : done + len(pixels)] = describe(pixels.float() / 255).half()
        done += len(pixels)
        if on_progress is not None:
            on_progress(done, len(cells))
    return cells


def _allocate(channels: int, feed: PixelFeed, rows: slice, runtime: Runtime, path: Path) -> Tensor:
    """Allocate memory for features [N, D, S/8, S/8] on the device, on the host or in a file."""
    grid = feed.pixels.shape[-1] // CELL
    shape = (rows.stop - rows.start, channels, grid, grid)
    num_bytes = int(np.prod(shape)) * torch.float16.itemsize
    if feed.device.type == "cuda" and num_bytes <= runtime.device_fraction * measure_free_memory(feed.device):
        return torch.empty(shape, dtype=torch.float16, device=feed.device)
    if num_bytes <= runtime.store_gigabytes * 1e9:
        return torch.empty(shape, dtype=torch.float16)
    try:
        with create_file(path) as handle:
            allocate(handle, num_bytes)
            return torch.from_numpy(np.memmap(handle, np.float16, "r+", shape=shape))
    except OSError as error:
        remove_file(path)
        raise DiskError(
            f"cannot store {num_bytes / 1e9:.1f} GB of features in {path.parent}: {error.strerror}"
        ) from error
