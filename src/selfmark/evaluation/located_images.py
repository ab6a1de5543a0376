"""Find the landmarks of many network images with a detector, batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

from selfmark.detector import Detector, NetworkLandmarks
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup


def locate_images(
    detector: Detector, pixels: Tensor, batch: int, group: ProcessGroup = SINGLE_PROCESS
) -> NetworkLandmarks:
    """Find the landmarks of network images [N, 3, S, S] uint8, N >= 1.

    Args:
        detector: The detector.
        pixels: The images.
        batch: Number of images processed at a time.
        group: the processes that share the images; each process gets the landmarks of all images.
    """

    def locate(rows: slice) -> list[Tensor]:
        parts = [detector.locate(block) for block in torch.split(pixels[rows], batch)]
        return [torch.cat(column) for column in zip(*parts, strict=True)]

    return NetworkLandmarks(*group.compute_shared(len(pixels), batch, locate))
