"""Background subtraction for a fixed camera.

The background is the median of frames sampled from the whole video, since a moving animal covers each pixel
in fewer than half of them. Frames are first converted to gray and downscaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.config import Tracking
from selfmark.errors import InputError
from selfmark.images.decode import Pixels
from selfmark.images.video import probe_video, read_frames
from selfmark.sampling import evenly_spaced

Gray = npt.NDArray[np.uint8]  # [h, w]
Mask = npt.NDArray[np.uint8]  # [h, w] of 0 and 1

_BLUR_SIGMA = 1.0  # pixels; suppresses the noise of single pixels
_MAX_FOREGROUND = 0.5  # fraction of the frame; if more differs from the background, the camera moves


@dataclass(frozen=True)
class Background:
    """Background of a video, and the parameters that separate animals from it.

    gray:      [h, w] uint8, the scene without animals, `scale` times the size of the video
    scale:     size of `gray` relative to the video, at most 1
    threshold: minimum difference of an animal's pixels from the background, gray levels
    opening:   kernel of the morphological opening that removes thin parts
    area:      area of one animal without its thin parts, pixels of `gray`; the median over the sampled frames
    """

    gray: Gray
    scale: float
    threshold: float
    opening: Mask
    area: float

    def foreground(self, frame: Pixels) -> Mask:
        """Return a mask [h, w] of the animals, without tails and legs, in a frame [H, W, 3] of the video."""
        return _open(_difference(_shrink(frame, self.scale), self.gray) > self.threshold, self.opening)

    def shrink_colors(self, frame: Pixels) -> Pixels:
        """Return the frame [H, W, 3] in color at the size of the background, [h, w, 3]."""
        size = self.gray.shape[::-1]
        return np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def learn_background(path: Path, animals: int, settings: Tracking) -> Background:
    """Compute the background of a video, and the threshold and area of its animals.

    Raises:
        InputError: if no animals are found, or if most of the frame changes.
    """
    video = probe_video(path)
    numbers = evenly_spaced(video.frames, settings.num_samples, nearest=True).tolist()
    scale = min(1.0, settings.max_side / max(video.size))
    samples: list[Gray] = []
    for number, frame in read_frames(path, numbers):
        check_frame_size(path, number, frame, video.size)
        samples.append(_shrink(frame, scale))
    if not samples:
        raise InputError(f"no frame of {path} could be read")
    gray = np.median(np.stack(samples), axis=0).astype(np.uint8)
    differences = np.stack([_difference(sample, gray) for sample in samples])
    otsu, _ = cv2.threshold(differences.reshape(-1, 1), 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    threshold = max(float(otsu), settings.min_contrast)
    rough_area = float(np.median((differences > threshold).sum(axis=(1, 2)))) / animals
    radius = max(1, round(settings.opening_fraction * rough_area**0.5))
    opening: Mask = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1)).astype(
        np.uint8
    )
    foreground = float(np.median([_open(change > threshold, opening).sum() for change in differences]))
    if not 0 < foreground < _MAX_FOREGROUND * gray.size:
        raise InputError(
            f"{path}: no animals were found; the camera must be fixed and the animals must move, otherwise "
            "pass their boxes with --boxes"
        )
    return Background(gray, scale, threshold, opening, foreground / animals)


def check_frame_size(path: Path, number: int, frame: Pixels, size: tuple[int, int]) -> None:
    """Raise if a frame differs in size from the first, because a background has a single size."""
    if frame.shape[:2] != (size[1], size[0]):
        raise InputError(
            f"frame {number} of {path} differs in size from the first frame; split the video there"
        )


def _shrink(frame: Pixels, scale: float) -> Gray:
    gray = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    if scale < 1:
        gray = cv2.resize(gray, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return np.asarray(gray, dtype=np.uint8)


def _difference(gray: Gray, background: Gray) -> Gray:
    """Return the smoothed absolute difference in gray levels, corrected for changes of overall brightness."""
    difference = gray.astype(np.int16) - background
    difference -= np.int16(np.median(difference[::4, ::4]))
    return np.asarray(
        cv2.GaussianBlur(np.abs(difference).astype(np.uint8), (0, 0), _BLUR_SIGMA), dtype=np.uint8
    )


def _open(mask: npt.NDArray[np.bool_], kernel: Mask) -> Mask:
    return np.asarray(cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_OPEN, kernel), dtype=np.uint8)
