"""Check whether new images resemble the training images of a detector, using its pretrained features.

The description of an image is the mean of its features over all cells. New images are unfamiliar if their
descriptions are farther from the mean of the training images than usual. The usual distance is measured
between the training images of one half and the mean of the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from selfmark.config import Guards
from selfmark.detector import Detector
from selfmark.features.encoder import Encoder
from selfmark.image_ref import ImageRef
from selfmark.images.store import iterate_crops
from selfmark.model.card import model_folder
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.run.tensor_files import read_tensors, write_tensors
from selfmark.sampling import evenly_spaced

FILE = "familiarity.safetensors"
"""File of a model folder with the statistics of the training images, see `Familiarity`."""

_QUANTILE = 0.95  # fraction of training images within the limit; the others count as outliers
_BATCH = 16  # images that are decoded at a time, and images per forward pass on the CPU
# Images per forward pass on a GPU: as many as in the other passes of an encoder, so that cuDNN can reuse its
# plans for the convolutions.
_GPU_BATCH = 64


@dataclass(frozen=True)
class Familiarity:
    """Statistics of the training images of a detector, to compare new images with.

    mean:  [C] mean of the descriptions of the training images
    limit: squared distance that 95 percent of the training images do not exceed, see `fit_familiarity`
    """

    mean: Tensor
    limit: float


def fit_familiarity(descriptions: Tensor) -> Familiarity:
    """Compute the statistics of training images.

    The limit is a quantile of the squared distances of each half of the images from the mean of the other
    half.

    Args:
        descriptions: [N, C] unit vectors, N >= 2. They are in the order of the images, so that the two halves
            of a video are from different times.
    """
    halves = descriptions.chunk(2)
    distances = torch.cat([_distances(part, other.mean(dim=0)) for part, other in (halves, halves[::-1])])
    return Familiarity(descriptions.mean(dim=0), float(torch.quantile(distances, _QUANTILE)))


def measure_unfamiliarity(familiarity: Familiarity, descriptions: Tensor) -> float:
    """Return how far images are from the mean of the training images, relative to the limit.

    Args:
        familiarity: statistics of the training images.
        descriptions: [N, C] unit vectors of the images.

    Returns:
        The median squared distance divided by the limit; less than 1 for images like the training images.
    """
    return float(_distances(descriptions, familiarity.mean).median() / max(familiarity.limit, 1e-12))


@torch.no_grad()
def compute_mean_features(encoder: Encoder, pixels: Tensor, group: ProcessGroup = SINGLE_PROCESS) -> Tensor:
    """Return the mean features [N, C] of network images [N, 3, S, S] uint8, as unit vectors on the CPU.

    The processes of the group share the images, and each process gets the features of all images.
    """
    device = next(encoder.parameters()).device
    batch = _BATCH if device.type == "cpu" else _GPU_BATCH

    def describe(rows: slice) -> list[Tensor]:
        parts = [
            encoder(part.to(device).float() / 255).float().mean(dim=(2, 3)).cpu()
            for part in torch.split(pixels[rows], batch)
        ]
        return [torch.cat(parts)]

    return F.normalize(group.compute_shared(len(pixels), batch, describe)[0], dim=1)


def save_familiarity(
    detector: Detector, pixels: Tensor, folder: Path, guards: Guards, group: ProcessGroup = SINGLE_PROCESS
) -> None:
    """Write the statistics of training images to a model folder, if the detector has pretrained features.

    Args:
        detector: The detector.
        pixels: [N, 3, S, S] uint8 training images.
        folder: Model folder.
        guards: Settings with the number of images to use.
        group: The processes that share the images; only the leader writes.
    """
    encoder = _find_encoder(detector)
    if encoder is None:
        return
    rows = evenly_spaced(len(pixels), guards.familiar_images)
    familiarity = fit_familiarity(compute_mean_features(encoder, pixels[rows].cpu(), group))
    tensors = {"mean": familiarity.mean, "limit": torch.tensor([familiarity.limit])}
    group.run_on_leader(lambda: write_tensors(tensors, {}, folder / FILE))


def warn_of_unfamiliar_images(
    run: Path, detector: Detector, refs: Sequence[ImageRef], guards: Guards
) -> str | None:
    """Return a warning if images do not resemble the training images of a detector.

    Args:
        run: Run folder or model folder of the detector.
        detector: The detector.
        refs: The images; a sample of them is compared.
        guards: Settings with the size of the sample, and the limit above which images are unfamiliar.

    Returns:
        The warning; None if the images are familiar, or if they cannot be compared.
    """
    path, encoder = model_folder(run) / FILE, _find_encoder(detector)
    if encoder is None or not path.exists():
        return None
    tensors, _ = read_tensors(path)
    familiarity = Familiarity(tensors["mean"], float(tensors["limit"]))
    sample = [refs[row] for row in evenly_spaced(len(refs), guards.compared_images).tolist()]
    crops = [store.pixels for store in iterate_crops(sample, detector.card.images, _BATCH) if len(store)]
    if not crops:
        return None
    distance = measure_unfamiliarity(familiarity, compute_mean_features(encoder, torch.cat(crops)))
    if distance <= guards.max_unfamiliarity:
        return None
    return (
        f"the images look different from those that {run} was trained on (distance {distance:.1f}; similar "
        "images have less than 1): check the landmarks with --draw, and the position of the objects"
    )


def _find_encoder(detector: Detector) -> Encoder | None:
    """Return the pretrained encoder of a detector; None if the detector has none."""
    encoder = getattr(detector.psi, "encoder", None)
    return encoder if isinstance(encoder, Encoder) and any(True for _ in encoder.parameters()) else None


def _distances(descriptions: Tensor, mean: Tensor) -> Tensor:
    """Return the squared distances [N] of descriptions [N, C] from a mean [C]."""
    return (descriptions - mean).square().sum(dim=1)
