"""The images that discovery with features learns from: chosen, and turned the same way if necessary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from selfmark.config import override
from selfmark.correspondence.agreement import unexplained_fraction
from selfmark.correspondence.zero_shot import find_foreground
from selfmark.features.cells import describe_cells, describe_colors
from selfmark.features.direction import describe_rotations, fit_template, match_template, rotate_mask
from selfmark.features.encoder import Encoder
from selfmark.features.orientation import measure_uprightness, rotation_matrices
from selfmark.images.augment import invert_affine, move_points, points_inside, warp_images
from selfmark.images.feed import PixelFeed
from selfmark.images.store import ImageStore, allocate_pixels
from selfmark.pipeline_steps import create_generator, report_out_of_memory
from selfmark.points import Keypoints
from selfmark.run.devices import uses_bf16
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced

_CHECKED_IMAGES = 200  # images on which it is decided how objects are turned
_COMPARED_IMAGES = 2_000  # images on which landmarks are compared; more would change nothing


class UsedImages(NamedTuple):
    """The images that landmarks are found in.

    store:  all training images
    rows:   [N] int64, rows of the images used
    matrix: [N, 2, 3] turns an image of the store; the identity if objects are upright
    feed:   the used images, turned
    shard:  the part of them that this process describes
    """

    store: ImageStore
    rows: Tensor
    matrix: Tensor
    feed: PixelFeed
    shard: slice


class Directions(NamedTuple):
    """Directions of the objects in N images.

    template:    [D, g, g], see `features.direction.DirectionTemplate`
    offset:      angle in radians, see there
    angle:       [N] radians, turns each image so that its object faces the common direction
    consistency: [] float32, see `features.direction.DirectionTemplate`
    """

    template: Tensor
    offset: Tensor
    angle: Tensor
    consistency: Tensor


def select_images(run: Run, store: ImageStore, device: torch.device) -> UsedImages:
    """Choose at most `features.max_images` images, evenly spaced."""
    rows = torch.from_numpy(evenly_spaced(len(store), run.config.features.max_images))
    pixels = store.pixels if len(rows) == len(store) else store.pixels[rows]
    feed = PixelFeed(pixels, device, run.config.runtime.device_fraction)
    identity = torch.eye(2, 3, device=device).expand(len(rows), 2, 3)
    return UsedImages(store, rows, identity, feed, run.group.shard(len(rows)))


def settle_orientation(run: Run, encoder: Encoder, feed: PixelFeed) -> None:
    """Find out how the objects are turned, unless the settings say so, and settle the settings for it."""
    settings = run.config.features
    found = settings.orientation
    if found in ("auto", "not-upright"):
        accuracy = consistency = None
        if found == "auto":
            sample = feed.pixels[checked_rows(len(feed))].to(feed.device)
            accuracy = round(measure_uprightness(encoder, sample, run.config.runtime.predict_batch), 4)
        # On GPUs the accuracy may differ slightly between processes, but their decision must not.
        if run.group.any(accuracy is None or accuracy < settings.min_upright_accuracy):
            consistency = round(float(_fit_common_direction(run, encoder, feed).consistency), 4)
            found = "turned" if consistency >= settings.min_direction_consistency else "any"
        else:
            found = "upright"
        run.log(
            "orientation",
            upright_accuracy=accuracy,
            direction_consistency=consistency,
            orientation=found,
        )
    rotation = {"turned": settings.turned_rotation, "any": settings.rotation}
    run.settle_settings(
        {
            "features.orientation": found,
            "augment.rotation": rotation.get(found, run.config.augment.rotation),
        }
    )


def find_directions(run: Run, encoder: Encoder, feed: PixelFeed) -> Directions:
    """Find the direction of the object in every image; the result is stored in the run folder."""

    def compute() -> dict[str, Tensor]:
        return _compute_directions(run, encoder, feed)._asdict()

    return Directions(**_load_or_compute(run, "directions", feed.device, compute))


class _CommonDirection(NamedTuple):
    """The direction that all objects are turned to, see `Directions`."""

    template: Tensor
    offset: Tensor
    consistency: Tensor


def _fit_common_direction(run: Run, encoder: Encoder, feed: PixelFeed) -> _CommonDirection:
    """Fit the template of the common direction to some images; the result is stored in the run folder."""

    def compute() -> dict[str, Tensor]:
        return _compute_common_direction(run, encoder, feed)._asdict()

    return _CommonDirection(**_load_or_compute(run, "direction-template", feed.device, compute))


def _load_or_compute(
    run: Run, name: str, device: torch.device, compute: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Load tensors of the run folder, or compute them without gradients and store them."""

    @torch.no_grad()
    def compute_in_batches() -> dict[str, Tensor]:
        with report_out_of_memory(run, "runtime.predict_batch", run.config.runtime.predict_batch):
            return compute()

    return run.load_or_compute_tensors(name, device, compute_in_batches)


def _describe_rotations(run: Run, encoder: Encoder, pixels: Tensor, device: torch.device) -> Tensor:
    """Describe rotated copies of images [B, 3, S, S] uint8, see `describe_rotations`."""
    with torch.autocast(device.type, torch.bfloat16, enabled=uses_bf16(run.config.runtime, device)):
        return describe_rotations(encoder, pixels.to(device).float() / 255, run.config.features)


def _compute_common_direction(run: Run, encoder: Encoder, feed: PixelFeed) -> _CommonDirection:
    config, group, device = run.config, run.group, feed.device
    describe = partial(_describe_rotations, run, encoder, device=device)
    sample = PixelFeed(feed.pixels[checked_rows(len(feed))], device)
    batch = config.runtime.predict_batch
    generator = create_generator(config, "directions", device)
    foreground = _find_sample_foreground(run, encoder, sample, generator)
    parts = [(describe(pixels), describe(pixels.flip(-1))) for pixels in sample.sequential_batches(batch)]
    views, mirrored = (torch.cat(column) for column in zip(*parts, strict=True))
    grid = views.shape[-1]
    template, offset, consistency = fit_template(
        views * rotate_mask(foreground, config.features, grid),
        mirrored * rotate_mask(foreground.flip(-1), config.features, grid),
        config.features,
        generator,
    )
    # On GPUs these may differ slightly between processes.
    group.broadcast(template)
    group.broadcast(offset)
    agreed = group.broadcast(torch.tensor([consistency], device=device))
    return _CommonDirection(template, offset, agreed[0])


def _compute_directions(run: Run, encoder: Encoder, feed: PixelFeed) -> Directions:
    template, offset, consistency = _fit_common_direction(run, encoder, feed)
    rows, on_progress = run.group.shard(len(feed)), run.progress("finding directions")
    angles: list[Tensor] = []
    done = 0
    for pixels in feed.sequential_batches(run.config.runtime.predict_batch, rows):
        views = _describe_rotations(run, encoder, pixels, feed.device)
        angles.append(match_template(views, template) + offset)
        done += len(pixels)
        on_progress(done, rows.stop - rows.start)
    return Directions(template, offset, run.group.gather_rows(torch.cat(angles)), consistency)


def _find_sample_foreground(
    run: Run, encoder: Encoder, sample: PixelFeed, generator: torch.Generator
) -> Tensor:
    """Mark the cells [N, h, w] of the object in images that are not turned; all processes do the same."""
    everything = slice(0, len(sample))
    plain = override(run.config, {"features.orientation": "upright", "features.places": "ignored"})
    cells = describe_cells(encoder, sample, everything, plain, run.path)
    colors = describe_colors(sample, everything, run.config.runtime.predict_batch)
    return find_foreground(cells, colors, run.config.features, generator)


def turn_images(run: Run, images: UsedImages, angle: Tensor) -> UsedImages:
    """Rotate the used images by angles [N] in radians, so that their objects face the same way."""
    feed, runtime, size = images.feed, run.config.runtime, run.config.images.size
    matrix = rotation_matrices(angle, size)
    shape = (len(feed), 3, size, size)
    turned = allocate_pixels(shape, runtime.store_gigabytes, run.path, "turned.u8")
    done = 0
    for pixels in feed.sequential_batches(runtime.predict_batch):
        part = slice(done, done + len(pixels))
        turned[part] = warp_images(pixels.float(), matrix[part]).round().byte()
        done += len(pixels)
    return images._replace(matrix=matrix, feed=PixelFeed(turned, feed.device, runtime.device_fraction))


def used_store(images: UsedImages) -> ImageStore:
    """Return the used images as a store."""
    store = images.store
    if len(images.rows) == len(store):
        return store
    return store.select([store.refs[row] for row in images.rows.tolist()])


def turn_keypoints(points: Keypoints, images: UsedImages) -> Keypoints:
    """Return the keypoints of the used images where they are in the turned images.

    Args:
        points: keypoints of all training images.
        images: the used images.

    Returns:
        Keypoints of the used images, with `image_index` counted among these; those that are turned out of
        their image are left out.
    """
    rows = images.rows.to(points.image_index.device)
    index = torch.searchsorted(rows, points.image_index).clamp_max(len(rows) - 1)
    xy = move_points(points.xy[:, None], images.matrix.to(points.xy.device)[index])
    is_inside = points_inside(xy, images.feed.pixels.shape[-1])[:, 0]
    is_used = rows[index] == points.image_index
    return replace(points, xy=xy[:, 0], image_index=index).select(is_used & is_inside)


def turn_back(points: Keypoints, images: UsedImages) -> Keypoints:
    """Return keypoints of the turned images where they are in the training images, counted among all."""
    matrix = invert_affine(images.matrix).to(points.xy.device)[points.image_index]
    xy = move_points(points.xy[:, None], matrix)[:, 0]
    return replace(points, xy=xy, image_index=images.rows.to(xy.device)[points.image_index])


def checked_rows(num_images: int) -> Tensor:
    """Return the rows of evenly spaced images, on which it is decided how images are treated."""
    return torch.from_numpy(evenly_spaced(num_images, _CHECKED_IMAGES))


def compare_landmarks(
    predictors: Tensor, targets: Tensor, matrix: Tensor, present: Tensor | None = None
) -> float:
    """Return the error of predicting landmarks from others, over that of guessing their mean.

    Both are turned back first: in turned images little but noise is left to predict, in few images nothing.

    Args:
        predictors: [N, K, 2] landmarks of N used images.
        targets: [N, L, 2] landmarks to predict.
        matrix: [N, 2, 3] how the images were turned, see `UsedImages`.
        present: [N, L] bool, targets that count; None: all.
    """
    rows = torch.from_numpy(evenly_spaced(len(matrix), _COMPARED_IMAGES))
    back = invert_affine(matrix)
    inputs, outputs = (move_points(xy, back).cpu()[rows].numpy() for xy in (predictors, targets))
    counted = np.ones(outputs.shape[:2], dtype=bool) if present is None else present.cpu()[rows].numpy()
    return unexplained_fraction(inputs, outputs, counted)
