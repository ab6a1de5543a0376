"""Random homographies, and carrying images and points through them, many at a time on the device.

A homography here takes pixels of the *view* to pixels of the *image* it shows, which is what sampling needs.
Pixel centers lie at integers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from training.keypoints.settings import Views


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    """Random numbers on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device) * (high - low) + low


def random_homographies(count: int, side: int, views: Views, generator: torch.Generator) -> Tensor:
    """View pixels to image pixels, [count, 3, 3], for views of `views.side` and images of `side` pixels."""
    turn = uniform((count,), -1, 1, generator) * math.radians(views.rotation)
    zoom = uniform((count,), math.log(views.zoom[0]), math.log(views.zoom[1]), generator).exp()
    stretch = 1 + uniform((count,), -1, 1, generator) * views.stretch / 2
    shear = uniform((count,), -1, 1, generator) * views.shear
    tilt = uniform((count, 2), -1, 1, generator) * views.perspective / views.side
    shift = uniform((count, 2), -1, 1, generator) * views.shift * side

    def matrix(*rows: tuple[Tensor | float, ...]) -> Tensor:
        # Numbers are filled in on the device: a copy from the host could not be recorded as a CUDA graph.
        columns = [[v if isinstance(v, Tensor) else torch.full_like(turn, v) for v in row] for row in rows]
        return torch.stack([torch.stack(row, dim=-1) for row in columns], dim=-2)

    middle, center = (views.side - 1) / 2, (side - 1) / 2
    to_center = matrix((1.0, 0.0, -middle), (0.0, 1.0, -middle), (0.0, 0.0, 1.0))
    perspective = matrix((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (tilt[:, 0], tilt[:, 1], 1.0))
    scale = matrix((zoom * stretch, shear * zoom, 0.0), (0.0, zoom / stretch, 0.0), (0.0, 0.0, 1.0))
    cos, sin = turn.cos(), turn.sin()
    rotation = matrix((cos, -sin, 0.0), (sin, cos, 0.0), (0.0, 0.0, 1.0))
    back = matrix((1.0, 0.0, shift[:, 0] + center), (0.0, 1.0, shift[:, 1] + center), (0.0, 0.0, 1.0))
    return back @ rotation @ scale @ perspective @ to_center


def random_pairs(count: int, side: int, views: Views, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Homographies of two views of each image that see about the same part of it, 2 x [count, 3, 3]."""
    roam = uniform((count, 2, 1), -1, 1, generator) * views.roam * side

    def moved() -> Tensor:
        homography = random_homographies(count, side, views, generator)
        return torch.cat((homography[:, :2] + roam * homography[:, 2:], homography[:, 2:]), dim=1)

    return moved(), moved()


def inverse(homography: Tensor) -> Tensor:
    """Image pixels to view pixels, [B, 3, 3].

    The cross products of the rows are the columns of the inverse, but for a factor that a homography does not
    care about; it is chosen to keep the numbers near 1.
    """
    a, b, c = homography.unbind(dim=-2)
    columns = (torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b))
    result = torch.stack(columns, dim=-1)
    return result / result[..., 2:, 2:]


def warp_points(xy: Tensor, homography: Tensor) -> Tensor:
    """Points [B, P, 2] through [B, 3, 3]; NaN stays NaN."""
    mapped = F.pad(xy, (0, 1), value=1.0) @ homography.transpose(1, 2)
    return mapped[..., :2] / mapped[..., 2:]


def places(homography: Tensor, side: int) -> Tensor:
    """Where the pixels of square views of `side` lie in their images: [B, side, side, 2]."""
    steps = torch.arange(side, device=homography.device, dtype=homography.dtype)
    by_column, by_row, fixed = (homography[:, :, i, None, None] for i in range(3))
    mapped = by_column * steps[None, :] + (by_row * steps[:, None] + fixed)  # [B, 3, side, side]
    return (mapped[:, :2] / mapped[:, 2:]).movedim(1, -1)


def warp_images(
    images: Tensor, homography: Tensor, side: int, outside: str = "reflection"
) -> tuple[Tensor, Tensor]:
    """Views [B, C, side, side] of images [B, C, S, S], and which of their pixels lie in the image.

    Beyond the image the view shows its mirror image ("reflection"), since a bare edge would look like
    structure, or zero ("zeros").

    Returns:
        The views, and [B, side, side] bool.
    """
    xy = places(homography, side)
    last = images.shape[-1] - 1
    inside = ((xy >= 0) & (xy <= last)).all(dim=-1)
    grid = (xy + 0.5) * (2 / images.shape[-1]) - 1
    views = F.grid_sample(images, grid.to(images.dtype), "bilinear", outside, align_corners=False)
    return views, inside
