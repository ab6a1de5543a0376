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
    runtime, rotations = config.runtime, config.features.averaged_rotations
    num_images, grid = rows.stop - rows.start, feed.pixels.shape[-1] // CELL
    shape = (num_images, encoder.part_channels, grid, grid)
    # Processes and the mirror images must not share a file: all of them are in use at the same time.
    name = _FILES.replace("*", f"{rows.start}-mirrored" if is_mirrored else str(rows.start))
    cells = _allocate(shape, feed.device, runtime, folder / name)
    bf16 = uses_bf16(runtime, feed.device)
    done = 0
    for pixels in feed.sequential_batches(runtime.predict_batch, rows):
        images = pixels.float() / 255
        with torch.autocast(feed.device.type, torch.bfloat16, enabled=bf16):
            seen = images.flip(-1) if is_mirrored else images
            features = average_rotations(encoder.describe, seen, rotations)
        cells[done : done + len(images)] = (features.flip(-1) if is_mirrored else features).half()
        done += len(images)
        if on_progress is not None:
            on_progress(done, num_images)
    return cells


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
    runtime, grid = config.runtime, feed.pixels.shape[-1] // CELL
    shape = (rows.stop - rows.start, encoder.part_channels, grid, grid)
    cells = _allocate(shape, feed.device, runtime, folder / _FILES.replace("*", f"view-{uuid4().hex}"))
    bf16 = uses_bf16(runtime, feed.device)
    done = 0
    for pixels in feed.sequential_batches(runtime.predict_batch, rows):
        views = warp_images(pixels.float() / 255, matrices[done : done + len(pixels)].to(feed.device))
        with torch.autocast(feed.device.type, torch.bfloat16, enabled=bf16):
            cells[done : done + len(pixels)] = encoder.describe(views).half()
        done += len(pixels)
    return cells


def remove_stored_cells(folder: Path) -> None:
    """Delete the feature files of a run folder; processes that have them open can go on reading."""
    for path in folder.glob(_FILES):
        path.unlink(missing_ok=True)


def _allocate(shape: tuple[int, ...], device: torch.device, runtime: Runtime, path: Path) -> Tensor:
    num_bytes = int(np.prod(shape)) * torch.float16.itemsize
    if device.type == "cuda" and num_bytes <= runtime.device_fraction * free_memory(device):
        return torch.empty(shape, dtype=torch.float16, device=device)
    if num_bytes <= runtime.store_gigabytes * 1e9:
        return torch.empty(shape, dtype=torch.float16)
    path.unlink(missing_ok=True)  # a process that has an earlier file open can go on reading it
    return torch.from_numpy(np.memmap(path, np.float16, "w+", shape=shape))
