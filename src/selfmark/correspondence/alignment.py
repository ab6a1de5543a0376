"""Turn objects that face any direction the same way, by their landmarks.

Landmarks of symmetric parts, such as left and right legs seen from above, have the same features. In images
that are turned the same way, left and right are told apart by their places.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_CANDIDATES = 20  # images that are tried as the first mean shape
_ITERATIONS = 20
_SPLITS = 5  # divisions of the landmarks into two halves
_VARIANCE_FLOOR = 0.05  # of a landmark, in squared object sizes; keeps a single landmark from deciding alone


class Alignment(NamedTuple):
    """Rotations that turn N objects the same way.

    matrix:    [N, 2, 3] float32; rotates an image about its object, and moves the object to the image center
    size:      size of the objects in pixels: how far landmarks are from their mean, median over the images
    agreement: how well two halves of the landmarks agree on the rotations: 0 for unrelated ones, 1 for equal
               ones; 0 for fewer than four landmarks
    """

    matrix: Tensor
    size: float
    agreement: float


def align_shapes(xy: Tensor, side: int) -> Alignment:
    """Align the landmarks of N images by rotation, translation and scale (generalized Procrustes analysis).

    Landmarks that are at different places of the shape in different images get a small weight.

    Args:
        xy: [N, K, 2] landmarks in pixels.
        side: side of the images in pixels.
    """
    points = torch.view_as_complex(xy.double().cpu().contiguous())  # a product with e^(ia) rotates by a
    center, size, turn = _align(points)
    cosine, sine = turn[:, 0].real, turn[:, 0].imag
    rotation = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
    offset = (side - 1) / 2 - rotation @ torch.view_as_real(center[:, 0])[..., None]
    matrix = torch.cat([rotation, offset], dim=-1).float().to(xy.device)
    return Alignment(matrix, float(size.median()), _measure_agreement(points))


def _measure_agreement(points: Tensor) -> float:
    """Align two halves of the landmarks separately and return how well their rotations agree.

    The result is the median over several divisions into halves.
    """
    landmarks = points.shape[1]
    if landmarks < 4:
        return 0.0
    generator = torch.Generator().manual_seed(0)
    agreements = []
    for _ in range(_SPLITS):
        order = torch.randperm(landmarks, generator=generator)
        turns = [_align(points[:, half])[2] for half in order.chunk(2)]
        # The two mean shapes may differ by any angle; only changes of the difference matter.
        agreements.append(float((turns[0] * turns[1].conj()).mean().abs()))
    return sorted(agreements)[_SPLITS // 2]


def _align(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the center, the size and the rotation of each image, see `_fit_rotation`."""
    weight = torch.ones(points.shape[1], dtype=torch.float64)
    shape = _choose_first_shape(points)
    for _ in range(_ITERATIONS):
        center, size, turn = _fit_rotation(points, shape, weight)
        turned = (points - center) / size * turn
        shape = torch.complex(turned.real.median(dim=0).values, turned.imag.median(dim=0).values)
        shape = shape - _mean(shape, weight)
        variance = (turned - shape).abs().square().median(dim=0).values
        weight = 1 / (variance + _VARIANCE_FLOOR)
    return center, size, turn


def _choose_first_shape(points: Tensor) -> Tensor:
    """Return the shape [K] of the image that the other images are most similar to."""
    weight = torch.ones(points.shape[1], dtype=torch.float64)
    best, best_error = points[0], torch.inf
    for row in torch.linspace(0, len(points) - 1, min(len(points), _CANDIDATES)).long():
        center, size, _ = _fit_rotation(points[row][None], points[row], weight)
        candidate = (points[row] - center[0]) / size[0]
        center, size, turn = _fit_rotation(points, candidate, weight)
        error = float(((points - center) / size * turn - candidate).abs().square().mean(dim=1).median())
        if error < best_error:
            best, best_error = candidate, error
    return best


def _fit_rotation(points: Tensor, shape: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the center, the size and the rotation, each [N, 1], that map points [N, K] to a shape [K]."""
    center = _mean(points, weight)[:, None]
    centered = points - center
    size = _mean(centered.abs().square(), weight)[:, None].sqrt().clamp_min(1e-6)
    product = _mean(centered.conj() * shape, weight)[:, None]
    return center, size, product / product.abs().clamp_min(1e-12)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean over the landmarks, the last dimension."""
    return (values * weight).sum(dim=-1) / weight.sum()
