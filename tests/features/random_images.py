"""Draw images for the tests of encoders."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def random_images(count: int, size: int) -> Tensor:
    """Return smooth random images [B, 3, size, size] in 0..1."""
    coarse = torch.rand(count, 3, 12, 12, generator=torch.Generator().manual_seed(size))
    return F.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1)
