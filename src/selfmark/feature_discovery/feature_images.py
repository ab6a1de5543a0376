"""Load, choose and rotate the images that discovery with features learns from.

If `features.orientation` is `turned`, the images are rotated so that their objects face the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from selfmark.config import Config, override
from selfmark.correspondence.agreement import unexplained_fraction
from selfmark.correspondence.zero_shot import find_foreground
from selfmark.errors import InputError
from selfmark.features.cells import describe_cells, describe_colors
from selfmark.features.direction import describe_rotations, fit_template, match_template, rotate_mask
from selfmark.features.encoder import Encoder
from selfmark.features.loading import load_encoder
from selfmark.features.orientation import measure_uprightness, rotation_matrices
from selfmark.images.augment import invert_affine, move_points, points_inside, warp_images
from selfmark.images.feed import PixelFeed
from selfmark.images.store import ImageStore, allocate_pixels
from selfmark.pipeline_steps import create_generator, load_training_images, report_out_of_memory
from selfmark.points import FloatArray, Keypoints
from selfmark.run.devices import uses_bf16
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced

_CHECKED_IMAGES = 200  # size of the sample that decides `features.orientation` and `features.places`
_FIRST_PASS_IMAGES = 64  # the default encoder describes this many images per pass on a GPU
_COMPARED_IMAGES = 2_000  # images in which landmarks are compared; more would hardly change the result


class UsedImages(NamedTuple):
    """The N training images that landmarks are found in.

    store:  all training images
    rows:   [N] int64, rows of the used images in the store
    matrix: [N, 2, 3] affine matrices from each used image in the store to its turned copy in the feed; the
            identity if images are not turned
    feed:   the used images, turned by `matrix`
    shard:  the part of the used images that belongs to this process
    """

    store: ImageStore
    rows: Tensor
    matrix: Tensor
    feed: PixelFeed
    shard: slice


class Directions(NamedTuple):
    """Directions of the objects in N images.

    template:    [D, g, g], see `features.direction.DirectionTemplate`
    offset:      [] radians, see `features.direction.DirectionTemplate`
    angle:       [N] radians; rotating each image by its angle makes all objects face the common direction
    consistency: [] float32, see `features.direction.DirectionTemplate`
    """

    template: Tensor
    offset: Tensor
    angle: Tensor
    consistency: Tensor


def load_images_and_encoder(run: Run, device: torch.device) -> tuple[ImageStore, Encoder]:
    """Load the training images of a run and its encoder.

    The first passes on a GPU take seconds: CUDA is initialized, libraries are loaded, and cuDNN plans the
    convolutions. This thread makes these passes while another thread reads the images. They must be made in
    this thread, because cuDNN reuses the plans of convolutions only in the thread that made the plans.

    Raises:
        InputError: if images or features cannot be used.
    """
    name = run.config.features.name
    if device.type == "cpu" or run.group.size > 1:
        store, encoder = load_training_images(run), load_encoder(name, device)
    else:
        canceled = threading.Event()
        with ThreadPoolExecutor(1, "selfmark-read") as executor:
            # Run in a copy of this thread's context, which contains the variable that `share_reading` sets.
            # With this variable, each video is decoded only once for all views.
            read = partial(copy_context().run, load_training_images, run, canceled.is_set)
            reading = executor.submit(read)
            try:
                encoder = load_encoder(name, device)
                _run_first_passes(encoder, run.config, device)
                store = reading.result()
            except BaseException:  # including KeyboardInterrupt
                canceled.set()
                raise
    encoder.check_size(store.pixels[:1])
    return store, encoder


@torch.no_grad()
def _run_first_passes(encoder: Encoder, config: Config, device: torch.device) -> None:
    """Run the first passes of an encoder, so that later passes are fast.

    These passes have the precisions and the number of images that most passes of a run have. ONNX models are
    left out, because their passes may take long.
    """
    if not encoder.is_trainable:
        return
    bf16 = uses_bf16(config.runtime, device)
    # If a pass fails, for example with too little memory, later passes fail as well and report the error.
    with suppress(InputError, RuntimeError):
        images = torch.zeros(_FIRST_PASS_IMAGES, 3, config.images.size, config.images.size, device=device)
        for is_autocast in sorted({False, bf16}):
            with torch.autocast(device.type, torch.bfloat16, enabled=is_autocast):
                encoder.describe(images)


def select_images(run: Run, store: ImageStore, device: torch.device) -> UsedImages:
    """Choose at most `features.max_images` images, evenly spaced."""
    rows = torch.from_numpy(evenly_spaced(len(store), run.config.features.max_images))
    pixels = store.pixels if len(rows) == len(store) else store.pixels[rows]
    feed = PixelFeed(pixels, device, run.config.runtime.device_fraction)
    identity = torch.eye(2, 3, device=device).expand(len(rows), 2, 3)
    return UsedImages(store, rows, identity, feed, run.group.shard(len(rows)))


def settle_orientation(run: Run, encoder: Encoder, feed: PixelFeed) -> None:
    """Decide from the images which way objects face, unless the settings specify it.

    `features.orientation` becomes `upright`, `turned` (all objects can be rotated to a common direction) or
    `any` (there is no common direction). Unless objects are upright, `augment.rotation` changes as well.
    """
    settings = run.config.features
    orientation = settings.orientation
    if orientation in ("auto", "not-upright"):
        accuracy = consistency = None
        if orientation == "auto":
            sample = feed.pixels[checked_rows(len(feed))].to(feed.device)
            batch = run.config.runtime.predict_batch
            accuracy = round(measure_uprightness(encoder, sample, batch, run.group), 4)
        # On GPUs the accuracy may differ slightly between processes, but their decision must not.
        if run.group.any(accuracy is None or accuracy < settings.min_upright_accuracy):
            consistency = round(float(_fit_common_direction(run, encoder, feed).consistency), 4)
            orientation = "turned" if consistency >= settings.min_direction_consistency else "any"
        else:
            orientation = "upright"
        run.log(
            "orientation",
            upright_accuracy=accuracy,
            direction_consistency=consistency,
            orientation=orientation,
        )
    rotation = {"turned": settings.turned_rotation, "any": settings.rotation}
    run.settle_settings(
        {
            "features.orientation": orientation,
            "augment.rotation": rotation.get(orientation, run.config.augment.rotation),
        }
    )


def find_directions(run: Run, encoder: Encoder, feed: PixelFeed) -> Directions:
    """Find the direction of the object in every image, or load the directions from the run folder."""

    def compute() -> dict[str, Tensor]:
        return _compute_directions(run, encoder, feed)._asdict()

    return Directions(**_load_or_compute(run, "directions", feed.device, compute))


class _CommonDirection(NamedTuple):
    """The direction that all objects are turned to; see `Directions` for the fields."""

    template: Tensor
    offset: Tensor
    consistency: Tensor


def _fit_common_direction(run: Run, encoder: Encoder, feed: PixelFeed) -> _CommonDirection:
    """Fit the template of the common direction to a sample of images, or load it from the run folder."""

    def compute() -> dict[str, Tensor]:
        return _compute_common_direction(run, encoder, feed)._asdict()

    return _CommonDirection(**_load_or_compute(run, "direction-template", feed.device, compute))


def _load_or_compute(
    run: Run, name: str, device: torch.device, compute: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Load tensors from the run folder, or compute them without gradients and store them."""

    @torch.no_grad()
    def compute_without_gradients() -> dict[str, Tensor]:
        with report_out_of_memory(run, "runtime.predict_batch", run.config.runtime.predict_batch):
            return compute()

    return run.load_or_compute_tensors(name, device, compute_without_gradients)


def _describe_rotations(run: Run, encoder: Encoder, pixels: Tensor, device: torch.device) -> Tensor:
    """Describe rotated copies of images [B, 3, S, S] uint8; see `describe_rotations`."""
    with torch.autocast(device.type, torch.bfloat16, enabled=uses_bf16(run.config.runtime, device)):
        return describe_rotations(encoder, pixels.to(device).float() / 255, run.config.features)


def _compute_common_direction(run: Run, encoder: Encoder, feed: PixelFeed) -> _CommonDirection:
    """Fit the template to the foreground of a sample of images; every process uses the same sample."""
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
    # On GPUs, the results may differ slightly between processes, so all processes use the results of rank 0.
    group.broadcast(template)
    group.broadcast(offset)
    agreed_consistency = group.broadcast(torch.tensor([consistency], device=device))
    return _CommonDirection(template, offset, agreed_consistency[0])


def _compute_directions(run: Run, encoder: Encoder, feed: PixelFeed) -> Directions:
    """Match every image to the template; the processes share the images."""
    template, offset, consistency = _fit_common_direction(run, encoder, feed)
    batch, on_progress = run.config.runtime.predict_batch, run.progress("finding directions")

    def match(rows: slice) -> list[Tensor]:
        angles: list[Tensor] = []
        done = 0
        for pixels in feed.sequential_batches(batch, rows):
            views = _describe_rotations(run, encoder, pixels, feed.device)
            angles.append(match_template(views, template) + offset)
            done += len(pixels)
            on_progress(done, rows.stop - rows.start)
        return [torch.cat(angles)]

    (angle,) = run.group.compute_shared(len(feed), batch, match)
    return Directions(template, offset, angle, consistency)


def _find_sample_foreground(
    run: Run, encoder: Encoder, sample: PixelFeed, generator: torch.Generator
) -> Tensor:
    """Mark the cells [N, h, w] of the object in a sample of images, which are not turned yet.

    Every process computes the masks of all images of the sample.
    """
    all_rows = slice(0, len(sample))
    plain = override(run.config, {"features.orientation": "upright", "features.places": "ignored"})
    cells = describe_cells(encoder, sample, all_rows, plain, run.path)
    colors = describe_colors(sample, all_rows, run.config.runtime.predict_batch)
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


def build_used_store(images: UsedImages) -> ImageStore:
    """Return a store of the used images, as they were before turning."""
    store = images.store
    if len(images.rows) == len(store):
        return store
    return store.select([store.refs[row] for row in images.rows.tolist()])


def turn_keypoints(points: Keypoints, images: UsedImages) -> Keypoints:
    """Select the keypoints of the used images, and move them to their positions in the turned images.

    Args:
        points: keypoints whose `image_index` refers to all training images.
        images: the used images.

    Returns:
        Keypoints whose `image_index` refers to the used images. Keypoints that move out of their image are
        left out.
    """
    rows = images.rows.to(points.image_index.device)
    # Keypoints of images that are not used get the index of some used image; `is_used` removes them below.
    index = torch.searchsorted(rows, points.image_index).clamp_max(len(rows) - 1)
    xy = move_points(points.xy[:, None], images.matrix.to(points.xy.device)[index])
    is_inside = points_inside(xy, images.feed.pixels.shape[-1])[:, 0]
    is_used = rows[index] == points.image_index
    return replace(points, xy=xy[:, 0], image_index=index).select(is_used & is_inside)


def turn_keypoints_back(points: Keypoints, images: UsedImages) -> Keypoints:
    """Move keypoints of the turned images back to where they are in the training images.

    Args:
        points: keypoints whose `image_index` refers to the used images.
        images: the used images.

    Returns:
        Keypoints whose `image_index` refers to all training images.
    """
    matrix = invert_affine(images.matrix).to(points.xy.device)[points.image_index]
    xy = move_points(points.xy[:, None], matrix)[:, 0]
    return replace(points, xy=xy, image_index=images.rows.to(xy.device)[points.image_index])


def checked_rows(num_images: int) -> Tensor:
    """Return the rows of the sample that decides `features.orientation` and `features.places`.

    The rows are evenly spaced.
    """
    return torch.from_numpy(evenly_spaced(num_images, _CHECKED_IMAGES))


def compare_landmarks(
    predictors: Tensor, targets: Tensor, matrix: Tensor, present: Tensor | None = None
) -> float:
    """Return the error of predicting `targets` from `predictors`, relative to guessing the mean target.

    Positions are compared in the images before turning. After turning, all objects face the same way, so that
    little but noise is left to predict.

    Args:
        predictors: [N, K, 2] landmarks of N used images.
        targets: [N, L, 2] landmarks to predict.
        matrix: [N, 2, 3] how the images were turned, see `UsedImages`.
        present: [N, L] bool, targets that count; None for all.
    """
    rows = torch.from_numpy(evenly_spaced(len(matrix), _COMPARED_IMAGES)).to(matrix.device)
    inputs, outputs = (turn_positions_back(xy[rows], matrix[rows]) for xy in (predictors, targets))
    is_counted = np.ones(outputs.shape[:2], dtype=bool) if present is None else present[rows].cpu().numpy()
    return unexplained_fraction(inputs, outputs, is_counted)


def turn_positions_back(xy: Tensor, matrix: Tensor) -> FloatArray:
    """Return the positions [N, K, 2] of landmarks of turned images in the images before turning.

    Args:
        xy: [N, K, 2] landmarks of the turned images.
        matrix: [N, 2, 3] how the images were turned, see `UsedImages`.
    """
    return move_points(xy, invert_affine(matrix)).double().cpu().numpy()
