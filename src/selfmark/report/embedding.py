"""Embed descriptors in the plane: by t-SNE if scikit-learn is installed, else by principal components.

`embedding_process` runs this file in another process. The file must not import torch, because that takes
seconds.
"""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from selfmark.errors import require_package

if TYPE_CHECKING:
    from selfmark.points import FloatArray

_INSTALL = "'selfmark[report]'"
_MIN_POINTS = 5  # fewer points have no neighborhoods that t-SNE could preserve
_ITERATIONS = 400  # iterations of t-SNE
_START_SCALE = 1e-4  # standard deviation of the initial positions, as in scikit-learn


def is_tsne_available() -> bool:
    """Return True if scikit-learn is installed."""
    return find_spec("sklearn") is not None


def require_tsne() -> None:
    """Raise if scikit-learn is not installed."""
    require_package("sklearn", _INSTALL)


def embed_in_plane(vectors: FloatArray) -> FloatArray:
    """Return positions [P, 2] at which similar vectors [P, D] are close together."""
    return tsne(vectors) if is_tsne_available() else principal_components(vectors)


def tsne(vectors: FloatArray, perplexity: float = 30.0, seed: int = 0) -> FloatArray:
    """Compute a t-SNE embedding (van der Maaten and Hinton, 2008), which keeps neighbors but not distances.

    The result is reproducible. The optimization starts from the principal components. It runs in one thread,
    because several threads would add numbers in a varying order.

    Args:
        vectors: [P, D].
        perplexity: Roughly the number of neighbors of each point. It is limited to (P - 1) / 3.
        seed: Seed of t-SNE, and of the slight noise that separates equal vectors at the start.

    Returns:
        Positions [P, 2]; the principal components if there are fewer than 5 points.

    Raises:
        InputError: If scikit-learn is not installed.
    """
    require_tsne()
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        start = principal_components(vectors)
        count = len(start)
        if count < _MIN_POINTS:
            return start
        noise = np.random.default_rng(seed).normal(size=start.shape)
        start = _START_SCALE * (start / (start[:, 0].std() or 1.0) + 1e-3 * noise)
        model = TSNE(
            perplexity=min(perplexity, (count - 1) / 3), init=start, max_iter=_ITERATIONS, random_state=seed
        )
        positions = np.asarray(model.fit_transform(vectors), np.float64)
    centered: FloatArray = positions - positions.mean(axis=0)
    return centered


def principal_components(vectors: FloatArray) -> FloatArray:
    """Project vectors [P, D] on their two directions of largest variance.

    Returns:
        Positions [P, 2], centered. The sign of each axis is chosen so that its coordinate of largest
        magnitude is positive. The coordinates of an axis without variance are 0.
    """
    points = np.asarray(vectors, np.float64)
    if points.ndim != 2:
        raise ValueError(f"vectors must be [P, D], got {points.shape}")
    positions = np.zeros((len(points), 2))
    if len(points) < 2:
        return positions
    left, scale, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    components = (left * scale)[:, :2]
    peak = components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])]
    positions[:, : components.shape[1]] = components * np.where(peak < 0, -1.0, 1.0)
    return positions


def serve_embedding() -> None:
    """Read vectors from standard input as .npy, and write their t-SNE embedding to standard output."""
    positions = tsne(np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False))
    np.save(sys.stdout.buffer, positions, allow_pickle=False)
