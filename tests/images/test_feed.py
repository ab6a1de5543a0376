"""Test the batches of a feed on the CPU; the GPU tests cover prefetching from the host."""

from __future__ import annotations

import numpy as np
import torch

from selfmark.images.feed import PixelFeed

PIXELS = torch.arange(10 * 3 * 4 * 4).to(torch.uint8).reshape(10, 3, 4, 4)


def test_batches_contain_the_requested_images() -> None:
    feed = PixelFeed(PIXELS, torch.device("cpu"))
    batch_rows = [np.array([3, 3, 9]), np.array([0])]
    for rows, images in zip(batch_rows, feed.batches(batch_rows), strict=True):
        assert torch.equal(images, PIXELS[torch.from_numpy(rows)])
    assert len(feed) == 10


def test_sequential_batches_contain_every_image_once() -> None:
    feed = PixelFeed(PIXELS, torch.device("cpu"))
    assert torch.equal(torch.cat(list(feed.sequential_batches(4))), PIXELS)
    assert [len(images) for images in feed.sequential_batches(4)] == [4, 4, 2]
    assert torch.equal(torch.cat(list(feed.sequential_batches(2, slice(3, 8)))), PIXELS[3:8])
