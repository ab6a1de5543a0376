"""Cache the placements of a run in a file next to the cached predictions.

Placements are the positions that a report shows: landmarks in the example images, and points of Stage 1 on
the map of the landmarks. With cached placements, another report of the same run, for example after
`selfmark evaluate`, needs no network and no t-SNE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from selfmark._version import __version__
from selfmark.errors import InputError, report_write_errors
from selfmark.evaluation.cached_predictions import cache_file, digest, images_fingerprint, run_fingerprint
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard
from selfmark.points import FloatArray
from selfmark.report.embedding import is_tsne_available
from selfmark.run.folder import Run
from selfmark.run.guarded_files import make_folder
from selfmark.run.tensor_files import read_tensors, write_tensors


@dataclass(frozen=True)
class Placements:
    """Landmarks of the E example images, and P points of Stage 1 on the map of the landmarks.

    Attributes:
        xy: [E, K, 2] float32, landmarks, network pixels.
        score: [E, K] float32.
        plane_xy: [P, 2] float64, positions of the points on the map, in any unit.
        label: [P] int64, landmark of each point.
    """

    xy: FloatArray
    score: FloatArray
    plane_xy: FloatArray
    label: npt.NDArray[np.int64]


def load_or_compute_placements(
    run: Run, card: ModelCard, refs: Sequence[ImageRef], num_examples: int, compute: Callable[[], Placements]
) -> Placements:
    """Return the placements of a run, from the run folder if they are still valid.

    Args:
        run: Finished run.
        card: Model card of the run's detector.
        refs: The images that the report uses and that could be read.
        num_examples: E, the number of example images.
        compute: Computes the placements.
    """
    path = cache_file(run, refs, "-report.safetensors")
    method = f"{__version__} {num_examples} {is_tsne_available()}"
    fingerprint = digest(run_fingerprint(run, card), images_fingerprint(refs), method)
    if path.exists():
        cached = _read(path, fingerprint, num_examples, len(card.names))
        if cached is not None:
            return cached
    placements = compute()
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in vars(placements).items()
    }
    with report_write_errors(path):
        make_folder(path.parent)
        write_tensors(tensors, {"fingerprint": fingerprint}, path)
    return placements


def _read(path: Path, fingerprint: str, num_examples: int, num_landmarks: int) -> Placements | None:
    """Read cached placements; None if they are damaged or belong to another state of the run."""
    try:
        tensors, metadata = read_tensors(path)
        placed = Placements(**{name: tensor.numpy() for name, tensor in tensors.items()})
    except (InputError, TypeError):
        return None
    is_usable = (
        metadata.get("fingerprint") == fingerprint
        and placed.xy.shape == (num_examples, num_landmarks, 2)
        and placed.score.shape == (num_examples, num_landmarks)
        and placed.plane_xy.shape == (len(placed.label), 2)
        and placed.label.dtype == np.int64
        and bool(((placed.label >= 0) & (placed.label < num_landmarks)).all())
        and all(np.isfinite(array).all() for array in (placed.xy, placed.score, placed.plane_xy))
    )
    return placed if is_usable else None
