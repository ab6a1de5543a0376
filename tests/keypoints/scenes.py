"""Provide generated images with known structure, and the published weights if they are installed."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch

from selfmark import weights_cache
from selfmark.errors import InputError

Floats = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

# Folder of published weights, which are too large for the repository.
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "weights"


def require_published_weights(name: str) -> str:
    """Return the path of the published weights; skip the test if they are not installed."""
    path = SHARED / weights_cache.PUBLISHED_WEIGHTS[name].file
    if path.is_file():
        return str(path)
    try:
        return str(weights_cache.find_weights(name))
    except InputError as reason:
        pytest.skip(str(reason))


def draw_rectangles(side: int, seed: int) -> tuple[Pixels, Floats]:
    """Return a gray image [side, side, 3] with a rectangle in each 48 x 48 tile, and all corners [N, 2]."""
    rng = np.random.default_rng(seed)
    image = np.full((side, side), 110, np.uint8)
    corners = []
    for top in range(0, side - 47, 48):
        for left in range(0, side - 47, 48):
            x0, y0 = left + rng.integers(8, 14), top + rng.integers(8, 14)
            x1, y1 = x0 + rng.integers(16, 24), y0 + rng.integers(16, 24)
            image[y0 : y1 + 1, x0 : x1 + 1] = rng.choice([20, 60, 180, 240])
            corners += [(x0, y0), (x1, y0), (x0, y1), (x1, y1)]
    blurred = cv2.GaussianBlur(image, (0, 0), 0.7)
    return np.repeat(blurred[..., None], 3, axis=2).astype(np.uint8), np.array(corners, dtype=np.float64)


def draw_polygons(side: int, seed: int) -> Pixels:
    """Return an image [side, side, 3] of many overlapping colored polygons, with texture everywhere."""
    rng = np.random.default_rng(seed)
    image = np.full((side, side, 3), 128, np.uint8)
    for _ in range(side // 2):
        center, radius = rng.uniform(0, side, 2), rng.uniform(6, 30)
        angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(3, 6)))
        corners = center + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        cv2.fillPoly(image, [corners.astype(np.int32)], rng.integers(0, 256, 3).tolist(), cv2.LINE_AA)
    return np.asarray(cv2.GaussianBlur(image, (0, 0), 0.7), dtype=np.uint8)


def to_batch(*images: Pixels) -> torch.Tensor:
    """Stack images [H, W, 3] to a tensor [B, 3, H, W] uint8."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def pairwise_distances(a: Floats, b: Floats) -> Floats:
    """Return the Euclidean distances [len(a), len(b)]."""
    result: Floats = np.linalg.norm(np.asarray(a)[:, None] - np.asarray(b)[None], axis=-1)
    return result
