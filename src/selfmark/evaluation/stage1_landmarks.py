"""Find the landmarks that a detector was trained on: those of Stage 1, or zero-shot landmarks.

Stage 2 always predicts all K landmarks. Stage 1 finds a landmark in an image only if a keypoint is assigned
to its cluster. The paper compares the errors of both stages. The descriptors of Stage 1 also show how well
the landmarks are separated.

Zero-shot landmarks are the places where pretrained features resemble the centroids of clusters of features.
The detector of a run with pretrained features is trained on zero-shot landmarks, unless the run uses the
landmarks of Stage 1.

Most methods of other papers have only one stage. For these, the landmarks are those of the detector itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.config import STRIDE, Config, Flip
from selfmark.correspondence.assignment import assign_clusters
from selfmark.correspondence.describe import describe_images
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.features.cells import normalize_features
from selfmark.features.encoder import CELL
from selfmark.features.loading import load_encoder
from selfmark.features.orientation import rotation_matrices
from selfmark.images.augment import invert_affine, move_points, warp_images
from selfmark.images.feed import PixelFeed
from selfmark.model.card import read_card
from selfmark.model.feature_network import ZeroShotPsi
from selfmark.model.heatmaps import heat_centroids, sample_descriptors, sample_maps, to_pixels
from selfmark.model.landmark_network import prepare_landmark_network
from selfmark.model.network import Phi, prepare_network
from selfmark.model.soft_argmax import SoftArgmaxPsi
from selfmark.model.turned_network import DirectionFinder
from selfmark.points import FloatArray, LabeledPoints
from selfmark.run.folder import Run
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.run.tensor_files import read_tensors, require_finite


class Stage1Finder(Protocol):
    """Finds landmarks of Stage 1, zero-shot landmarks, or the landmarks of a method with one stage."""

    @property
    def centroids(self) -> Tensor:
        """Centroids of the landmarks, [K, D]."""

    @property
    def config(self) -> Config:
        """Settings of the run."""

    def find(self, pixels: Tensor) -> Stage1Landmarks:
        """Find the landmarks of a batch of network images [B, 3, S, S] uint8."""


def load_stage1_finder(run: Run, device: torch.device | str) -> Stage1Finder:
    """Load Stage 1 of a finished run, or the zero-shot landmarks if the run's detector was trained on them.

    The methods of other papers, except mallis2020, have only one stage. For a method with one stage, the
    result finds the landmarks of the detector itself.
    """
    if run.config.is_from_another_paper and not run.config.merges_clusters:
        return SingleStage.load(run, device)
    uses_zero_shot = run.config.uses_features and _read_landmark_source(run) != "keypoints"
    stage1: Stage1Finder = ZeroShotStage1.load(run, device) if uses_zero_shot else Stage1.load(run, device)
    if run.config.features.orientation != "turned":
        return stage1
    return TurnedStage1(_load_direction_finder(run, torch.device(device)), stage1)


def _load_direction_finder(run: Run, device: torch.device) -> DirectionFinder:
    """Load the network that finds which way an object faces, for a run whose images were turned."""

    def raise_missing() -> dict[str, Tensor]:
        raise InputError(f"{run.path / 'points' / 'directions.safetensors'} is missing or damaged")

    stored, settings = run.load_or_compute_tensors("directions", device, raise_missing), run.config.features
    encoder = load_encoder(settings.name, device)
    finder = DirectionFinder(encoder, settings, stored["template"], stored["offset"])
    prepare_landmark_network(finder, device, run.config.runtime)
    return finder.eval()


def _read_landmark_source(run: Run) -> str:
    """Return what the detector of a run with features was trained on, as its model card states it."""
    return str(read_card(run.model_folder).provenance.get("landmarks", ""))


def _load_centroids(run: Run, device: torch.device) -> Tensor:
    """Return the centroids of the last clustering of a run."""

    def raise_unfinished() -> LabeledPoints:
        raise InputError(
            f"{run.path} has not finished Stage 1: finish it with 'selfmark discover -o {run.path} --resume'"
        )

    centroids = run.load_or_compute_labels("landmarks", device, raise_unfinished).centroids
    if centroids is None:
        raise InputError(
            f"{run.path / 'points' / 'landmarks.safetensors'} has no centroids, because an earlier "
            "version of selfmark wrote it: run 'selfmark discover' on the images again"
        )
    return centroids


@dataclass(frozen=True)
class ZeroShotStage1:
    """Finds zero-shot landmarks: pretrained features, compared with the centroids of K clusters.

    Attributes:
        network: The features and the centroids.
        config: Settings of the run.
        device: Device of the network.
    """

    network: ZeroShotPsi
    config: Config
    device: torch.device

    @classmethod
    def load(cls, run: Run, device: torch.device | str) -> ZeroShotStage1:
        """Load the zero-shot landmarks of a run with features."""
        device = torch.device(device)
        encoder = load_encoder(run.config.features.name, device)
        network = ZeroShotPsi(encoder, _load_centroids(run, device), run.config.features)
        prepare_landmark_network(network, device, run.config.runtime)
        return cls(network.eval(), run.config, device)

    @property
    def centroids(self) -> Tensor:
        """Centroids of the landmarks, [K, D]."""
        return self.network.centroids

    @torch.no_grad()
    def find(self, pixels: Tensor) -> Stage1Landmarks:
        """Find the landmarks of a batch of network images [B, 3, S, S] uint8; all are found."""
        features, maps = self.network.compute_features_and_heatmaps(pixels.to(self.device).float() / 255)
        cells = heat_centroids(maps).cells
        feature_cells = (cells + 0.5) / (CELL // STRIDE) - 0.5  # from cells of heatmaps to cells of features
        sampled = normalize_features(sample_maps(features, feature_cells), self.config.features)
        return _build_complete_landmarks(cells, sampled, self.centroids)


@dataclass(frozen=True)
class SingleStage:
    """Finds the landmarks of a method with one stage.

    Attributes:
        network: The detector.
        centroids: [K, D] mean descriptors of the landmarks.
        config: Settings of the run.
        device: Device of the network.
    """

    network: SoftArgmaxPsi
    centroids: Tensor
    config: Config
    device: torch.device

    @classmethod
    def load(cls, run: Run, device: torch.device | str) -> SingleStage:
        """Load the detector of a run."""
        device = torch.device(device)
        network = Detector.load(run.path, device).psi
        if not isinstance(network, SoftArgmaxPsi):
            raise InputError(
                f"{run.model_folder} contains a model of another method than {run.config.method}"
            )
        return cls(network, _load_centroids(run, device), run.config, device)

    @torch.no_grad()
    def find(self, pixels: Tensor) -> Stage1Landmarks:
        """Find the landmarks of a batch of network images [B, 3, S, S] uint8; all are found."""
        features, maps = self.network.compute_features_and_heatmaps(pixels.to(self.device).float() / 255)
        cells = heat_centroids(maps).cells
        return _build_complete_landmarks(cells, sample_descriptors(features, cells), self.centroids)


def _build_complete_landmarks(cells: Tensor, descriptor: Tensor, centroids: Tensor) -> Stage1Landmarks:
    """Return the landmarks of a finder that finds all K landmarks in every image.

    Args:
        cells: [B, K, 2] positions in cells of heatmaps.
        descriptor: [B, K, D] unit vectors.
        centroids: [K, D] centroids of the landmarks.
    """
    num_images, K = cells.shape[:2]
    flat = descriptor.flatten(0, 1).cpu().numpy()
    label = np.tile(np.arange(K), num_images)
    margin = compute_silhouette_margins(flat, label, centroids.cpu().numpy())
    return Stage1Landmarks(
        to_pixels(cells).cpu().numpy(),
        np.repeat(np.arange(num_images), K),
        label,
        flat,
        margin.astype(np.float32),
    )


@dataclass(frozen=True)
class TurnedStage1:
    """Rotates images until their objects face the same way, and then finds landmarks.

    Attributes:
        direction_finder: Finds which way the object of an image faces.
        rotated_finder: Finds landmarks in the rotated images.
    """

    direction_finder: DirectionFinder
    rotated_finder: Stage1Finder

    @property
    def centroids(self) -> Tensor:
        """Centroids of the landmarks, [K, D]."""
        return self.rotated_finder.centroids

    @property
    def config(self) -> Config:
        """Settings of the run."""
        return self.rotated_finder.config

    @torch.no_grad()
    def find(self, pixels: Tensor) -> Stage1Landmarks:
        """Find the landmarks of a batch of network images [B, 3, S, S] uint8."""
        device = self.direction_finder.template.device
        images = pixels.to(device).float()
        matrix = rotation_matrices(self.direction_finder(images / 255), pixels.shape[-1])
        found = self.rotated_finder.find(warp_images(images, matrix).round().byte())
        xy = move_points(torch.from_numpy(found.xy).to(device), invert_affine(matrix))
        return replace(found, xy=xy.cpu().numpy())


def _load_left_out_centroids(run: Run, device: torch.device) -> Tensor | None:
    """Return the centroids of the clusters of Stage 1 that are no landmarks; None if all are landmarks."""

    def raise_missing() -> LabeledPoints:
        raise InputError(f"{run.path / 'points' / 'keypoint-landmarks.safetensors'} is missing or damaged")

    def raise_missing_choice() -> dict[str, Tensor]:
        raise InputError(f"{run.path / 'points' / 'keypoints-1-chosen.safetensors'} is missing or damaged")

    if not run.config.uses_features:
        return None
    labeled = run.load_or_compute_labels("keypoint-landmarks", device, raise_missing)
    if labeled.centroids is None or labeled.clusters == run.config.K:
        return None
    chosen = run.load_or_compute_tensors("keypoints-1-chosen", device, raise_missing_choice)["chosen"]
    is_left_out = torch.ones(labeled.clusters, dtype=torch.bool, device=device)
    is_left_out[chosen] = False
    return labeled.centroids[is_left_out]


@dataclass(frozen=True)
class Stage1:
    """Finds the landmarks of Stage 1: keypoints, assigned to clusters by their descriptors.

    Attributes:
        phi: The network of Stage 1.
        centroids: [K, D] centroids of the landmarks.
        config: Settings of the run.
        device: Device of the network and the centroids.
        left_out: [C, D] centroids of clusters that were not chosen as landmarks; None if all were chosen.
            Keypoints of these clusters belong to no landmark.
    """

    phi: Phi
    centroids: Tensor
    config: Config
    device: torch.device
    left_out: Tensor | None = None

    @classmethod
    def load(cls, run: Run, device: torch.device | str) -> Stage1:
        """Load Stage 1 of a run that has completed its last clustering."""
        device = torch.device(device)
        centroids = _load_centroids(run, device)
        path = run.path / "checkpoints" / "stage1.safetensors"
        # Of all stored tensors, only the weights are used: the random state of a GPU cannot be set on a CPU.
        tensors, _ = read_tensors(path)
        weights = {
            name.removeprefix("network."): value
            for name, value in tensors.items()
            if name.startswith("network.")
        }
        phi = load_phi(run, weights, path, device)
        return cls(phi, centroids, run.config, device, _load_left_out_centroids(run, device))

    def find(self, pixels: Tensor) -> Stage1Landmarks:
        """Find the landmarks of a batch of network images [B, 3, S, S] uint8."""
        return _find_in_batch(self, pixels)


def load_phi(run: Run, weights: dict[str, Tensor], path: Path, device: torch.device) -> Phi:
    """Build the network of Stage 1 with these weights, which were read from `path`."""
    phi = Phi(run.config.network).eval()
    prepare_network(phi, device, run.config.runtime)  # makes descriptors bitwise equal to those in training
    require_finite(weights, path)
    try:
        phi.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"{path} does not fit {run.path / 'config.yaml'}") from error
    return phi


@dataclass(frozen=True)
class Stage1Landmarks:
    """Landmarks that Stage 1 found in N images, as a table with gaps and as a flat list of P points.

    Attributes:
        xy: [N, K, 2] float32, network pixels; NaN where a landmark was not found in the image.
        image: [P] int64, index of the image of each point.
        label: [P] int64, landmark of each point, 0..K-1.
        descriptor: [P, D] float32, unit vectors.
        margin: [P] float32, -1..1, silhouette of the point, see `compute_silhouette_margins`.
    """

    xy: npt.NDArray[np.float32]
    image: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    descriptor: npt.NDArray[np.float32]
    margin: npt.NDArray[np.float32]

    @property
    def found(self) -> npt.NDArray[np.bool_]:
        """Mask [N, K] of the landmarks that were found."""
        return np.isfinite(self.xy[..., 0])


def find_stage1_landmarks(
    stage1: Stage1Finder, pixels: Tensor, group: ProcessGroup = SINGLE_PROCESS
) -> Stage1Landmarks:
    """Find the landmarks of network images [N, 3, S, S] uint8, N >= 1.

    The landmarks of an image do not depend on other images. So batches are processed one after the other,
    which limits memory, or by several processes, each of which gets the landmarks of all images.
    """
    if pixels.ndim != 4 or len(pixels) == 0:
        raise ValueError(f"pixels must be [N, 3, S, S] with at least one image, got {tuple(pixels.shape)}")
    step = stage1.config.runtime.predict_batch

    def find(rows: slice) -> list[Tensor]:
        parts = [stage1.find(block) for block in torch.split(pixels[rows], step)]
        arrays = (
            np.concatenate([part.xy for part in parts]),
            np.concatenate([part.image + rows.start + index * step for index, part in enumerate(parts)]),
            np.concatenate([part.label for part in parts]),
            np.concatenate([part.descriptor for part in parts]),
            np.concatenate([part.margin for part in parts]),
        )
        return [torch.from_numpy(array) for array in arrays]

    return Stage1Landmarks(*(tensor.numpy() for tensor in group.compute_shared(len(pixels), step, find)))


def _find_in_batch(stage1: Stage1, pixels: Tensor) -> Stage1Landmarks:
    # Mirrored images are not described: they only serve to find mirror partners, which are already known.
    config = replace(stage1.config, flip=Flip(train=False, test=False))
    points = describe_images(stage1.phi, PixelFeed(pixels, stage1.device), config).points.to(stage1.device)
    if points.descriptor is None:
        raise ValueError("Phi returned points without descriptors")
    centroids = stage1.centroids
    if stage1.left_out is not None:
        centroids = torch.cat([centroids, stage1.left_out])
    labels = assign_clusters(
        points.descriptor, points.image_index, centroids, config.correspondence.assignment
    )
    kept = (labels >= 0) & (labels < len(stage1.centroids))
    image, label = points.image_index[kept].cpu().numpy(), labels[kept].cpu().numpy()
    descriptor = points.descriptor[kept].cpu().numpy()
    xy = np.full((len(pixels), len(stage1.centroids), 2), np.nan, dtype=np.float32)
    xy[image, label] = points.xy[kept].cpu().numpy()
    margin = compute_silhouette_margins(descriptor, label, stage1.centroids.cpu().numpy())
    return Stage1Landmarks(xy, image, label, descriptor, margin.astype(np.float32))


def compute_silhouette_margins(
    descriptor: FloatArray, label: npt.NDArray[np.int64], centroids: FloatArray
) -> FloatArray:
    """Compute the simplified silhouette of each point, [P]: (b - a) / max(a, b).

    Here a is the distance to the point's own centroid, and b is the distance to the nearest other centroid.
    The result is 1 at the own centroid, 0 halfway between the two centroids, and negative if the other
    centroid is nearer. The result is NaN if there is only one centroid.

    >>> centroids = np.array([[0.0, 0.0], [10.0, 0.0]])
    >>> points = np.array([[0.0, 0.0], [5.0, 0.0], [8.0, 0.0]])
    >>> compute_silhouette_margins(points, np.array([0, 0, 0]), centroids).tolist()
    [1.0, 0.0, -0.75]

    Args:
        descriptor: [P, D] descriptors of P points.
        label: [P] own centroid of each point, 0..K-1.
        centroids: [K, D] centroids of the landmarks.
    """
    points, centers = np.asarray(descriptor, np.float64), np.asarray(centroids, np.float64)
    if len(centers) < 2:
        return np.full(len(points), np.nan)
    squared = (points**2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
    distance = np.sqrt(np.maximum(squared, 0.0))
    rows = np.arange(len(points))
    own = distance[rows, label]
    distance[rows, label] = np.inf
    nearest_other = distance.min(axis=1)
    larger = np.maximum(own, nearest_other)
    margins: FloatArray = np.where(larger > 0, (nearest_other - own) / np.where(larger > 0, larger, 1.0), 0.0)
    return margins
