"""Whether landmarks move with what is seen under them: measured on film, without labels.

Between one frame and the next, optical flow says where the spot under each landmark went; a landmark that
follows the animal is found there. And an animal filmed from above differs in brightness from its ground, so
it can be told how many landmarks lie on it at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from selfmark.config import Config
from selfmark.detector import Detector
from selfmark.image_ref import ImageRef
from selfmark.images.flow import track_points
from selfmark.images.store import load_store

Gray = npt.NDArray[np.uint8]  # [S, S]
Floats = npt.NDArray[np.floating[Any]]

FAR = 5.0  # percent of the image's side; a landmark farther than this from where flow leads has jumped
AROUND = 3.0  # percent of the side; a landmark this near to the animal still counts as on it


def measure(detector: Detector, refs: Sequence[ImageRef], config: Config) -> dict[str, Any]:
    """Figures on a film's frames; distances are percentages of the side of the network's image."""
    store = load_store(refs, config.images, float("inf"), None)
    batches = torch.split(store.pixels, config.runtime.predict_batch)
    xy = torch.cat([detector.locate(batch).xy.cpu() for batch in batches]).numpy().astype(np.float32)
    gray = [_gray(image) for image in store.pixels]
    center = store.regions[:, :2] + store.regions[:, 2:] / 2
    pairs = next_frames(store.video, store.frame, center)
    carried = [track_points(gray[one], gray[other], xy[one], config.temporal) for one, other in pairs]
    good = np.stack([believed for _, believed in carried])
    before, after = (np.stack([xy[row] for row in rows]) for rows in zip(*pairs, strict=True))
    apart = np.linalg.norm(after - np.stack([places for places, _ in carried]), axis=2)
    moved = np.linalg.norm(after - before, axis=2)
    percent = 100.0 / config.images.size
    return {
        "motion": {
            "frames": len(store),
            "pairs": len(pairs),
            "flow_known": _share(good),
            "median_from_flow": round(percent * float(np.median(apart[good])), 3),
            "jumps": _share(percent * apart[good] > FAR),
            "median_moved": round(percent * float(np.median(moved)), 3),
            "on_animal": _share(np.stack([on_animal(*pair) for pair in zip(gray, xy, strict=True)])),
        }
    }


def next_frames(
    video: npt.NDArray[np.int64], frame: npt.NDArray[np.int64], center: Floats
) -> list[tuple[int, int]]:
    """Pairs of images of one object in neighboring frames; of several, the nearest is the same object.

    >>> next_frames(np.zeros(3, int), np.array([4, 5, 5]), np.array([[9.0, 9.0], [1.0, 1.0], [8.0, 9.0]]))
    [(0, 2)]
    """
    at: dict[tuple[int, int], list[int]] = {}
    for row, place in enumerate(zip(video.tolist(), frame.tolist(), strict=True)):
        at.setdefault(place, []).append(row)
    pairs = []
    for (film, number), rows in at.items():
        options = at.get((film, number + 1), [])
        for row in rows if options else []:
            away = np.linalg.norm(center[options] - center[row], axis=1)
            pairs.append((row, options[int(away.argmin())]))
    return pairs


def on_animal(gray: Gray, xy: Floats) -> npt.NDArray[np.bool_]:
    """Which of the landmarks [K, 2] lie on what is as bright as the middle of the picture, or close to it."""
    side = len(gray)
    _, bright = cv2.threshold(gray, 0, 1, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    middle = slice(side * 2 // 5, side * 3 // 5)
    animal = bright == int(bright[middle, middle].mean() >= 0.5)
    away = cv2.distanceTransform((~animal).astype(np.uint8), cv2.DIST_L2, 5)
    column, row = np.clip(np.round(xy), 0, side - 1).astype(int).T
    near: npt.NDArray[np.bool_] = away[row, column] <= AROUND * side / 100
    return near


def _share(values: npt.NDArray[np.bool_]) -> float:
    return round(float(values.mean()), 4) if values.size else 0.0


def _gray(image: torch.Tensor) -> Gray:
    array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return np.asarray(cv2.cvtColor(array, cv2.COLOR_RGB2GRAY), np.uint8)
