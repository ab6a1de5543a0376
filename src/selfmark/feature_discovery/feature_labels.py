"""Find the labels that discovery with features starts from: zero-shot landmarks and labeled keypoints.

A cell is a square of 8 x 8 pixels with one feature vector. Zero-shot landmarks are clusters of the cells that
show the object. These landmarks exist in every image, but their positions are exact only to the size of a
cell. Keypoints have exact positions, and the features of their cells tell which part they lie on. Labeling
keypoints this way is the paper's correspondence recovery (Sec. 3.3) with pretrained features as descriptors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.correspondence.recovery import DescribedPoints, gather_labels, label_keypoints
from selfmark.correspondence.zero_shot import find_foreground, find_part_centroids, place_parts
from selfmark.feature_discovery.feature_images import UsedImages, turn_keypoints
from selfmark.features.cells import describe_cells, describe_colors, remove_stored_cells
from selfmark.features.encoder import CELL, Encoder
from selfmark.keypoints.first_keypoints import detect_first_keypoints
from selfmark.pipeline import choose_landmark_count, find_first_keypoints, load_first_keypoints
from selfmark.pipeline_steps import create_generator, report_out_of_memory
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.folder import Run
from selfmark.train.objectives import LandmarkTable, tabulate_landmarks

_LABEL_PREFIX = "keypoints."  # prefix of the names of the keypoint labels in points/zero-shot.safetensors


class FoundLandmarks(NamedTuple):
    """K landmarks, or candidates for landmarks, in N images and in their mirror images.

    xy:             [N, K, 2] network pixels
    score:          [N, K]
    mirrored_xy:    [N, K, 2] landmarks of the mirror image, mapped back to the image
    mirrored_score: [N, K]
    """

    xy: Tensor
    score: Tensor
    mirrored_xy: Tensor
    mirrored_score: Tensor

    def select(self, chosen: Tensor) -> FoundLandmarks:
        """Keep the landmarks with these indices [L]."""
        return FoundLandmarks(*(values[:, chosen] for values in self))


class FeatureLabels(NamedTuple):
    """Candidate landmarks and labels that are found with features alone, before any training.

    There are C candidates, of which K become landmarks later.

    centroids: [C, D] features of the candidates, unit vectors
    zero_shot: positions of the candidates in the used images, see `UsedImages`
    keypoints: labeled keypoints of the used images; None if the first round learns zero-shot landmarks
    """

    centroids: Tensor
    zero_shot: FoundLandmarks
    keypoints: LandmarkTable | None


class _DescribedCells(NamedTuple):
    """Features of the cells in the images of this process.

    features:   [N, D, h, w] float16
    mirrored:   [N, D, h, w] features of the same cells in the mirror images
    foreground: [N, h, w] bool, cells of the object
    """

    features: Tensor
    mirrored: Tensor
    foreground: Tensor


def find_feature_labels(run: Run, encoder: Encoder, images: UsedImages) -> FeatureLabels:
    """Find the zero-shot landmarks of the used images, and label their keypoints if the settings say so."""

    def compute() -> dict[str, Tensor]:
        batch = run.config.runtime.predict_batch
        with report_out_of_memory(run, "runtime.predict_batch", batch), run.report_disk_errors():
            try:
                return _compute_labels(run, encoder, images)
            finally:
                remove_stored_cells(run.path)

    tensors = run.load_or_compute_tensors("zero-shot", images.feed.device, compute)
    if run.config.K == 0:  # The tensors were loaded, so K was chosen before the run was interrupted.
        run.apply_landmark_count()
    label_names = [name for name in tensors if name.startswith(_LABEL_PREFIX)]
    labels = {name.removeprefix(_LABEL_PREFIX): tensors.pop(name) for name in label_names}
    centroids = tensors.pop("centroids")
    keypoints = LandmarkTable.from_positions(**labels) if labels else None
    return FeatureLabels(centroids, FoundLandmarks(**tensors), keypoints)


def _compute_labels(run: Run, encoder: Encoder, images: UsedImages) -> dict[str, Tensor]:
    """Return the zero-shot landmarks and the labels of the keypoints as named tensors."""
    settings, group, device = run.config.features, run.group, images.feed.device
    describe = partial(describe_cells, encoder, images.feed, images.shard, run.config, run.path)
    features = group.run_on_all(lambda: describe(on_progress=run.progress("computing features")))
    mirrored_features = group.run_on_all(
        lambda: describe(is_mirrored=True, on_progress=run.progress("features of mirror images"))
    )
    generator = create_generator(run.config, "zero-shot", device)
    colors = describe_colors(images.feed, images.shard, run.config.runtime.predict_batch)
    foreground = find_foreground(features, colors, settings, generator, group)
    cells = _DescribedCells(features, mirrored_features, foreground)
    counts = torch.stack([foreground.sum(), torch.ones_like(foreground).sum()])
    num_foreground, num_cells = group.all_sum(counts.float()).tolist()
    run.log("foreground", fraction=round(num_foreground / num_cells, 4))
    if run.config.K == 0:
        points = _select_own_keypoints(find_first_keypoints(run, images.store, device), images)
        described = describe_object_keypoints(points, cells, images.shard.start)
        choose_landmark_count(run, described, len(images.feed), device)
    num_candidates = run.config.num_candidates
    if num_candidates > num_foreground:
        num_candidates = run.config.K
    centroids = find_part_centroids(features, foreground, num_candidates, settings, generator, group)
    placed = place_parts(features, centroids, settings.sharpness)
    mirrored = place_parts(mirrored_features, centroids, settings.sharpness)
    gathered = (group.gather_rows(values) for values in (*placed, *mirrored))
    tensors = {"centroids": centroids, **FoundLandmarks(*gathered)._asdict()}
    if run.config.method == "self-training" and settings.labels_keypoints:
        labels = _label_keypoints(run, images, cells, num_candidates)
        tensors |= {f"{_LABEL_PREFIX}{name}": value for name, value in labels.items()}
    return tensors


def _label_keypoints(
    run: Run, images: UsedImages, cells: _DescribedCells, num_candidates: int
) -> dict[str, Tensor]:
    """Detect keypoints, cluster those on the object into candidate landmarks, and return their labels.

    The result is empty if there are too few keypoints or labels; see `_cluster_keypoints`.
    """
    described = describe_object_keypoints(_detect_keypoints(run, images), cells, images.shard.start)
    return _cluster_keypoints(run, described, num_candidates, len(images.feed), images.feed.device)


def _find_cells(xy: Tensor, grid: int) -> tuple[Tensor, Tensor]:
    """Return the row [P] and the column [P] of the cell of each point [P, 2], in `grid` x `grid` cells."""
    column, row = ((xy + 0.5) / CELL).long().clamp(0, grid - 1).unbind(dim=1)
    return row, column


def _cluster_keypoints(
    run: Run, described: DescribedPoints, num_candidates: int, num_images: int, device: torch.device
) -> dict[str, Tensor]:
    """Cluster keypoints into candidate landmarks and return their labels.

    The result is empty if there are fewer keypoints than candidates, or if too few candidates have a label,
    counted over all images (`features.min_labeled_fraction`).
    """
    config, settings = run.config, run.config.features
    num_points = sum(run.group.gather_counts(len(described.points)))
    tensors: dict[str, Tensor] = {}
    if num_points >= num_candidates:
        generator = create_generator(config, "keypoint labels", device)
        labeled = label_keypoints(described, num_candidates, config.correspondence, generator, run.group)
        tensors = _tabulate(gather_labels(labeled, run.group), num_images, config)
    labeled_fraction = float(tensors["present"].float().mean()) if tensors else 0.0
    is_used = labeled_fraction >= settings.min_labeled_fraction
    run.log(
        "keypoint_labels",
        points_per_image=round(num_points / num_images, 2),
        labeled_fraction=round(labeled_fraction, 4),
        is_used=is_used,
    )
    return tensors if is_used else {}


def _detect_keypoints(run: Run, images: UsedImages) -> Keypoints:
    """Detect keypoints in this process's images; `image_index` is 0 for its first image.

    Weak keypoints, which Stage 1 would leave out, are used as well: the features of their cells still tell
    which part they lie on.
    """
    config, device = run.config, images.feed.device
    if config.keypoints.detector == "file":
        return _select_own_keypoints(load_first_keypoints(run, images.store, device), images)
    detector = replace(
        config.keypoints,
        threshold=config.features.keypoint_threshold,
        nms_radius=config.features.keypoint_nms_radius,
        max_points=config.features.max_keypoints,
    )
    rows = images.rows[images.shard]
    detected = run.group.run_on_all(
        lambda: detect_first_keypoints(
            images.store.pixels[rows],
            images.store.bounds[rows.numpy()],
            detector,
            device,
            config.runtime.predict_batch,
            run.progress("detecting keypoints"),
        )
    )
    store_row = rows.to(detected.image_index.device)[detected.image_index]
    return _select_own_keypoints(replace(detected, image_index=store_row), images)


def _tabulate(labeled: LabeledPoints, num_images: int, config: Config) -> dict[str, Tensor]:
    """Return the labels as keyword arguments of `LandmarkTable.from_positions`."""
    mirrored_label = labeled.label if config.flip.partner == "itself" else labeled.mirrored_label
    xy, present = tabulate_landmarks(labeled.points, labeled.label, num_images, labeled.clusters)
    mirrored_xy, mirrored_present = tabulate_landmarks(
        labeled.points, mirrored_label, num_images, labeled.clusters
    )
    return {
        "xy": xy,
        "present": present,
        "mirrored_xy": mirrored_xy,
        "mirrored_present": mirrored_present,
    }


def _select_own_keypoints(points: Keypoints, images: UsedImages) -> Keypoints:
    """Select the keypoints of this process's images, and move them to their positions in the turned images.

    Args:
        points: keypoints whose `image_index` refers to all training images.
        images: the used images.

    Returns:
        Keypoints whose `image_index` is 0 for this process's first image.
    """
    turned, own = turn_keypoints(points, images), images.shard
    chosen = turned.select((turned.image_index >= own.start) & (turned.image_index < own.stop))
    return replace(chosen, image_index=chosen.image_index - own.start)


def describe_object_keypoints(points: Keypoints, cells: _DescribedCells, first_image: int) -> DescribedPoints:
    """Select the keypoints on the object and describe them by the features of their cells.

    Args:
        points: keypoints whose `image_index` is 0 for this process's first image.
        cells: the cells of this process's images.
        first_image: index of this process's first image among the images of all processes.

    Returns:
        Keypoints whose `image_index` refers to the images of all processes.
    """
    row, column = _find_cells(points.xy, cells.foreground.shape[-1])
    is_on_object = cells.foreground[points.image_index, row, column]
    kept = points.select(is_on_object)
    # The features may be in host memory while the keypoints are on the GPU.
    device = cells.features.device
    image = kept.image_index.to(device)
    row, column = row[is_on_object].to(device), column[is_on_object].to(device)

    def read_features(features: Tensor) -> Tensor:
        return features[image, :, row, column].to(cells.foreground.device, torch.float32)

    described = Keypoints(kept.xy, kept.image_index + first_image, kept.score, read_features(cells.features))
    return DescribedPoints(described, read_features(cells.mirrored))
