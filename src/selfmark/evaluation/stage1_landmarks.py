"""Stage 1 as a detector with gaps: Phi and the centroids of the last clustering, applied to any images.

Stage 2 always answers for all K landmarks; Stage 1 answers only where a keypoint was found and its cluster
was free. The paper compares the two, and the descriptors show how well the landmarks keep apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.config import Config, Flip
from selfmark.correspondence.assignment import assign_clusters
from selfmark.correspondence.describe import describe_images
from selfmark.errors import InputError
from selfmark.images.feed import PixelFeed
from selfmark.model.network import Phi, prepare_network
from selfmark.points import FloatArray, LabeledPoints
from selfmark.run.folder import Run
from selfmark.run.tensor_files import read_tensors


@dataclass(frozen=True)
class Stage1:
    """Phi and the K centroids [K, D] of the last clustering, both on `device`."""

    phi: Phi
    centroids: Tensor
    config: Config
    device: torch.device

    @classmethod
    def load(cls, run: Run, device: torch.device | str) -> Stage1:
        """Stage 1 of a run that got at least as far as its last clustering."""
        device = torch.device(device)

        def unfinished() -> LabeledPoints:
            raise InputError(
                f"{run.path} has not finished Stage 1: "
                f"finish it with 'selfmark discover -o {run.path} --resume'"
            )

        centroids = run.load_or_compute_labels("landmarks", device, unfinished).centroids
        if centroids is None:
            raise InputError(
                f"{run.path / 'points' / 'landmarks.safetensors'} holds no centroids because an earlier "
                "selfmark made it: run 'selfmark discover' on the images again"
            )
        path = run.path / "checkpoints" / "stage1.safetensors"
        # Not `load_state`: a run trained on a GPU has a random state that no CPU generator takes.
        tensors, _ = read_tensors(path)
        weights = {
            name.removeprefix("network."): value
            for name, value in tensors.items()
            if name.startswith("network.")
        }
        return cls(load_phi(run, weights, path, device), centroids, run.config, device)


def load_phi(run: Run, weights: dict[str, Tensor], path: Path, device: torch.device) -> Phi:
    """Phi with these weights, which were read from `path`."""
    phi = Phi(run.config.network).eval()
    prepare_network(phi, device, run.config.runtime)  # as in training, to the last bit
    try:
        phi.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"{path} does not fit {run.path / 'config.yaml'}") from error
    return phi


@dataclass(frozen=True)
class Stage1Landmarks:
    """The landmarks Stage 1 found in N images, as a table with gaps and as a flat list of P points.

    xy:         [N, K, 2] float32, network pixels; NaN where cluster k was not found in the image
    image:      [P] int64
    label:      [P] int64, 0..K-1
    descriptor: [P, D] float32, unit vectors
    margin:     [P] float32, -1..1: how clearly the point belongs to its landmark, see `silhouette_margins`
    """

    xy: npt.NDArray[np.float32]
    image: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    descriptor: npt.NDArray[np.float32]
    margin: npt.NDArray[np.float32]

    @property
    def found(self) -> npt.NDArray[np.bool_]:
        """[N, K], where the landmark was found in the image."""
        return np.isfinite(self.xy[..., 0])


def find_stage1_landmarks(stage1: Stage1, pixels: Tensor) -> Stage1Landmarks:
    """Landmarks of network images [N, 3, S, S] uint8, N >= 1.

    Labels never depend on other images, so each batch is finished before the next one begins and only its
    labeled points are kept.
    """
    if pixels.ndim != 4 or len(pixels) == 0:
        raise ValueError(f"pixels must be [N, 3, S, S] with at least one image, got {tuple(pixels.shape)}")
    step = stage1.config.runtime.predict_batch
    parts = [_of_batch(stage1, block) for block in torch.split(pixels, step)]
    return Stage1Landmarks(
        xy=np.concatenate([part.xy for part in parts]),
        image=np.concatenate([part.image + index * step for index, part in enumerate(parts)]),
        label=np.concatenate([part.label for part in parts]),
        descriptor=np.concatenate([part.descriptor for part in parts]),
        margin=np.concatenate([part.margin for part in parts]),
    )


def _of_batch(stage1: Stage1, pixels: Tensor) -> Stage1Landmarks:
    # Mirrored descriptors serve to find mirror partners, which are settled by now.
    config = replace(stage1.config, flip=Flip(train=False, test=False))
    points = describe_images(stage1.phi, PixelFeed(pixels, stage1.device), config).points.to(stage1.device)
    if points.descriptor is None:
        raise ValueError("Phi describes every point it finds")
    labels = assign_clusters(
        points.descriptor, points.image_index, stage1.centroids, config.correspondence.assignment
    )
    kept = labels >= 0
    image, label = points.image_index[kept].cpu().numpy(), labels[kept].cpu().numpy()
    descriptor = points.descriptor[kept].cpu().numpy()
    xy = np.full((len(pixels), len(stage1.centroids), 2), np.nan, dtype=np.float32)
    xy[image, label] = points.xy[kept].cpu().numpy()
    margin = silhouette_margins(descriptor, label, stage1.centroids.cpu().numpy())
    return Stage1Landmarks(xy, image, label, descriptor, margin.astype(np.float32))


def silhouette_margins(
    descriptor: FloatArray, label: npt.NDArray[np.int64], centroids: FloatArray
) -> FloatArray:
    """The simplified silhouette of each point, [P]: (b - a) / max(a, b).

    a is the distance to the point's own centroid, b to the nearest other one: 1 on the own centroid, 0
    halfway, negative where another is nearer. NaN if there is only one centroid.

    >>> centroids = np.array([[0.0, 0.0], [10.0, 0.0]])
    >>> margins(np.array([[0.0, 0.0], [5.0, 0.0], [8.0, 0.0]]), np.array([0, 0, 0]), centroids).tolist()
    [1.0, 0.0, -0.75]

    Args:
        descriptor: [P, D].
        label: [P], 0..K-1.
        centroids: [K, D].
    """
    points, centers = np.asarray(descriptor, np.float64), np.asarray(centroids, np.float64)
    if len(centers) < 2:
        return np.full(len(points), np.nan)
    squared = (points**2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
    distance = np.sqrt(np.maximum(squared, 0.0))
    rows = np.arange(len(points))
    own = distance[rows, label]
    distance[rows, label] = np.inf
    other = distance.min(axis=1)
    larger = np.maximum(own, other)
    result: FloatArray = np.where(larger > 0, (other - own) / np.where(larger > 0, larger, 1.0), 0.0)
    return result
