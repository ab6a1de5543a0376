"""Provide predictions with difficult names and sizes, and the objects expected in the exported files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from selfmark.config import Images, Network
from selfmark.detector import Prediction
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard
from selfmark.points import FloatArray, Landmarks

NAMES = ("nose", 'tail, "long"', "œil gauche", "œil droit")
CARD = ModelCard(NAMES, (0, 1, 3, 2), ((0, 1), (2, 3)), Images(), Network(), "parabola", False, {})

STILLS = [
    (ImageRef(Path('set/odd "name", é.jpg')), (640, 480)),
    (ImageRef(Path("set/left/a.jpg")), (31, 57)),
    (ImageRef(Path("set/right/a.jpg")), (1000, 20)),  # same file name in another folder
]
TWO_OBJECTS = [  # b.jpg has two objects; the object of c.jpg stands between them in the list
    (ImageRef(Path("set/b.jpg"), None, (0, 0, 9, 9)), (99, 70)),
    (ImageRef(Path("set/c.jpg")), (300, 400)),
    (ImageRef(Path("set/b.jpg"), None, (9, 9, 9, 9)), (99, 70)),
]
CLIP = Path("videos/day one/clip.mp4")
FRAMES = [(ImageRef(CLIP, frame), (320, 200)) for frame in (0, 2, 10)]
CROWD = [
    (ImageRef(Path("videos/crowd.mp4"), frame, (index, 0, 9, 9)), (64, 48))
    for frame, count in ((5, 1), (6, 3), (7, 2))
    for index in range(count)
]


class ExpectedObject(NamedTuple):
    """An object that the exported file should contain.

    Attributes:
        ref: The image of the object.
        size: Width and height of the image, in pixels.
        instance: Number of the object within the image, from 0.
        xy: [K, 2], positions of the landmarks in pixels.
        score: [K], scores of the landmarks.
    """

    ref: ImageRef
    size: tuple[int, int]
    instance: int
    xy: FloatArray
    score: FloatArray


def make_predictions(objects: Sequence[tuple[ImageRef, tuple[int, int]]], batch: int = 2) -> list[Prediction]:
    """Return batches of predictions with random landmarks inside each image, the same in every call."""
    rng = np.random.default_rng(0)
    batches = []
    for start in range(0, len(objects), batch):
        refs, sizes = zip(*objects[start : start + batch], strict=True)
        size = np.array(sizes, np.int64)
        xy = rng.random((len(refs), len(NAMES), 2)) * (size[:, None] - 1)
        score = rng.random((len(refs), len(NAMES)))
        landmarks = Landmarks(xy.astype(np.float32), score.astype(np.float32), NAMES)
        batches.append(Prediction(tuple(refs), size, landmarks))
    return batches


def iterate_expected_objects(batches: Sequence[Prediction]) -> Iterator[ExpectedObject]:
    """Yield every object of the batches."""
    counts: dict[tuple[Path, int | None], int] = {}
    for refs, sizes, landmarks in batches:
        for row, ref in enumerate(refs):
            key = (ref.path, ref.frame)
            width, height = sizes[row].tolist()
            yield ExpectedObject(
                ref, (width, height), counts.get(key, 0), landmarks.xy[row], landmarks.score[row]
            )
            counts[key] = counts.get(key, 0) + 1
