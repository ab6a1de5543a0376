"""Temporal pairs: keypoints carried to a nearby frame by sparse optical flow (Implementation Details).

Lucas-Kanade on the CPU (OpenCV), once per round, with a forward-backward check: a point that does not come
back to where it started is not a correspondence.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import torch

from selfmark.config import Temporal


@dataclass(frozen=True)
class CarriedPoints:
    """Where the keypoints of each image are in nearby frames.

    neighbor: [N, T] int64, image index of the nearby frame; -1 where an image has none
    xy:        [N, T, P, 2] float32, the image's P keypoints there, network pixels
    valid:     [N, T, P] bool, carried there and back within the tolerance
    """

    neighbor: torch.Tensor
    xy: torch.Tensor
    valid: torch.Tensor

    def to(self, device: torch.device) -> CarriedPoints:
        return CarriedPoints(self.neighbor.to(device), self.xy.to(device), self.valid.to(device))


def has_nearby_frames(
    video: npt.NDArray[np.int64], frame: npt.NDArray[np.int64], track: npt.NDArray[np.int64]
) -> bool:
    """Whether any image [N] is seen in another frame of its video; arguments as in `nearby_frames`."""
    seen = np.unique(np.stack([video, track, frame], axis=1)[video >= 0], axis=0)
    return len(seen) > len(np.unique(seen[:, :2], axis=0))


def nearby_frames(
    video: npt.NDArray[np.int64],
    frame: npt.NDArray[np.int64],
    track: npt.NDArray[np.int64],
    center: npt.NDArray[np.float64],
    settings: Temporal,
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """For each image T random images of nearby frames of its video, [N, T]; -1 where there is none.

    An object is paired with itself: with the object of its `track_points` [N], and where no track is known (-1) with
    the one whose crop's `center` [N, 2] lies nearest. A frame without it is no neighbor.
    """
    chosen = np.full((len(video), settings.neighbors), -1, dtype=np.int64)
    for number in np.unique(video[video >= 0]):
        members = np.flatnonzero(video == number)
        frames, position = np.unique(frame[members], return_inverse=True)
        if len(frames) < 2:
            continue
        by_frame = [members[position == index] for index in range(len(frames))]
        steps = rng.integers(1, settings.max_frame_gap + 1, size=(len(members), settings.neighbors))
        signs = rng.choice((-1, 1), size=steps.shape)
        target = position[:, None] + signs * steps
        outside = (target < 0) | (target >= len(frames))
        target = np.clip(np.where(outside, position[:, None] - signs * steps, target), 0, len(frames) - 1)
        for row, image in enumerate(members):
            for column in range(settings.neighbors):
                if target[row, column] != position[row]:
                    options = by_frame[target[row, column]]
                    options = options[track[options] == track[image]]
                    if not len(options):
                        continue
                    away = np.square(center[options] - center[image]).sum(axis=1)
                    chosen[image, column] = options[int(away.argmin())]
    return chosen


def carry_points(
    pixels: torch.Tensor,
    xy: torch.Tensor,
    valid: torch.Tensor,
    neighbor: npt.NDArray[np.int64],
    settings: Temporal,
) -> CarriedPoints:
    """Follow the keypoints [N, P, 2] of the images [N, 3, S, S] uint8 into their nearby frames [N, T]."""
    points = xy.cpu().numpy().astype(np.float32)
    known = valid.cpu().numpy()
    images, slots = neighbor.shape
    carried = np.zeros((images, slots, *points.shape[1:]), dtype=np.float32)
    followed = np.zeros(carried.shape[:-1], dtype=bool)

    def follow(image: int) -> None:
        rows = np.flatnonzero(known[image])
        if not len(rows):
            return
        here = _gray(pixels[image])
        for slot in np.flatnonzero(neighbor[image] >= 0):
            there = _gray(pixels[int(neighbor[image, slot])])
            moved, good = track_points(here, there, points[image, rows], settings)
            carried[image, slot, rows] = moved
            followed[image, slot, rows] = good

    with ThreadPoolExecutor() as pool:
        list(pool.map(follow, np.flatnonzero((neighbor >= 0).any(axis=1))))
    return CarriedPoints(torch.from_numpy(neighbor), torch.from_numpy(carried), torch.from_numpy(followed))


def track_points(
    here: npt.NDArray[np.uint8],
    there: npt.NDArray[np.uint8],
    points: npt.NDArray[np.float32],
    settings: Temporal,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Points [P, 2] of one gray image in another, and which of them return to within `check` pixels."""
    window = (settings.window, settings.window)
    start = points.reshape(-1, 1, 2)
    forth, found, _ = cv2.calcOpticalFlowPyrLK(
        here, there, start, np.empty_like(start), winSize=window, maxLevel=settings.levels
    )
    back, returned, _ = cv2.calcOpticalFlowPyrLK(
        there, here, forth, np.empty_like(start), winSize=window, maxLevel=settings.levels
    )
    error = np.linalg.norm((back - start).reshape(-1, 2), axis=1)
    good = (found.ravel() == 1) & (returned.ravel() == 1) & (error <= settings.max_return_error)
    return forth.reshape(-1, 2).astype(np.float32), good


def _gray(image: torch.Tensor) -> npt.NDArray[np.uint8]:
    array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return np.asarray(cv2.cvtColor(array, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
