"""Find the moving animals in videos of a fixed camera, as pixels that differ from the background.

The background is the median of frames sampled from the whole video. This works because a moving animal covers
a pixel in fewer than half of the frames. Before the median is computed, frames are converted to gray and
reduced in size.
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
_MAX_FOREGROUND = 0.5  # fraction of the pixels; if more differ from the background, the camera is not fixed


@dataclass(frozen=True)
class Background:
    """Background of a video, and the parameters that separate animals from it.

    gray:      [h, w] uint8, the scene without animals
    scale:     size of `gray` relative to the video, at most 1
    threshold: minimum difference of an animal's pixels from the background, in gray levels
    opening:   kernel of the morphological opening that removes thin parts
    area:      area of one animal without thin parts, in pixels of `gray`; median over the sampled frames
    """

    gray: Gray
    scale: float
    threshold: float
    opening: Mask
    area: float

    def foreground(self, frame: Pixels) -> Mask:
        """Return the mask [h, w] of the animals in a frame [H, W, 3], without thin parts such as tails."""
        return _apply_opening(
            _difference(_shrink(frame, self.scale), self.gray) > self.threshold, self.opening
        )

    def shrink_colors(self, frame: Pixels) -> Pixels:
        """Reduce a color frame [H, W, 3] to the size of the background, [h, w, 3]."""
        size = self.gray.shape[::-1]
        return np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def learn_background(path: Path, animals: int, settings: Tracking) -> Background:
    """Compute the background of a video, and the threshold, opening and area of its animals.

    Raises:
        InputError: if no frame can be read, if the sampled frames differ in size, if no animals are found, or
            if more than half of the pixels change.
    """
    video = probe_video(path)
    numbers = evenly_spaced(video.frames, settings.num_samples, nearest=True).tolist()
    scale = min(1.0, settings.max_side / max(video.size))
    samples: list[Gray] = []
    for number, frame in read_frames(path, numbers):
        require_background_size(path, number, frame, video.size)
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
    foreground_area = float(
        np.median([_apply_opening(change > threshold, opening).sum() for change in differences])
    )
    if not 0 < foreground_area < _MAX_FOREGROUND * gray.size:
        raise InputError(
            f"{path}: no animals were found. The camera must be fixed and the animals must move; otherwise, "
            "provide their boxes with --boxes"
        )
    return Background(gray, scale, threshold, opening, foreground_area / animals)


def require_background_size(path: Path, number: int, frame: Pixels, size: tuple[int, int]) -> None:
    """Raise if a frame does not have the `size` (width, height) of the first frame and the background."""
    if frame.shape[:2] != (size[1], size[0]):
        raise InputError(
            f"frame {number} of {path} differs in size from the first frame; split the video there"
        )


def _shrink(frame: Pixels, scale: float) -> Gray:
    """Convert a frame [H, W, 3] to gray and reduce it by `scale`, [h, w]."""
    gray = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    if scale < 1:
        gray = cv2.resize(gray, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return np.asarray(gray, dtype=np.uint8)


def _difference(gray: Gray, background: Gray) -> Gray:
    """Return the smoothed absolute difference in gray levels, corrected for changes of overall brightness."""
    difference = gray.astype(np.int16) - background
    difference -= np.int16(np.median(difference[::4, ::4]))
    magnitude = np.minimum(np.abs(difference), 255).astype(np.uint8)
    return np.asarray(cv2.GaussianBlur(magnitude, (0, 0), _BLUR_SIGMA), dtype=np.uint8)


def _apply_opening(mask: npt.NDArray[np.bool_], kernel: Mask) -> Mask:
    """Apply a morphological opening to a mask [h, w]."""
    return np.asarray(cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_OPEN, kernel), dtype=np.uint8)
