"""Features of all cells of all images, computed once and kept in half precision.

They are kept in the memory of the device if they fit there, otherwise in host memory, and in a file of the
run folder if they are too large for host memory as well.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from selfmark.config import Config, Runtime
from selfmark.features.encoder import CELL, Encoder
from selfmark.features.orientation import average_rotations
from selfmark.images.augment import warp_images
from selfmark.images.feed import PixelFeed
from selfmark.run.devices import free_memory, uses_bf16

_FILES = "features-*.f16"  # in the run folder


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
        is_mirrored: describe the mirror images; cells keep the positions they have in the images themselves.
        on_progress: called with the number of images done and their total.

    Returns:
        [N, D, S/8, S/8] float16, unit vectors.
    """
    rotations = config.features.averaged_rotations

    def describe(images: Tensor, first: int) -> Tensor:
        seen = images.flip(-1) if is_mirrored else images
        features = average_rotations(encoder.describe, seen, rotations)
        return features.flip(-1) if is_mirrored else features

    # Processes and the mirror images must not share a file: all of them are in use at the same time.
    name = f"{rows.start}-mirrored" if is_mirrored else str(rows.start)
    cells = _allocate(encoder, feed, rows, config.runtime, folder / _FILES.replace("*", name))
    return _fill(cells, feed, rows, config.runtime, describe, on_progress)


@torch.no_grad()
def describe_views(
    encoder: Encoder,
    feed: PixelFeed,
    rows: slice,
    matrices: Tensor,
    config: Config,
    folder: Path,
) -> Tensor:
    """Describe every cell of deformed images, for example of images whose objects are turned the same way.

    Args:
        encoder: pretrained network.
        feed: the images.
        rows: the images to describe.
        matrices: [N, 2, 3], one for each of these images; see `images.augment.warp_images`.
        config: precision, images per pass and memory the features may take.
        folder: run folder, for features that do not fit into memory; see `remove_stored_cells`.

    Returns:
        [N, D, S/8, S/8] float16, unit vectors.
    """

    def describe(images: Tensor, first: int) -> Tensor:
        return encoder.describe(warp_images(images, matrices[first : first + len(images)].to(images.device)))

    path = folder / _FILES.replace("*", f"view-{uuid4().hex}")
    return _fill(_allocate(encoder, feed, rows, config.runtime, path), feed, rows, config.runtime, describe)


def remove_stored_cells(folder: Path) -> None:
    """Delete the feature files of a run folder; processes that have them open can go on reading."""
    for path in folder.glob(_FILES):
        path.unlink(missing_ok=True)


def _fill(
    cells: Tensor,
    feed: PixelFeed,
    rows: slice,
    runtime: Runtime,
    describe: Callable[[Tensor, int], Tensor],
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Describe images batch by batch; `describe` gets a batch in 0..1 and the number of its first image."""
    bf16 = uses_bf16(runtime, feed.device)
    done = 0
    for pixels in feed.sequential_batches(runtime.predict_batch, rows):
        with torch.autocast(feed.device.type, torch.bfloat16, enabled=bf16):
            cells[done : done + len(pixels)] = describe(pixels.float() / 255, done).half()
        done += len(pixels)
        if on_progress is not None:
            on_progress(done, len(cells))
    return cells


def _allocate(encoder: Encoder, feed: PixelFeed, rows: slice, runtime: Runtime, path: Path) -> Tensor:
    """Return memory for features [N, D, S/8, S/8] on the device, on the host or in a file."""
    grid = feed.pixels.shape[-1] // CELL
    shape = (rows.stop - rows.start, encoder.part_channels, grid, grid)
    num_bytes = int(np.prod(shape)) * torch.float16.itemsize
    if feed.device.type == "cuda" and num_bytes <= runtime.device_fraction * free_memory(feed.device):
        return torch.empty(shape, dtype=torch.float16, device=feed.device)
    if num_bytes <= runtime.store_gigabytes * 1e9:
        return torch.empty(shape, dtype=torch.float16)
    path.unlink(missing_ok=True)  # a process that has an earlier file open can go on reading it
    return torch.from_numpy(np.memmap(path, np.float16, "w+", shape=shape))
