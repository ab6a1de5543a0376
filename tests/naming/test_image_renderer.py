"""Test rendered images: scale, orientation, position of crops, and the cache."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selfmark.image_ref import ImageRef
from selfmark.naming.image_renderer import CROP_SIDE, LARGE_SIDE, BoundedCache, ImageRenderer
from selfmark.naming.shown_images import ShownImages


def show_image(path: Path, size: tuple[int, int], region: list[float], xy: list[float]) -> ShownImages:
    return ShownImages(
        (ImageRef(path),),
        np.array([size], np.int64),
        np.array([region]),
        np.array([[xy]], np.float32),
        np.ones((1, 1), np.float32),
        (None,),
    )


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_small_object_in_a_large_photo_is_shown_in_full_resolution(tmp_path: Path, suffix: str) -> None:
    """Large JPEGs are decoded at a smaller size, but never smaller than the object needs."""
    pixels = np.zeros((1500, 3000, 3), np.uint8)
    pixels[1000:1100, 2000:2100] = (200, 30, 30)
    pixels[1040:1060, 2040:2060] = 255
    path = tmp_path / f"photo{suffix}"
    Image.fromarray(pixels).save(path, quality=95)
    shown = show_image(path, (3000, 1500), [2000.0, 1000.0, 100.0, 100.0], [2049.5, 1049.5])
    renderer = ImageRenderer(shown, 200.0)
    assert renderer.view(0) == (1992, 992, 2108, 1108)
    large_image = Image.open(io.BytesIO(renderer.large(0)))
    assert large_image.size == (116, 116), "full resolution"
    crop = np.asarray(Image.open(io.BytesIO(renderer.crop(0, 0)))).astype(int)
    center = np.argwhere(crop.min(axis=2) > 190).mean(axis=0)
    assert np.abs(center - CROP_SIDE / 2).max() < 3
    whole_image = show_image(path, (3000, 1500), [0.0, -750.0, 3000.0, 3000.0], [2049.5, 1049.5])
    assert max(Image.open(io.BytesIO(ImageRenderer(whole_image, 200.0).large(0))).size) == LARGE_SIDE


def test_photo_with_exif_rotation_is_shown_upright(tmp_path: Path) -> None:
    pixels = np.zeros((60, 90, 3), np.uint8)
    pixels[:20, :20] = 255
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6  # Viewers rotate the image by 90 degrees, so the white corner is right.
    image.save(tmp_path / "rotated.jpg", exif=exif, quality=95)
    shown = show_image(tmp_path / "rotated.jpg", (60, 90), [0.0, 0.0, 60.0, 90.0], [50.0, 10.0])
    upright = np.asarray(Image.open(io.BytesIO(ImageRenderer(shown, 200.0).large(0))))
    assert upright.shape == (90, 60, 3)
    assert upright[5, 55].min() > 200
    assert upright[5, 5].max() < 50


def test_cache_drops_the_least_recently_used_entries() -> None:
    cache = BoundedCache(100)
    computed: list[int] = []

    def compute(number: int) -> bytes:
        computed.append(number)
        return bytes(40)

    for number in (0, 1, 0, 2, 0, 1):  # Image 2 replaces 1, because 0 was used later.
        cache.get((number, ""), lambda number=number: compute(number))
    assert computed == [0, 1, 2, 1]
    assert cache._size <= 100
    assert cache.get((9, ""), lambda: bytes(500)) == bytes(500), "too large for the cache, but returned"
    assert cache._size == 0
