"""One iteration of each kind of training: draw a batch, deform it, and return the losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from training.keypoints.data import Labeled
from training.keypoints.homography import (
    inverse,
    random_homographies,
    random_pairs,
    uniform,
    warp_images,
    warp_points,
)
from training.keypoints.light import relight
from training.keypoints.losses import cell_labels, descriptor_loss, detector_loss, whole_cells
from training.keypoints.network import Trainee
from training.keypoints.settings import Settings

Step = Callable[[], dict[str, Tensor]]
EDGE = 4  # pixels at a view's edge where no descriptors are compared


def _draw(source: Labeled, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random images [count, 1, S, S] in 0..1 and their points."""
    chosen = torch.randint(len(source), (count,), generator=generator, device=generator.device)
    return source.images[chosen, None].float() / 255, source.points[chosen]


def shapes_step(network: Trainee, shapes: Labeled, settings: Settings, generator: torch.Generator) -> Step:
    """The detector alone, on shapes alone."""
    views, batch = settings.shape_views, settings.training.batch
    side = shapes.images.shape[-1]

    def step() -> dict[str, Tensor]:
        images, points = _draw(shapes, batch, generator)
        homography = random_homographies(batch, side, views, generator)
        seen, inside = warp_images(images, homography, views.side)
        labels = cell_labels(warp_points(points, inverse(homography)), views.side, generator)
        logits, _ = network(relight(seen, settings.light, generator))
        return {"detector": detector_loss(logits, labels, whole_cells(inside))}

    return step


def joint_step(
    network: Trainee, labeled: Labeled, shapes: Labeled, settings: Settings, generator: torch.Generator
) -> Step:
    """Detector and descriptor on two views of each image."""
    rules, views = settings.training, settings.views
    exact = round(rules.batch * rules.joint_shapes)
    side = shapes.images.shape[-1]

    def step() -> dict[str, Tensor]:
        parts = _draw(shapes, exact, generator), _draw(labeled, rules.batch - exact, generator)
        images, points = (torch.cat(pair) for pair in zip(*parts, strict=True))
        ahead = torch.cat(random_pairs(rules.batch, side, views, generator))  # first views, then second
        back = inverse(ahead)
        seen, inside = warp_images(images.repeat(2, 1, 1, 1), ahead, views.side)
        negative = torch.rand(rules.batch, generator=generator, device=images.device) < rules.inverted
        logits, descriptors = network(relight(seen, settings.light, generator, negative.repeat(2)))

        labels = cell_labels(warp_points(points.repeat(2, 1, 1), back), views.side, generator)
        known = detector_loss(logits, labels, whole_cells(inside))
        first, second, valid = common_places(points, ahead, back, views.side, side, settings, generator)
        one, two = descriptors[: rules.batch], descriptors[rules.batch :]
        described = descriptor_loss(one, two, first, second, valid, rules.temperature, rules.apart)
        return {"detector": known, "descriptor": rules.descriptor_weight * described}

    return step


def common_places(
    points: Tensor,
    ahead: Tensor,
    back: Tensor,
    view_side: int,
    side: int,
    settings: Settings,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Places at which the descriptors of two views are compared: labeled points and random ones.

    Args:
        points: [B, P, 2] in pixels of the images, NaN where there are none.
        ahead: [2B, 3, 3] from first views, then second views, to the images; `back` the inverse.

    Returns:
        [B, M, 2] in the first views, [B, M, 2] in the second, [B, M] bool: seen in both.
    """
    rules = settings.training
    labeled = round(rules.described * rules.described_points)
    lots = torch.rand(points.shape[:2], generator=generator, device=points.device)
    lots = lots.masked_fill(points[..., 0].isnan(), -1.0)
    drawn = lots.topk(min(labeled, points.shape[1]), dim=1).indices
    chosen = points.gather(1, drawn[..., None].expand(-1, -1, 2))
    anywhere = uniform((len(points), rules.described - chosen.shape[1], 2), 0, view_side - 1, generator)
    places = torch.cat((chosen, warp_points(anywhere, ahead[: len(points)])), dim=1)
    one, two = warp_points(places, back[: len(points)]), warp_points(places, back[len(points) :])
    valid = ((places >= 0) & (places <= side - 1)).all(dim=-1)
    for xy in (one, two):
        valid = valid & ((xy >= EDGE) & (xy <= view_side - 1 - EDGE)).all(dim=-1)
    return one.nan_to_num(0.0), two.nan_to_num(0.0), valid
