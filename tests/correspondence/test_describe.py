"""Applying Phi to a set of images: points of their own, descriptors of both mirror images, shared out."""

from __future__ import annotations

import torch

from selfmark.config import override, preset
from selfmark.correspondence.describe import describe
from selfmark.group import Group
from selfmark.model.heatmaps import to_cells
from selfmark.model.network import Phi
from selfmark.points import concatenate
from selfmark.train.feed import PixelFeed
from tests.conftest import QUICK

CONFIG = override(preset("tiny"), QUICK | {"runtime.predict_batch": 3, "heatmaps.max_points": 5})
PIXELS = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _phi() -> Phi:
    torch.manual_seed(0)
    return Phi(CONFIG.network)


def test_descriptors_are_read_in_the_image_and_in_its_mirror_image() -> None:
    phi = _phi()
    found = describe(phi, PixelFeed(PIXELS, torch.device("cpu")), CONFIG)
    assert found.points.descriptor is not None
    assert found.mirrored is not None
    assert found.points.counts(8).min() >= 1
    for index in range(len(found.points)):
        image = PIXELS[found.points.image_index[index]][None].float() / 255
        cell = to_cells(found.points.xy[index])[None, None]
        across = torch.stack([CONFIG.map_size - 1 - cell[..., 0], cell[..., 1]], dim=-1)
        with torch.no_grad():
            here, there = phi(image), phi(image.flip(-1))
            torch.testing.assert_close(
                phi.describe(here.features, cell)[0, 0], found.points.descriptor[index]
            )
            torch.testing.assert_close(phi.describe(there.features, across)[0, 0], found.mirrored[index])


def test_processes_describe_their_share() -> None:
    phi, feed = _phi(), PixelFeed(PIXELS, torch.device("cpu"))
    whole = describe(phi, feed, CONFIG)
    done: list[tuple[int, int]] = []
    parts = [
        describe(phi, feed, CONFIG, lambda *progress: done.append(progress), Group(rank, 3))
        for rank in range(3)
    ]
    joined = concatenate([part.points for part in parts])
    assert torch.equal(joined.image_index, whole.points.image_index)
    torch.testing.assert_close(joined.xy, whole.points.xy)
    mirrored = [part.mirrored for part in parts if part.mirrored is not None]
    assert whole.mirrored is not None
    torch.testing.assert_close(torch.cat(mirrored), whole.mirrored)
    assert done == [(2, 2), (3, 3), (3, 3)]
