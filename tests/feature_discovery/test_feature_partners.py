"""Test that mirror partners must look alike: two eyes stay partners, but a fore paw and a hind paw do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Config, override
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.feature_discovery.feature_partners import check_partners
from selfmark.images.feed import PixelFeed

PARTNERS = LandmarkPartners((1, 0, 2), (True, True, True))
# The positions of a left landmark, of a right landmark, and of one on the axis in six images.
XY = torch.tensor([(11.5, 19.5), (51.5, 19.5), (31.5, 51.5)]).expand(6, 3, 2)


class _FakeEncoder:
    """Describes a cell by its mean colors and by the change of its brightness from left to right."""

    def describe(self, images: Tensor) -> Tensor:
        right_half = F.avg_pool2d(images[..., 4:], (8, 4), (8, 8))
        left_half = F.avg_pool2d(images, (8, 4), (8, 8))
        return torch.cat([left_half + right_half, 2 * (right_half - left_half)], dim=1)


def _draw(left: int, right: int, is_symmetric: bool) -> PixelFeed:
    """Draw two patches of the colors `left` and `right` (0 red, 1 green, 2 blue).

    Both patches are brighter on their outer side if `is_symmetric`, otherwise on their right side.
    """
    pixels = torch.full((6, 3, 64, 64), 20, dtype=torch.uint8)
    ramp = torch.linspace(60, 250, 16).to(torch.uint8)
    pixels[:, left, 12:28, 4:20] = ramp.flip(0) if is_symmetric else ramp
    pixels[:, right, 12:28, 44:60] = ramp
    pixels[:, 2, 44:60, 24:40] = 200
    return PixelFeed(pixels, torch.device("cpu"))


def _check(feed: PixelFeed, places: str = "used") -> tuple[LandmarkPartners, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    config = override(Config(), {"features.name": "efficientnet-lite0", "features.places": places})
    run = SimpleNamespace(
        config=config, log=lambda event, **values: events.append({"event": event, **values})
    )
    return check_partners(cast(Any, run), cast(Any, _FakeEncoder()), feed, XY, PARTNERS), events


def test_partners_that_look_like_each_other_in_the_mirror_are_kept() -> None:
    partners, events = _check(_draw(left=0, right=0, is_symmetric=True))
    assert partners == PARTNERS
    assert events == []


def test_different_parts_that_exchange_places_are_not_partners() -> None:
    partners, events = _check(_draw(left=0, right=1, is_symmetric=False))
    assert partners.mirror == (0, 1, 2)
    assert partners.unpaired == (0, 1)
    assert "landmarks 0 and 1 exchange places" in events[0]["text"]


def test_partners_that_were_found_by_appearance_are_not_checked() -> None:
    assert _check(_draw(left=0, right=1, is_symmetric=False), places="ignored") == (PARTNERS, [])
