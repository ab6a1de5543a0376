"""Build the steps of the training phases. A step draws a batch, deforms it, and returns the losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from training.keypoints.data import LabeledImages
from training.keypoints.homography import (
    draw_uniform,
    invert,
    sample_homographies,
    sample_pairs,
    warp_images,
    warp_points,
)
from training.keypoints.light import relight
from training.keypoints.losses import (
    compute_descriptor_loss,
    compute_detector_loss,
    find_full_cells,
    label_cells,
)
from training.keypoints.network import TrainingNetwork
from training.keypoints.settings import Settings

Step = Callable[[], dict[str, Tensor]]
EDGE = 4  # no descriptors are compared within this many pixels of the edge of a view


def _draw(source: LabeledImages, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Choose random images; return them as [count, 1, S, S] in 0..1 with their points [count, P, 2]."""
    chosen = torch.randint(len(source), (count,), generator=generator, device=generator.device)
    return source.images[chosen, None].float() / 255, source.points[chosen]


def build_shapes_step(
    network: TrainingNetwork, shapes: LabeledImages, settings: Settings, generator: torch.Generator
) -> Step:
    """Return the step of the first phase, which trains only the detector, on shapes with known points."""
    view_settings, batch = settings.shape_views, settings.training.batch
    side = shapes.images.shape[-1]

    def step() -> dict[str, Tensor]:
        images, points = _draw(shapes, batch, generator)
        homography = sample_homographies(batch, side, view_settings, generator)
        view, is_inside = warp_images(images, homography, view_settings.side)
        labels = label_cells(warp_points(points, invert(homography)), view_settings.side, generator)
        logits, _ = network(relight(view, settings.light, generator))
        return {"detector": compute_detector_loss(logits, labels, find_full_cells(is_inside))}

    return step


def build_joint_step(
    network: TrainingNetwork,
    labeled: LabeledImages,
    shapes: LabeledImages,
    settings: Settings,
    generator: torch.Generator,
) -> Step:
    """Return the step of a joint phase, which trains detector and descriptor on two views of each image.

    Args:
        network: Network to train.
        labeled: Images with labels from homographic adaptation.
        shapes: Images of shapes with known points.
        settings: Settings of the training.
        generator: Random generator.
    """
    options, view_settings = settings.training, settings.views
    num_shapes = round(options.batch * options.joint_shapes)
    side = shapes.images.shape[-1]

    def step() -> dict[str, Tensor]:
        parts = _draw(shapes, num_shapes, generator), _draw(labeled, options.batch - num_shapes, generator)
        images, points = (torch.cat(pair) for pair in zip(*parts, strict=True))
        # The batch contains all first views, then all second views.
        to_image = torch.cat(sample_pairs(options.batch, side, view_settings, generator))
        to_view = invert(to_image)
        view, is_inside = warp_images(images.repeat(2, 1, 1, 1), to_image, view_settings.side)
        is_inverted = torch.rand(options.batch, generator=generator, device=images.device) < options.inverted
        logits, descriptors = network(relight(view, settings.light, generator, is_inverted.repeat(2)))

        labels = label_cells(warp_points(points.repeat(2, 1, 1), to_view), view_settings.side, generator)
        detector_loss = compute_detector_loss(logits, labels, find_full_cells(is_inside))
        first, second, valid = choose_positions(
            points, to_image, to_view, view_settings.side, side, settings, generator
        )
        first_maps, second_maps = descriptors[: options.batch], descriptors[options.batch :]
        descriptor_loss = compute_descriptor_loss(
            first_maps, second_maps, first, second, valid, options.temperature, options.apart
        )
        return {"detector": detector_loss, "descriptor": options.descriptor_weight * descriptor_loss}

    return step


def choose_positions(
    points: Tensor,
    to_image: Tensor,
    to_view: Tensor,
    view_side: int,
    side: int,
    settings: Settings,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the positions where the descriptors of two views are compared: labeled points and random ones.

    Args:
        points: Labeled points [B, P, 2] in image pixels, padded with NaN.
        to_image: Homographies [2B, 3, 3] from views to images: B of the first views, followed by B of the
            second views.
        to_view: Inverse of `to_image`.
        view_side: Side of the views in pixels.
        side: Side of the images in pixels.
        settings: Settings of the training.
        generator: Random generator.

    Returns:
        Positions [B, M, 2] in the first views, positions [B, M, 2] in the second views, and a mask [B, M] of
        positions that are visible in both.
    """
    options = settings.training
    num_labeled = round(options.described * options.described_points)
    priority = torch.rand(points.shape[:2], generator=generator, device=points.device)
    priority = priority.masked_fill(points[..., 0].isnan(), -1.0)
    index = priority.topk(min(num_labeled, points.shape[1]), dim=1).indices
    selected = points.gather(1, index[..., None].expand(-1, -1, 2))
    num_random = options.described - selected.shape[1]
    random_xy = draw_uniform((len(points), num_random, 2), 0, view_side - 1, generator)
    positions = torch.cat((selected, warp_points(random_xy, to_image[: len(points)])), dim=1)
    first_xy = warp_points(positions, to_view[: len(points)])
    second_xy = warp_points(positions, to_view[len(points) :])
    valid = ((positions >= 0) & (positions <= side - 1)).all(dim=-1)
    for xy in (first_xy, second_xy):
        valid = valid & ((xy >= EDGE) & (xy <= view_side - 1 - EDGE)).all(dim=-1)
    return first_xy.nan_to_num(0.0), second_xy.nan_to_num(0.0), valid
