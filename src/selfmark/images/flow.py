"""Propagate keypoints to nearby video frames by sparse optical flow (Sec. 4.2 of the paper).

An image and a nearby frame form a training pair. Lucas-Kanade runs on the CPU (OpenCV), once per round. A
forward-backward check rejects points that do not return to their start when they are tracked back.
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
class PropagatedPoints:
    """Positions of each image's keypoints in nearby frames.

    video:    [N] int64, number of the video of each image; -1 for still images
    neighbor: [N, T] int64, image index of the nearby frame; -1 where an image has none
    xy:       [N, T, P, 2] float32, the image's P keypoints in that frame, network pixels
    valid:    [N, T, P] bool, whether the point passed the forward-backward check
    """

    video: torch.Tensor
    neighbor: torch.Tensor
    xy: torch.Tensor
    valid: torch.Tensor

    def to(self, device: torch.device) -> PropagatedPoints:
        """Return a copy on a device."""
        tensors = (self.video, self.neighbor, self.xy, self.valid)
        return PropagatedPoints(*(tensor.to(device) for tensor in tensors))


def has_nearby_frames(
    video: npt.NDArray[np.int64], frame: npt.NDArray[np.int64], track: npt.NDArray[np.int64]
) -> bool:
    """Return True if any object occurs in several frames; see `sample_nearby_frames` for the arguments."""
    unique_frames = np.unique(np.stack([video, track, frame], axis=1)[video >= 0], axis=0)
    return len(unique_frames) > len(np.unique(unique_frames[:, :2], axis=0))


def sample_nearby_frames(
    video: npt.NDArray[np.int64],
    frame: npt.NDArray[np.int64],
    track: npt.NDArray[np.int64],
    center: npt.NDArray[np.float64],
    settings: Temporal,
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Draw random nearby frames of the same video for each image.

    Frames are nearby if they are at most `settings.max_frame_gap` frames apart in the original video. Of
    the frames that the run uses, the previous and the next one always count as nearby. A nearby frame
    must contain the same object: the object with the same track or, if tracks are unknown, the object whose
    crop is nearest.

    Args:
        video: [N], number of the video of each image; -1 for still images.
        frame: [N], frame number in the original video.
        track: [N], track of the object; -1 if unknown.
        center: [N, 2], center of the crop, pixels of the original.
        settings: number of neighbors T, and their maximum distance in frames.
        rng: random generator.

    Returns:
        Image indices [N, T]; -1 where there is no neighbor.
    """
    chosen = np.full((len(video), settings.neighbors), -1, dtype=np.int64)
    for number in np.unique(video[video >= 0]):
        members = np.flatnonzero(video == number)
        unique_frames, position = np.unique(frame[members], return_inverse=True)
        if len(unique_frames) < 2:
            continue
        by_frame = [members[position == index] for index in range(len(unique_frames))]
        # The frames near frames[i] are frames[first[i]] to frames[last[i]].
        index = np.arange(len(unique_frames))
        first = np.searchsorted(unique_frames, unique_frames - settings.max_frame_gap)
        first = np.minimum(first, np.maximum(index - 1, 0))
        last = np.searchsorted(unique_frames, unique_frames + settings.max_frame_gap, side="right") - 1
        last = np.maximum(last, np.minimum(index + 1, len(unique_frames) - 1))
        # Draw from first..last without the frame itself: draws at or above the frame's position move up by 1.
        count = (last - first)[position]
        drawn = first[position][:, None] + rng.integers(
            count[:, None], size=(len(members), settings.neighbors)
        )
        target = drawn + (drawn >= position[:, None])
        for row, image in enumerate(members):
            for column in range(settings.neighbors):
                options = by_frame[target[row, column]]
                options = options[track[options] == track[image]]
                if not len(options):
                    continue
                distance = np.square(center[options] - center[image]).sum(axis=1)
                chosen[image, column] = options[int(distance.argmin())]
    return chosen


def propagate_points(
    pixels: torch.Tensor,
    xy: torch.Tensor,
    valid: torch.Tensor,
    video: npt.NDArray[np.int64],
    neighbor: npt.NDArray[np.int64],
    settings: Temporal,
) -> PropagatedPoints:
    """Propagate the keypoints of each image to its nearby frames.

    Args:
        pixels: images [N, 3, S, S] uint8.
        xy: keypoints [N, P, 2], network pixels.
        valid: [N, P] bool, which keypoints exist.
        video: [N], number of the video of each image.
        neighbor: [N, T], image indices from `sample_nearby_frames`.
        settings: parameters of the optical flow and its check.
    """
    points = xy.cpu().numpy().astype(np.float32)
    exists = valid.cpu().numpy()
    num_images, num_slots = neighbor.shape
    propagated = np.zeros((num_images, num_slots, *points.shape[1:]), dtype=np.float32)
    has_passed = np.zeros(propagated.shape[:-1], dtype=bool)

    def propagate(image: int) -> None:
        rows = np.flatnonzero(exists[image])
        if not len(rows):
            return
        source = _to_gray(pixels[image])
        for slot in np.flatnonzero(neighbor[image] >= 0):
            target = _to_gray(pixels[int(neighbor[image, slot])])
            target_points, is_valid = track_points(source, target, points[image, rows], settings)
            propagated[image, slot, rows] = target_points
            has_passed[image, slot, rows] = is_valid

    with ThreadPoolExecutor() as pool:
        list(pool.map(propagate, np.flatnonzero((neighbor >= 0).any(axis=1))))
    return PropagatedPoints(
        torch.from_numpy(video),
        torch.from_numpy(neighbor),
        torch.from_numpy(propagated),
        torch.from_numpy(has_passed),
    )


def track_points(
    source: npt.NDArray[np.uint8],
    target: npt.NDArray[np.uint8],
    points: npt.NDArray[np.float32],
    settings: Temporal,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Track points from one gray image to another by optical flow.

    Args:
        source: gray image [h, w].
        target: gray image [h, w].
        points: [P, 2], pixels of `source`.
        settings: parameters of the optical flow and its check.

    Returns:
        The points [P, 2] in `target`, and a mask [P] of those that return to within
        `settings.max_return_error` pixels of their start when they are tracked back to `source`.
    """
    window = (settings.window, settings.window)
    start = points.reshape(-1, 1, 2)
    forward, forward_status, _ = cv2.calcOpticalFlowPyrLK(
        source, target, start, np.empty_like(start), winSize=window, maxLevel=settings.levels
    )
    returned_points, return_status, _ = cv2.calcOpticalFlowPyrLK(
        target, source, forward, np.empty_like(start), winSize=window, maxLevel=settings.levels
    )
    error = np.linalg.norm((returned_points - start).reshape(-1, 2), axis=1)
    is_tracked = (forward_status.ravel() == 1) & (return_status.ravel() == 1)
    return forward.reshape(-1, 2).astype(np.float32), is_tracked & (error <= settings.max_return_error)


def _to_gray(image: torch.Tensor) -> npt.NDArray[np.uint8]:
    array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return np.asarray(cv2.cvtColor(array, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
