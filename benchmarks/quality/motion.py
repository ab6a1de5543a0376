"""Measure without labels whether landmarks in a video move with the image content under them.

Optical flow predicts where the image content under a landmark is in the next frame. A landmark that follows
the animal is detected at this position. In videos from above, the animal and the ground differ in brightness.
Therefore the fraction of landmarks on the animal can be measured too.
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

JUMP = 5.0  # percent of the image's side; a landmark farther than this from the predicted position has jumped
MARGIN = 3.0  # percent of the side; a landmark this close to the animal counts as on it


def measure(detector: Detector, refs: Sequence[ImageRef], config: Config) -> dict[str, Any]:
    """Measure the motion of landmarks in video frames.

    Args:
        detector: the detector.
        refs: frames of one or more videos.
        config: settings of the run.

    Returns:
        A mapping with the single key "motion". Its value contains fractions and distances. Distances are
        percentages of the network image's side.
    """
    store = load_store(refs, config.images, float("inf"), None)
    batches = torch.split(store.pixels, config.runtime.predict_batch)
    xy = torch.cat([detector.locate(batch).xy.cpu() for batch in batches]).numpy().astype(np.float32)
    gray = [_to_gray(image) for image in store.pixels]
    center = store.regions[:, :2] + store.regions[:, 2:] / 2
    pairs = pair_frames(store.video, store.frame, center)
    tracked = [track_points(gray[row], gray[next_row], xy[row], config.temporal) for row, next_row in pairs]
    reliable = np.stack([valid for _, valid in tracked])
    before, after = (np.stack([xy[row] for row in rows]) for rows in zip(*pairs, strict=True))
    distance = np.linalg.norm(after - np.stack([predicted for predicted, _ in tracked]), axis=2)
    moved = np.linalg.norm(after - before, axis=2)
    percent_per_pixel = 100.0 / config.images.size
    return {
        "motion": {
            "frames": len(store),
            "pairs": len(pairs),
            "flow_known": _compute_fraction(reliable),
            "median_from_flow": round(percent_per_pixel * float(np.median(distance[reliable])), 3),
            "jumps": _compute_fraction(percent_per_pixel * distance[reliable] > JUMP),
            "median_moved": round(percent_per_pixel * float(np.median(moved)), 3),
            "on_animal": _compute_fraction(
                np.stack([find_on_animal(*pair) for pair in zip(gray, xy, strict=True)])
            ),
        }
    }


def pair_frames(
    video: npt.NDArray[np.int64], frame: npt.NDArray[np.int64], center: Floats
) -> list[tuple[int, int]]:
    """Pair images of the same object in consecutive frames: each object with the nearest one.

    Args:
        video: index of the video of each image, [N].
        frame: frame number of each image, [N].
        center: center of each image's crop in the frame, pixels, [N, 2].

    Returns:
        Pairs of rows.

    >>> pair_frames(np.zeros(3, int), np.array([4, 5, 5]), np.array([[9.0, 9.0], [1.0, 1.0], [8.0, 9.0]]))
    [(0, 2)]
    """
    rows_by_frame: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(video.tolist(), frame.tolist(), strict=True)):
        rows_by_frame.setdefault(key, []).append(row)
    pairs = []
    for (video_index, number), rows in rows_by_frame.items():
        candidates = rows_by_frame.get((video_index, number + 1), [])
        for row in rows if candidates else []:
            distance = np.linalg.norm(center[candidates] - center[row], axis=1)
            pairs.append((row, candidates[int(distance.argmin())]))
    return pairs


def find_on_animal(gray: Gray, xy: Floats) -> npt.NDArray[np.bool_]:
    """Return a mask [K] of the landmarks [K, 2] on or near the animal.

    Otsu's threshold divides the image into bright and dark pixels. The animal consists of the bright ones if
    most pixels near the image center are bright, otherwise of the dark ones.
    """
    side = len(gray)
    _, bright = cv2.threshold(gray, 0, 1, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    middle = slice(side * 2 // 5, side * 3 // 5)
    animal = bright == int(bright[middle, middle].mean() >= 0.5)
    distance = cv2.distanceTransform((~animal).astype(np.uint8), cv2.DIST_L2, 5)
    column, row = np.clip(np.round(xy), 0, side - 1).astype(int).T
    is_near: npt.NDArray[np.bool_] = distance[row, column] <= MARGIN * side / 100
    return is_near


def _compute_fraction(values: npt.NDArray[np.bool_]) -> float:
    return round(float(values.mean()), 4) if values.size else 0.0


def _to_gray(image: torch.Tensor) -> Gray:
    array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return np.asarray(cv2.cvtColor(array, cv2.COLOR_RGB2GRAY), np.uint8)
