"""Draw the target of the detector head: the maximum of Gaussians at the points of an image.

The kernel computes the distance to the nearest point, so it needs no separate map for each point.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfmark.model.kernels.launch import Recordable


@Recordable
@triton.jit
def _draw_kernel(cells, valid, out, points, size, scale, BLOCK: tl.constexpr):
    """Write exp(-scale * d^2) for BLOCK cells, where d is the distance to the nearest valid point."""
    image = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    cx, cy = (cell % size).to(tl.float32), (cell // size).to(tl.float32)
    smallest = tl.full([BLOCK], 1e9, tl.float32)
    for point in range(points):
        at = image * points + point
        dx, dy = cx - tl.load(cells + 2 * at), cy - tl.load(cells + 2 * at + 1)
        squared_distance = tl.where(tl.load(valid + at) != 0, dx * dx + dy * dy, 1e9)
        smallest = tl.minimum(smallest, squared_distance)
    tl.store(out + image * size * size + cell, tl.exp(-smallest * scale), mask=cell < size * size)


def draw_target_fused(cells: Tensor, valid: Tensor, size: int, sigma: float) -> Tensor:
    """Draw Gaussians at cells [B, P, 2] where `valid` [B, P] is True, like `model.heatmaps.draw_target`.

    Returns:
        [B, 1, size, size] float32.
    """
    out = torch.empty((len(cells), 1, size, size), device=cells.device)
    block = 512
    _draw_kernel[(len(cells), triton.cdiv(size * size, block))](
        cells.contiguous(), valid.to(torch.uint8), out, cells.shape[1], size, 1 / (2 * sigma**2), BLOCK=block
    )
    return out
