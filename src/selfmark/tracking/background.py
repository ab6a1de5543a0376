"""What a fixed camera sees without its animals, and what stands out from that.

The background is the median of frames from all over the video: an animal that moves about covers a place in
fewer than half of them. Frames are looked at in gray and not larger than need be.
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

_BLUR = 1.0  # sigma, pixels: noise of single pixels is no animal
_MOST_COVERED = 0.5  # of the frame; where more stands out, the camera moves


@dataclass(frozen=True)
class Background:
    """How to tell animals from what is behind them.

    gray:      [h, w] the empty scene, at `scale` times the size of the video
    threshold: gray levels a pixel of an animal differs at least
    opening:   kernel that takes thin parts away
    area:      pixels of one animal, its thin parts taken away; the median of the frames looked at
    """

    gray: Gray
    scale: float
    threshold: float
    opening: Mask
    area: float

    def foreground(self, frame: Pixels) -> Mask:
        """The pixels [h, w] of animals, tails and legs apart."""
        return _opened(_difference(_shrunk(frame, self.scale), self.gray) > self.threshold, self.opening)


def learn_background(path: Path, animals: int, settings: Tracking) -> Background:
    """The scene of a video without its animals."""
    video = probe_video(path)
    wanted = evenly_spaced(video.frames, settings.num_samples, nearest=True).tolist()
    scale = min(1.0, settings.max_side / max(video.size))
    samples: list[Gray] = []
    for number, frame in read_frames(path, wanted):
        check_frame_size(path, number, frame, video.size)
        samples.append(_shrunk(frame, scale))
    if not samples:
        raise InputError(f"no frame of {path} could be read")
    gray = np.median(np.stack(samples), axis=0).astype(np.uint8)
    differences = np.stack([_difference(sample, gray) for sample in samples])
    otsu, _ = cv2.threshold(differences.reshape(-1, 1), 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    threshold = max(float(otsu), settings.min_contrast)
    rough = float(np.median((differences > threshold).sum(axis=(1, 2)))) / animals
    radius = max(1, round(settings.opening_fraction * rough**0.5))
    opening: Mask = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1)).astype(
        np.uint8
    )
    covered = float(np.median([_opened(one > threshold, opening).sum() for one in differences]))
    if not 0 < covered < _MOST_COVERED * gray.size:
        raise InputError(
            f"{path}: no animals stand out from the background; they must move, before a camera that does "
            "not, else give their places with --boxes"
        )
    return Background(gray, scale, threshold, opening, covered / animals)


def check_frame_size(path: Path, number: int, frame: Pixels, size: tuple[int, int]) -> None:
    """Say no to a video whose frames change their size: its background does so too."""
    if frame.shape[:2] != (size[1], size[0]):
        raise InputError(f"frame {number} of {path} has another size than the first; cut the video there")


def _shrunk(frame: Pixels, scale: float) -> Gray:
    gray = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    if scale < 1:
        gray = cv2.resize(gray, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return np.asarray(gray, dtype=np.uint8)


def _difference(gray: Gray, background: Gray) -> Gray:
    """Gray levels between a frame and the background, whatever the light does to the frame as a whole."""
    apart = gray.astype(np.int16) - background
    apart -= np.int16(np.median(apart[::4, ::4]))
    return np.asarray(cv2.GaussianBlur(np.abs(apart).astype(np.uint8), (0, 0), _BLUR), dtype=np.uint8)


def _opened(mask: npt.NDArray[np.bool_], kernel: Mask) -> Mask:
    return np.asarray(cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_OPEN, kernel), dtype=np.uint8)
