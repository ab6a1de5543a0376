"""Exact t-SNE (van der Maaten and Hinton, 2008) of a thousand points or so: a map of the descriptors."""

from __future__ import annotations

import numpy as np

from selfmark.points import FloatArray

_SMALLEST = 5  # fewer points than this have no neighborhoods to speak of
_BISECTIONS = 64  # of each bandwidth
_EXAGGERATION = 12.0  # factor on the affinities while clusters form
_EXAGGERATED = 0.25  # share of the iterations with it
_MOMENTUM = (0.5, 0.8)  # with and without exaggeration
_START = 1e-4  # spread of the first places, so small that no point is in another's way


def tsne(vectors: FloatArray, perplexity: float = 30.0, iterations: int = 400, seed: int = 0) -> FloatArray:
    """Places [P, 2] such that vectors [P, D] with common neighbors lie together; distances mean little.

    Starts from the principal components, so the result is the same every time; `seed` draws the faint noise
    that keeps equal vectors apart. Very few points are laid out by their principal components alone.

    Args:
        vectors: [P, D].
        perplexity: about how many neighbors each point has; lowered to a third of the others if P is small.
        iterations: of gradient descent.
        seed: of the noise.
    """
    points = np.asarray(vectors, np.float64)
    if points.ndim != 2:
        raise ValueError(f"vectors must be [P, D], got {points.shape}")
    places = _principal_components(points)
    count = len(points)
    if count < _SMALLEST:
        return places
    shared = affinities(points, min(perplexity, (count - 1) / 3))
    spread = places[:, 0].std()
    noise = np.random.default_rng(seed).normal(size=places.shape)
    places = _START * (places / (spread if spread > 0 else 1.0) + 1e-3 * noise)
    # Belkina et al. (2019): a rate in proportion to the number of points lets clusters form in time.
    rate = max(count / _EXAGGERATION / 4, 50.0)
    exaggerated = round(_EXAGGERATED * iterations)
    velocity, gain = np.zeros_like(places), np.ones_like(places)
    shared *= _EXAGGERATION
    for iteration in range(iterations):
        early = iteration < exaggerated
        if iteration == exaggerated:
            shared /= _EXAGGERATION
        slope = gradient(shared, places)
        # A coordinate that keeps its direction takes longer steps, one that turns back shorter ones.
        gain = np.maximum(np.where(slope * velocity < 0, gain + 0.2, gain * 0.8), 0.01)
        velocity = _MOMENTUM[0 if early else 1] * velocity - rate * gain * slope
        places = places + velocity
    result: FloatArray = places - places.mean(axis=0)
    return result


def affinities(vectors: FloatArray, perplexity: float) -> FloatArray:
    """Joint probabilities [P, P], symmetric, summing to 1: the mean of both points' views of each other."""
    conditional = conditionals(vectors, perplexity)
    joint: FloatArray = (conditional + conditional.T) / (2 * len(vectors))
    return joint


def conditionals(vectors: FloatArray, perplexity: float) -> FloatArray:
    """How each point (row) sees the others: Gaussians as wide as gives every row the same perplexity.

    Args:
        vectors: [P, D].
        perplexity: 2 to the entropy of a row in bits, below P - 1.

    Returns:
        [P, P], rows sum to 1, zero on the diagonal.
    """
    squared = _squared_distances(np.asarray(vectors, np.float64))
    squared /= squared.mean() or 1.0
    np.fill_diagonal(squared, np.inf)
    squared -= squared.min(axis=1, keepdims=True)  # changes nothing but keeps the exponentials from vanishing
    finite = np.where(np.isinf(squared), 0.0, squared)
    target = np.log(perplexity)
    low, high = np.full(len(squared), 0.0), np.full(len(squared), np.inf)
    precision = np.ones(len(squared))
    for _ in range(_BISECTIONS):
        weight = np.exp(-precision[:, None] * squared)
        total = weight.sum(axis=1)
        entropy = np.log(total) + precision * np.einsum("ij,ij->i", weight, finite) / total
        wide = entropy > target
        low, high = np.where(wide, precision, low), np.where(wide, high, precision)
        precision = np.where(np.isinf(high), 2 * precision, (low + np.where(np.isinf(high), 0.0, high)) / 2)
    weight = np.exp(-precision[:, None] * squared)
    rows: FloatArray = weight / weight.sum(axis=1, keepdims=True)
    return rows


def gradient(affinity: FloatArray, places: FloatArray) -> FloatArray:
    """Gradient [P, 2] of the divergence sum p log(p / q), with q in proportion to 1 / (1 + distance^2)."""
    kernel = _squared_distances(places)
    kernel += 1.0
    np.reciprocal(kernel, out=kernel)
    np.fill_diagonal(kernel, 0.0)
    pull = kernel * (-1.0 / kernel.sum())
    pull += affinity
    pull *= kernel
    slope: FloatArray = 4 * (pull.sum(axis=1)[:, None] * places - pull @ places)
    return slope


def _squared_distances(points: FloatArray) -> FloatArray:
    """|a|^2 - 2 a b + |b|^2 of all pairs as one matrix product, which is most of what t-SNE computes."""
    norms, ones = (points**2).sum(axis=1)[:, None], np.ones((len(points), 1))
    squared: FloatArray = np.hstack([norms, -2 * points, ones]) @ np.hstack([ones, points, norms]).T
    return np.maximum(squared, 0.0, out=squared)


def _principal_components(points: FloatArray) -> FloatArray:
    """The two directions of largest variance, [P, 2], each turned so that its largest entry is positive."""
    places = np.zeros((len(points), 2))
    if len(points) < 2:
        return places
    left, scale, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    components = (left * scale)[:, :2]
    peak = components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])]
    places[:, : components.shape[1]] = components * np.where(peak < 0, -1.0, 1.0)
    return places
