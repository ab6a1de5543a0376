"""Provide a model card with a skeleton of four points, and random landmarks for it."""

from __future__ import annotations

import numpy as np

from selfmark.config import Images, Network
from selfmark.detector import Prediction
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard
from selfmark.points import Landmarks

NAMES = ("nose", "left ear", "right ear", "tail/tip")
EDGES = ((0, 1), (0, 2), (3, 0))
CARD = ModelCard(NAMES, (0, 2, 1, 3), EDGES, Images(), Network(), "parabola", False, {})


def make_random_prediction(refs: list[ImageRef], size: tuple[int, int], seed: int) -> Prediction:
    """Return random landmarks in images of one size."""
    rng = np.random.default_rng(seed)
    landmarks = Landmarks(
        rng.uniform(0, 30, (len(refs), 4, 2)).astype(np.float32),
        rng.random((len(refs), 4)).astype(np.float32),
        NAMES,
    )
    return Prediction(tuple(refs), np.array([size] * len(refs)), landmarks)
