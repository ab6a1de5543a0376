"""Compare exact and near duplicates with a naive comparison of all pairs."""

from __future__ import annotations

import tracemalloc

import cv2
import numpy as np
import torch

from selfmark.images.duplicates import find_duplicates, look_alike, make_thumbnails


def _draw_photo(seed: int, side: int = 64) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    return cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)


def _recompress(image: np.ndarray) -> np.ndarray:
    encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 60])[1]
    return cv2.imdecode(encoded, cv2.IMREAD_COLOR)


def _stack_images(images: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def test_copies_and_recompressed_images_are_found() -> None:
    images = [_draw_photo(seed) for seed in range(8)]
    moved = images[3].copy()
    cv2.circle(moved, (20, 20), 8, (255, 255, 255), -1)  # an object in another pose
    pixels = _stack_images([*images, images[2], _recompress(images[5]), moved, images[2]])
    duplicates = find_duplicates(pixels, make_thumbnails(pixels))
    assert duplicates.exact.tolist() == [-1] * 8 + [2, -1, -1, 2]
    assert duplicates.near.tolist() == [-1] * 8 + [-1, 5, -1, -1]


def test_near_duplicates_match_a_comparison_of_all_pairs() -> None:
    rng = np.random.default_rng(1)
    images = [_draw_photo(seed) for seed in range(30)]
    for row in rng.integers(0, 30, 40):
        noise = rng.normal(0, rng.uniform(2, 40), (4, 4, 3))  # with little noise, the images stay alike
        changed = images[row] + cv2.resize(noise, (64, 64), interpolation=cv2.INTER_CUBIC)
        images.append(np.clip(changed, 0, 255).astype(np.uint8))
    pixels = _stack_images(images)
    thumbnails = make_thumbnails(pixels)
    has_near_copy = find_duplicates(pixels, thumbnails).near >= 0
    naive = [
        any(look_alike(thumbnails[row], thumbnails[earlier]) for earlier in range(row))
        for row in range(len(images))
    ]
    assert has_near_copy.tolist() == naive
    assert 5 < has_near_copy.sum() < 38  # both kinds occur


def test_memory_per_image_is_small_enough_for_a_million_images() -> None:
    pixels = _stack_images([_draw_photo(seed) for seed in range(1_000)])
    tracemalloc.start()
    try:
        find_duplicates(pixels, make_thumbnails(pixels))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / len(pixels) < 2_000  # bytes; a thumbnail takes 1,024
