"""Check whether landmarks lie on the background of a video from a fixed camera."""

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

    If the camera does not move, the median frame of such a video shows the background. This function does not
    check the camera.
    """
    sources = [ref.source_frame for ref in refs]
    videos = {source[0] for source in sources if source is not None}
    return None not in sources and len(videos) == 1 and all(ref.box is None for ref in refs)


def measure_background(pixels: Tensor, xy: FloatArray, radius: int, max_difference: float) -> FloatArray:
    """Return the fraction of frames [K] in which a landmark lies on the background.

    A landmark lies on the background if the square around it looks the same in the median frame.

    Args:
        pixels: [N, 3, S, S] uint8 frames of one video.
        xy: [N, K, 2] landmarks, pixels of the frames.
        radius: the square has a side of 2 * radius + 1 pixels.
        max_difference: maximum mean difference of two squares that look the same, gray levels of 0..255.
    """
    median = pixels.median(dim=0).values.float()
    size = pixels.shape[-1]
    num_background_frames = np.zeros(xy.shape[1])
    for frame, landmarks in zip(pixels, xy, strict=True):
        difference = (frame.float() - median).abs().mean(dim=0)[None, None]
        # `mean` [1, 1, S, S] is the mean difference over the square around each pixel.
        mean = F.avg_pool2d(difference, 2 * radius + 1, stride=1, padding=radius, count_include_pad=False)
        column, row = torch.from_numpy(landmarks).round().long().clamp(0, size - 1).unbind(dim=-1)
        num_background_frames += (mean[0, 0, row, column] <= max_difference).numpy()
    return num_background_frames / len(pixels)
