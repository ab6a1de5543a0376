"""Check by appearance whether two landmarks are mirror partners.

A place is the position of a part in the image. If places help to recognize parts, a landmark of the mirror
image is found partly by its place. This is right for faces: the left eye takes the place of the right eye.
But if all animals of a video are seen from the side and face right, then in the mirror image, the fore paw
takes the place of the hind paw. The two paws would become mirror partners, although a fore paw never looks
like a hind paw.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.correspondence.mirror import (
    LandmarkPartners,
    drop_unlike_partners,
    measure_partner_likeness,
)
from selfmark.features.encoder import CELL, Encoder
from selfmark.images.feed import PixelFeed
from selfmark.model.heatmaps import sample_descriptors
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced

_SAMPLE = 40  # images in which the landmarks are compared
# Pairs with a lower likeness (see `measure_partner_likeness`) are dropped. For wrong pairs of a mouse seen
# from the side and from below, we measured a likeness of 0.01 to 0.12. For pairs of faces and of the demo's
# animals, we measured 0.51 or more.
_MIN_LIKENESS = 0.3


def check_partners(
    run: Run, encoder: Encoder, feed: PixelFeed, xy: Tensor, partners: LandmarkPartners
) -> LandmarkPartners:
    """Drop the pairs of mirror partners that look different in the mirror, and log them.

    If places are ignored, all pairs are kept, because they were found by appearance alone.

    Args:
        run: the run.
        encoder: pretrained network, with its original weights.
        feed: the used images.
        xy: [N, K, 2] landmarks of these images, network pixels.
        partners: mirror partners of the landmarks.
    """
    has_pairs = any(partner != index for index, partner in enumerate(partners.mirror))
    if not has_pairs or not run.config.features.used_place_weight:
        return partners
    rows = torch.from_numpy(evenly_spaced(len(feed), _SAMPLE))
    original, mirrored = _describe_landmarks(encoder, feed, rows, xy, run.config.runtime.predict_batch)
    likeness = measure_partner_likeness(original, mirrored, partners)
    checked = drop_unlike_partners(partners, likeness, _MIN_LIKENESS)
    dropped = [
        f"{index} and {partner}"
        for index, partner in enumerate(partners.mirror)
        if index < partner and checked.mirror[index] != partner
    ]
    if dropped:
        run.log(
            "note",
            text=f"landmarks {', '.join(dropped)} exchange places in mirror images but do not look alike, so "
            "they are not mirror partners",
        )
    return checked


@torch.no_grad()
def _describe_landmarks(
    encoder: Encoder, feed: PixelFeed, rows: Tensor, xy: Tensor, batch: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Describe the landmarks of some images, and the same points of the objects in the mirror images.

    Returns:
        Descriptors of the landmarks, and of their mirrored counterparts, [N, K, D] each.
    """
    original, mirrored = [], []
    for part in torch.split(rows, batch):
        images = feed.pixels[part.to(feed.pixels.device)].to(feed.device).float() / 255
        cells = (xy[part.to(xy.device)].to(feed.device) + 0.5) / CELL - 0.5
        original.append(sample_descriptors(encoder.describe(images), cells).cpu())
        mirrored.append(sample_descriptors(encoder.describe(images.flip(-1)).flip(-1), cells).cpu())
    return torch.cat(original).numpy(), torch.cat(mirrored).numpy()
