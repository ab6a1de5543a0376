"""Whether landmarks lie on the background of a video from a fixed camera."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.image_ref import ImageRef
from selfmark.points import FloatArray


def are_whole_frames_of_one_video(refs: Sequence[ImageRef]) -> bool:
    """Return True if all images are whole frames of one video.

    If its camera does not move, which is not checked, the median frame shows the background.
    """
    sources = [ref.source_frame for ref in refs]
    videos = {source[0] for source in sources if source is not None}
    return None not in sources and len(videos) == 1 and all(ref.box is None for ref in refs)


def measure_background(pixels: Tensor, xy: FloatArray, radius: int, max_difference: float) -> FloatArray:
    """Return for each landmark [K] the fraction of frames that look like the median frame around it.

    Args:
        pixels: [N, 3, S, S] uint8 frames of one video.
        xy: [N, K, 2] landmarks, pixels of the frames.
        radius: half the side of the compared square, pixels.
        max_difference: maximum mean difference of two squares that look alike, gray levels.
    """
    median = pixels.median(dim=0).values.float()
    size = pixels.shape[-1]
    rates = np.zeros(xy.shape[1])
    for frame, landmarks in zip(pixels, xy, strict=True):
        difference = (frame.float() - median).abs().mean(dim=0)[None, None]
        smooth = F.avg_pool2d(difference, 2 * radius + 1, stride=1, padding=radius, count_include_pad=False)
        column, row = torch.from_numpy(landmarks).round().long().clamp(0, size - 1).unbind(dim=-1)
        rates += (smooth[0, 0, row, column] <= max_difference).numpy()
    return rates / len(pixels)
