"""Draw random smooth warps of images: a similarity transform and a thin-plate spline.

Positions are in units of half the image side: -1 and 1 are the outer edges of the border pixels, as in
`grid_sample`. A warp g maps a position in the warped image to the position in the given image from which the
pixel is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Methods
from selfmark.train.batch_plan import BatchSlice


@dataclass(frozen=True)
class Warps:
    """One warp for each of B images.

    control: [G, 2], control points of the splines
    weight:  [B, G + 3, 2], weights of the radial functions, then of x, y and 1
    """

    control: Tensor
    weight: Tensor

    def __call__(self, positions: Tensor) -> Tensor:
        """Map positions [B, P, 2] of warped images to positions [B, P, 2] of the given images."""
        return _basis(positions, self.control) @ self.weight

    def apply(self, images: Tensor) -> Tensor:
        """Warp images [B, C, H, W]; outside an image, its border is repeated."""
        count, _, height, width = images.shape
        cells = cell_positions(height, width, images.device)
        # The cells are the same in all images, so the radial functions are computed once.
        grid = (_basis(cells[None], self.control) @ self.weight).view(count, height, width, 2)
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def random_warps(settings: Methods, part: BatchSlice, generator: torch.Generator) -> Warps:
    """Draw one random warp for each image of this process.

    Args:
        settings: strength of the warps.
        part: the part of the batch that this process computes. Random numbers are drawn for the whole batch.
        generator: source of the random numbers.
    """
    device, count = generator.device, part.total

    def normal(*shape: int) -> Tensor:
        return torch.randn((count, *shape), generator=generator, device=device)

    control, solution = _regular_grid(settings.warp_grid, device)
    angle = torch.deg2rad(settings.warp_rotation * normal())
    scale = torch.exp(settings.warp_scale * normal())
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    rotation = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
    moved = control @ rotation + settings.warp_shift * normal(1, 2)
    is_chosen = torch.rand((count, len(control), 1), generator=generator, device=device) < 0.5
    # Move all control points a little, and about half of them more, chosen at random.
    moved = moved + settings.warp_all * normal(len(control), 2)
    moved = moved + settings.warp_some * normal(len(control), 2) * is_chosen
    return Warps(control, solution @ part.take(moved))


def fit_warps(control: Tensor, targets: Tensor) -> Warps:
    """Return the thin-plate splines that map the control points [G, 2] to the targets [B, G, 2]."""
    return Warps(control, _solve_splines(control) @ targets)


def _solve_splines(control: Tensor) -> Tensor:
    """Return the matrix [G + 3, G] that maps the targets of the control points [G, 2] to the weights."""
    count = len(control)
    basis = _basis(control[None], control)[0]  # [G, G + 3]
    affine = F.pad(basis[:, count:].T, (0, 3))  # [3, G + 3]
    inverse: Tensor = torch.linalg.inv(torch.cat([basis, affine]))
    return inverse[:, :count]


@lru_cache(maxsize=8)
def _regular_grid(points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the control points [G, 2] of a grid of points x points, and the result of `_solve_splines`.

    The result is cached, because solving equations would make a GPU wait in every iteration.
    """
    side = torch.linspace(-1, 1, points, dtype=torch.float64)
    control = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1).reshape(-1, 2)
    return control.float().to(device), _solve_splines(control).float().to(device)


def cell_positions(height: int, width: int, device: torch.device) -> Tensor:
    """Return the centers [height * width, 2] of the cells of a map with this height and width, row by row."""
    y, x = ((torch.arange(n, device=device) + 0.5) * (2 / n) - 1 for n in (height, width))
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(-1, 2)


def _basis(positions: Tensor, control: Tensor) -> Tensor:
    """Return the values [B, P, G + 3] of the basis functions: r^2 log r^2 for each control point, x, y and 1.

    Args:
        positions: [B, P, 2].
        control: [G, 2] control points; r is the distance from a control point.
    """
    squared = (positions[:, :, None] - control).square().sum(-1)
    radial = torch.xlogy(squared, squared)
    return torch.cat([radial, positions, torch.ones_like(positions[..., :1])], dim=-1)
