"""Sample homographies, and warp batches of images and points on the device.

A view is a deformed image. A homography maps pixels of the view to pixels of the image, because warping looks
up each pixel of the view in the image. Pixel centers are at integer coordinates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from training.keypoints.settings import Views


def draw_uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    """Return uniform random numbers on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device) * (high - low) + low


def sample_homographies(count: int, side: int, views: Views, generator: torch.Generator) -> Tensor:
    """Return random maps [count, 3, 3] from view pixels (side `views.side`) to image pixels (side `side`)."""
    turn = draw_uniform((count,), -1, 1, generator) * math.radians(views.rotation)
    zoom = draw_uniform((count,), math.log(views.zoom[0]), math.log(views.zoom[1]), generator).exp()
    stretch = 1 + draw_uniform((count,), -1, 1, generator) * views.stretch / 2
    shear = draw_uniform((count,), -1, 1, generator) * views.shear
    tilt = draw_uniform((count, 2), -1, 1, generator) * views.perspective / views.side
    shift = draw_uniform((count, 2), -1, 1, generator) * views.shift * side

    def build_matrices(*rows: tuple[Tensor | float, ...]) -> Tensor:
        # Constants become tensors on the device, because a CUDA graph cannot capture a copy from the host.
        tensors = [
            [entry if isinstance(entry, Tensor) else torch.full_like(turn, entry) for entry in row]
            for row in rows
        ]
        return torch.stack([torch.stack(row, dim=-1) for row in tensors], dim=-2)

    view_center, image_center = (views.side - 1) / 2, (side - 1) / 2
    to_center = build_matrices((1.0, 0.0, -view_center), (0.0, 1.0, -view_center), (0.0, 0.0, 1.0))
    perspective = build_matrices((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (tilt[:, 0], tilt[:, 1], 1.0))
    scale = build_matrices((zoom * stretch, shear * zoom, 0.0), (0.0, zoom / stretch, 0.0), (0.0, 0.0, 1.0))
    cos, sin = turn.cos(), turn.sin()
    rotation = build_matrices((cos, -sin, 0.0), (sin, cos, 0.0), (0.0, 0.0, 1.0))
    to_image = shift + image_center
    from_center = build_matrices((1.0, 0.0, to_image[:, 0]), (0.0, 1.0, to_image[:, 1]), (0.0, 0.0, 1.0))
    return from_center @ rotation @ scale @ perspective @ to_center


def sample_pairs(count: int, side: int, views: Views, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return homographies of two views that show about the same part of each image, 2 x [count, 3, 3]."""
    # Both views of an image get this shift in addition to their own shifts.
    roam = draw_uniform((count, 2, 1), -1, 1, generator) * views.roam * side

    def sample() -> Tensor:
        homography = sample_homographies(count, side, views, generator)
        return torch.cat((homography[:, :2] + roam * homography[:, 2:], homography[:, 2:]), dim=1)

    return sample(), sample()


def invert(homography: Tensor) -> Tensor:
    """Return the inverse homographies [B, 3, 3], from image pixels to view pixels.

    The cross products of the rows are the columns of the inverse up to a factor, which does not matter for a
    homography. The factor is chosen to keep the numbers close to 1.
    """
    a, b, c = homography.unbind(dim=-2)
    columns = (torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b))
    result = torch.stack(columns, dim=-1)
    return result / result[..., 2:, 2:]


def warp_points(xy: Tensor, homography: Tensor) -> Tensor:
    """Map points [B, P, 2] through homographies [B, 3, 3]; NaN stays NaN."""
    mapped = F.pad(xy, (0, 1), value=1.0) @ homography.transpose(1, 2)
    return mapped[..., :2] / mapped[..., 2:]


def map_pixels(homography: Tensor, side: int) -> Tensor:
    """Return the positions [B, side, side, 2] in the image of all pixels of square views."""
    steps = torch.arange(side, device=homography.device, dtype=homography.dtype)
    by_column, by_row, fixed = (homography[:, :, i, None, None] for i in range(3))
    mapped = by_column * steps[None, :] + (by_row * steps[:, None] + fixed)  # [B, 3, side, side]
    return (mapped[:, :2] / mapped[:, 2:]).movedim(1, -1)


def warp_images(
    images: Tensor, homography: Tensor, side: int, padding: str = "reflection"
) -> tuple[Tensor, Tensor]:
    """Warp images [B, C, S, S] into square views.

    Args:
        images: Images [B, C, S, S].
        homography: Maps [B, 3, 3] from view pixels to image pixels.
        side: Side of the views in pixels.
        padding: What a view shows outside the image: the mirror image ("reflection"; a plain edge would look
            like structure), or zero ("zeros").

    Returns:
        The views [B, C, side, side], and a mask [B, side, side] of pixels that lie inside the image.
    """
    xy = map_pixels(homography, side)
    last = images.shape[-1] - 1
    is_inside = ((xy >= 0) & (xy <= last)).all(dim=-1)
    grid = (xy + 0.5) * (2 / images.shape[-1]) - 1
    views = F.grid_sample(images, grid.to(images.dtype), "bilinear", padding, align_corners=False)
    return views, is_inside
