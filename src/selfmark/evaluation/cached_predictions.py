"""Cache a run's predictions for a set of images in the run folder.

The name of the cache file depends on the images. The file contains a fingerprint of everything that the
predictions depend on: the weights of both stages, the settings, and the state of the file of every image (see
`run.guarded_files.get_file_state`). If any of these changes, the predictions are computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from selfmark.config import original_setting_names, used_image_settings, used_settings
from selfmark.errors import InputError, report_write_errors
from selfmark.evaluation.run_models import RunModels
from selfmark.evaluation.stage1_landmarks import find_stage1_landmarks
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard, landmarks_without_partner
from selfmark.points import FloatArray
from selfmark.run.folder import Run
from selfmark.run.guarded_files import FileState, compute_sha256, make_folder, read_file_state
from selfmark.run.json_schema import parse_json
from selfmark.run.tensor_files import read_tensors, write_tensors

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class CachedPredictions:
    """Landmarks of N images in network pixels.

    Attributes:
        rows: [N] int64, indices of the images that could be read, among those given.
        xy: [N, K, 2] float32, landmarks of Stage 2.
        score: [N, K] float32, height of the heatmap peak of each landmark.
        stage1: [N, K, 2] float32, landmarks of Stage 1, NaN where they were not found.
        regions: [N, 4] float64, x, y, w, h of the network image in the original.
        skipped: Images that could not be read, each with the reason.
    """

    rows: npt.NDArray[np.int64]
    xy: FloatArray
    score: FloatArray
    stage1: FloatArray
    regions: npt.NDArray[np.float64]
    skipped: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)


def load_or_predict(
    models: RunModels, refs: Sequence[ImageRef], on_progress: Progress | None = None
) -> CachedPredictions:
    """Return the run's predictions for these images, from the cache if it is still valid.

    Args:
        models: The run, whose folder holds the cache.
        refs: The images.
        on_progress: Called with the number of images done and the total.

    Raises:
        InputError: If the cache cannot be written, or the detector was replaced in the meantime.
    """
    path = cache_file(models.run, refs, ".safetensors")
    fingerprint = digest(run_fingerprint(models.run, models.card), images_fingerprint(refs))
    if path.exists():
        cached = _read(path, fingerprint, len(refs), len(models.card.names))
        if cached is not None:
            return cached
    predictions = _predict(models, refs, on_progress)
    models.require_unchanged()
    with report_write_errors(path):
        make_folder(path.parent)
        _write(predictions, path, fingerprint)
    return predictions


def cache_file(run: Run, refs: Sequence[ImageRef], ending: str) -> Path:
    """Return the path of the file that caches results of a run for these images.

    Args:
        run: The run.
        refs: The images, from which the name of the file is computed.
        ending: End of the file name.
    """
    listing = json.dumps([(str(ref.path.resolve()), ref.frame, ref.box) for ref in refs])
    return run.path / "predictions" / f"{digest(listing)[:16]}{ending}"


def run_fingerprint(run: Run, card: ModelCard) -> str:
    """Return a digest of everything in a run that the run's predictions depend on."""
    files = [
        run.model_folder / "weights.safetensors",
        run.path / "checkpoints" / "stage1.safetensors",
        run.path / "points" / "landmarks.safetensors",
    ]
    # If landmarks were chosen among clusters of Stage 1, they also depend on the clusters not chosen.
    chosen = run.path / "points" / "keypoints-1-chosen.safetensors"
    if chosen.exists():
        files += [chosen, run.path / "points" / "keypoint-landmarks.safetensors"]
    # Landmark names, skeleton and evaluation settings are left out, because no prediction depends on them.
    values = original_setting_names(used_settings(run.config))
    settings = {name: part for name, part in values.items() if name != "evaluation"}
    inference: list[Any] = [card.mirror, card.flip_test, card.refine, used_image_settings(card.images)]
    # Older versions did not append this list. If it is empty, it is left out, so that the fingerprint is the
    # same in all versions.
    if unpaired := landmarks_without_partner(card):
        inference.append(unpaired)
    return digest(*(_digest_file(file) for file in files), json.dumps([settings, inference], sort_keys=True))


def _predict(models: RunModels, refs: Sequence[ImageRef], on_progress: Progress | None) -> CachedPredictions:
    stage1 = models.stage1
    stage1_parts: list[FloatArray] = []
    prediction = models.detector.predict_network_pixels(
        refs,
        models.run.config.runtime.predict_batch,
        on_progress,
        lambda pixels: stage1_parts.append(find_stage1_landmarks(stage1, pixels).xy),
    )
    return CachedPredictions(
        prediction.rows,
        prediction.xy,
        prediction.score,
        np.concatenate(stage1_parts),
        prediction.regions,
        prediction.skipped,
    )


def _write(predictions: CachedPredictions, path: Path, fingerprint: str) -> None:
    arrays = {name: getattr(predictions, name) for name in ("rows", "xy", "score", "stage1", "regions")}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    write_tensors(tensors, {"fingerprint": fingerprint, "skipped": json.dumps(predictions.skipped)}, path)


def _read(path: Path, fingerprint: str, num_refs: int, num_landmarks: int) -> CachedPredictions | None:
    """Read cached predictions; None if they are damaged, or the model, settings or images have changed."""
    try:
        tensors, metadata = read_tensors(path)
        if metadata.get("fingerprint") != fingerprint:
            return None
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        cached = CachedPredictions(**arrays, skipped=tuple(parse_json(metadata["skipped"])))
        return cached if _is_usable(cached, num_refs, num_landmarks) else None
    except (InputError, KeyError, TypeError, ValueError):
        return None


def _is_usable(cached: CachedPredictions, num_refs: int, num_landmarks: int) -> bool:
    """Return True if shapes and values are possible; only `stage1` may contain NaN."""
    count, rows = len(cached.rows), cached.rows
    shapes = {"rows": (), "xy": (num_landmarks, 2), "score": (num_landmarks,), "regions": (4,)}
    return (
        all(
            getattr(cached, name).shape == (count, *shape) and np.isfinite(getattr(cached, name)).all()
            for name, shape in shapes.items()
        )
        and cached.stage1.ndim == 3
        and (cached.stage1.shape[0], cached.stage1.shape[2]) == (count, 2)
        and bool(((rows >= 0) & (rows < num_refs)).all())
        and all(isinstance(name, str) for name in cached.skipped)
    )


def images_fingerprint(refs: Sequence[ImageRef]) -> str:
    """Return the state of every file as JSON, null for a missing one; it changes if an image is replaced."""
    return json.dumps([read_file_state(path) for path in dict.fromkeys(ref.path for ref in refs)])


def _digest_file(path: Path) -> str:
    """Return the SHA-256 of a file; "absent" if it cannot be read. A run may lack the files of Stage 1."""
    state = read_file_state(path)
    return "absent" if state is None else _file_state_digest(path, state)


@lru_cache(maxsize=64)  # an evaluation needs the digest of the same weights several times
def _file_state_digest(path: Path, state: FileState) -> str:
    """Return the SHA-256 of a file, from the cache unless its state has changed."""
    try:
        # An untrusted run may contain a sparse file of terabytes. Files larger than the memory are refused.
        return compute_sha256(path)
    except OSError:
        return "absent"


def digest(*parts: str) -> str:
    """Return the SHA-256 of several texts, as hexadecimal digits."""
    return hashlib.sha256("\n".join(parts).encode("utf-8", errors="surrogateescape")).hexdigest()
