"""Example predictions with difficult names and sizes, and the objects a reader should find in the files."""

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
SEVERAL = [  # an image with two objects that are not consecutive
    (ImageRef(Path("set/b.jpg"), None, (0, 0, 9, 9)), (99, 70)),
    (ImageRef(Path("set/c.jpg")), (300, 400)),
    (ImageRef(Path("set/b.jpg"), None, (9, 9, 9, 9)), (99, 70)),
]
CLIP = Path("videos/day one/clip.mp4")
FRAMES = [(ImageRef(CLIP, frame), (320, 200)) for frame in (0, 2, 10)]
CROWD = [
    (ImageRef(Path("videos/crowd.mp4"), frame, (object_, 0, 9, 9)), (64, 48))
    for frame, count in ((5, 1), (6, 3), (7, 2))
    for object_ in range(count)
]


class Found(NamedTuple):
    """One object as a reader should find it, with its number within the image, xy [K, 2] and score [K]."""

    ref: ImageRef
    size: tuple[int, int]
    instance: int
    xy: FloatArray
    score: FloatArray


def predictions(objects: Sequence[tuple[ImageRef, tuple[int, int]]], batch: int = 2) -> list[Prediction]:
    """Return random points inside each image, in batches; the same for the same objects."""
    rng = np.random.default_rng(0)
    found = []
    for start in range(0, len(objects), batch):
        refs, sizes = zip(*objects[start : start + batch], strict=True)
        size = np.array(sizes, np.int64)
        xy = rng.random((len(refs), len(NAMES), 2)) * (size[:, None] - 1)
        score = rng.random((len(refs), len(NAMES)))
        landmarks = Landmarks(xy.astype(np.float32), score.astype(np.float32), NAMES)
        found.append(Prediction(tuple(refs), size, landmarks))
    return found


def expected(batches: Sequence[Prediction]) -> Iterator[Found]:
    """Yield every object of the batches."""
    counts: dict[tuple[Path, int | None], int] = {}
    for refs, sizes, landmarks in batches:
        for row, ref in enumerate(refs):
            key = (ref.path, ref.frame)
            width, height = sizes[row].tolist()
            yield Found(ref, (width, height), counts.get(key, 0), landmarks.xy[row], landmarks.score[row])
            counts[key] = counts.get(key, 0) + 1
