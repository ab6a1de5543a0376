"""Draw many training images in several processes."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.keypoints import photographs, scenes, shapes
from training.keypoints.drawing import Array, Image
from training.keypoints.settings import Data

IMAGES_PER_TASK = 64

Draw = Callable[[np.random.Generator, int], tuple[Image, Array]]
DrawnImages = tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class LabeledImages:
    """Images and their points on one device.

    Attributes:
        images: Gray images, [N, S, S] uint8.
        points: Points in pixels, [N, P, 2] float32, padded with NaN.
    """

    images: Tensor
    points: Tensor

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def compute_points_per_image(self) -> float:
        """Return the mean number of points per image."""
        return float((~self.points[..., 0].isnan()).sum(dim=1).float().mean())


@dataclass(frozen=True)
class PendingImages:
    """Images that other processes are still drawing."""

    parts: list[Future[DrawnImages]]

    def wait(self, device: torch.device) -> LabeledImages:
        """Wait for all images and return them on a device."""
        images, points = (
            np.concatenate(arrays) for arrays in zip(*(part.result() for part in self.parts), strict=True)
        )
        return LabeledImages(torch.from_numpy(images).to(device), torch.from_numpy(points).to(device))


@contextlib.contextmanager
def open_drawing_pool() -> Iterator[Executor]:
    """Open a pool with one process per core, except for one core, which trains.

    Processes are spawned, because this process may already run threads of CUDA or OpenCV. A forked process
    would inherit locks that these threads hold, and could wait for them forever.
    """
    context = multiprocessing.get_context("spawn")
    cores = max(1, (os.cpu_count() or 1) - 1)
    with ProcessPoolExecutor(cores, context, initializer=cv2.setNumThreads, initargs=(1,)) as pool:
        yield pool


def draw_shapes(pool: Executor, data: Data, seed: int) -> PendingImages:
    """Start drawing images with known points."""
    num_images = data.shapes
    return PendingImages(_submit(pool, shapes.draw, num_images, data, (seed, 1)))


def draw_unlabeled(pool: Executor, data: Data, seed: int, photograph_folder: Path) -> PendingImages:
    """Start drawing scenes, toy animals and crops of photographs; all points are NaN."""
    crop = functools.partial(
        _crop, sources=photographs.load(photograph_folder), side_range=data.photograph_side
    )
    return PendingImages(
        _submit(pool, scenes.draw, data.scenes, data, (seed, 2))
        + _submit(pool, scenes.draw_animal, data.animals, data, (seed, 3))
        + _submit(pool, crop, data.photographs, data, (seed, 4))
    )


def _crop(
    rng: np.random.Generator, side: int, sources: list[Image], side_range: tuple[int, int]
) -> tuple[Image, Array]:
    return photographs.crop(rng, sources, side, side_range)


def _submit(
    pool: Executor, draw: Draw, count: int, data: Data, seed: tuple[int, int]
) -> list[Future[DrawnImages]]:
    """Submit tasks that draw `count` images.

    Image i depends only on the seed and i, not on the process that draws it. The second number of the seed is
    different for each kind of image.
    """
    return [
        pool.submit(_draw_part, draw, data, seed, start, min(start + IMAGES_PER_TASK, count))
        for start in range(0, count, IMAGES_PER_TASK)
    ]


def _draw_part(draw: Draw, data: Data, seed: tuple[int, int], start: int, stop: int) -> DrawnImages:
    """Draw the images `start` to `stop` - 1; return [n, S, S] uint8 and their points [n, P, 2]."""
    images = np.empty((stop - start, data.side, data.side), np.uint8)
    points = np.full((stop - start, data.max_points, 2), np.nan, np.float32)
    for row, index in enumerate(range(start, stop)):
        image, xy = draw(np.random.default_rng([*seed, index]), data.side)
        images[row] = np.round(image * 255)
        points[row, : len(xy)] = xy[: data.max_points]
    return images, points
