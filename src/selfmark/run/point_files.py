"""Convert keypoints and labels to and from the tensors of their files, and check what is read."""

from __future__ import annotations

from pathlib import Path

import torch

from selfmark.errors import DamagedFile
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.json_schema import report_content_errors
from selfmark.run.tensor_files import read_tensors, require_finite

TensorFile = tuple[dict[str, torch.Tensor], dict[str, str]]
"""Tensors and metadata of a file."""
_MAX_IMAGES = 1 << 31  # more than any run has


def keypoints_to_tensors(points: Keypoints) -> dict[str, torch.Tensor]:
    """Return the tensors that the file of the keypoints contains, by name."""
    tensors = {"xy": points.xy, "image_index": points.image_index, "score": points.score}
    if points.descriptor is not None:
        tensors["descriptor"] = points.descriptor
    return tensors


def keypoints_from_tensors(tensors: dict[str, torch.Tensor], path: Path) -> Keypoints:
    """Return the keypoints of a file.

    Args:
        tensors: mapping from names to the tensors of the file.
        path: the file, for messages.

    Raises:
        InputError: if the tensors are not those of keypoints.
    """
    with report_content_errors(path):
        return _check_keypoints(Keypoints(**tensors), path)


def labels_to_tensors(labeled: LabeledPoints) -> TensorFile:
    """Return the tensors, by name, and the metadata that the file of the labeled points contains."""
    tensors = keypoints_to_tensors(labeled.points)
    tensors |= {"label": labeled.label, "mirrored_label": labeled.mirrored_label}
    if labeled.centroids is not None:
        tensors["centroids"] = labeled.centroids
    return tensors, {"clusters": str(labeled.clusters)}


def labels_from_tensors(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str], device: torch.device, path: Path
) -> LabeledPoints:
    """Return the labeled points of a file.

    Args:
        tensors: mapping from names to the tensors of the file.
        metadata: metadata of the file.
        device: device to move the points to.
        path: the file, for messages.

    Raises:
        InputError: if the content is not that of labeled points.
    """
    with report_content_errors(path):
        remaining = dict(tensors)
        label, mirrored = remaining.pop("label").to(device), remaining.pop("mirrored_label").to(device)
        centroids = remaining.pop("centroids").to(device) if "centroids" in remaining else None
        points = _check_keypoints(Keypoints(**remaining), path).to(device)
        labeled = LabeledPoints(points, label, mirrored, int(metadata["clusters"]), centroids)
        return _check_labels(labeled, path)


def read_irreplaceable(path: Path) -> TensorFile:
    """Read labels that cannot be computed again, because the network has been trained further since."""
    try:
        return read_tensors(path)
    except DamagedFile as error:
        raise DamagedFile(
            f"{error}; restore it from a copy, or delete it to compute the labels again with the current "
            "network, which gives a different result than an uninterrupted run"
        ) from error


def _check_keypoints(points: Keypoints, path: Path) -> Keypoints:
    """Check types and values of keypoints that were read from a file, and return the keypoints."""
    tensors = {"xy": points.xy, "score": points.score}
    if points.descriptor is not None:
        if points.descriptor.ndim != 2:
            raise ValueError("descriptor must be [P, D]")
        tensors["descriptor"] = points.descriptor
    if points.image_index.dtype != torch.int64 or not all(t.is_floating_point() for t in tensors.values()):
        raise ValueError("image_index must be int64 and everything else a float")
    if len(points) and not 0 <= int(points.image_index.min()) <= int(points.image_index.max()) < _MAX_IMAGES:
        raise ValueError("image_index is not the number of an image")
    require_finite(tensors, path)
    return points


def _check_labels(labeled: LabeledPoints, path: Path) -> LabeledPoints:
    """Check shapes and values of labels that were read from a file, and return the labels."""
    count = (len(labeled.points),)
    for label in (labeled.label, labeled.mirrored_label):
        if label.shape != count or label.dtype != torch.int64:
            raise ValueError("labels must be [P] int64")
        if len(label) and not -1 <= int(label.min()) <= int(label.max()) < labeled.clusters:
            raise ValueError(f"labels must be -1 to {labeled.clusters - 1}")
    if labeled.centroids is not None:
        if labeled.centroids.ndim != 2 or len(labeled.centroids) != labeled.clusters:
            raise ValueError(f"centroids must be [{labeled.clusters}, D]")
        require_finite({"centroids": labeled.centroids}, path)
    return labeled
