"""Check a run without features by parts of the object that pretrained features find.

Such a run has learned from its images alone, so pretrained features are independent evidence. They find parts
in the images without knowing the landmarks. Landmarks that together follow the object predict these parts,
even if no single landmark is reliable. Landmarks that cover only one side of the object do not predict the
parts of the other side.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.correspondence.agreement import unexplained_fraction
from selfmark.correspondence.zero_shot import find_foreground, find_part_centroids, place_parts
from selfmark.features.cells import describe_colors
from selfmark.features.encoder import Encoder
from selfmark.features.orientation import average_rotations
from selfmark.images.feed import PixelFeed
from selfmark.points import FloatArray
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup


@torch.no_grad()
def find_reference_parts(
    encoder: Encoder,
    pixels: Tensor,
    config: Config,
    device: torch.device,
    *,
    is_upright: bool,
    group: ProcessGroup = SINGLE_PROCESS,
) -> FloatArray:
    """Find parts of the objects by clustering features, as zero-shot discovery does.

    Args:
        encoder: pretrained network, on `device`.
        pixels: [N, 3, S, S] uint8 images.
        config: number of parts, settings of zero-shot discovery, images per pass.
        device: device to compute on.
        is_upright: whether all objects are upright. Otherwise the features are averaged over rotated copies
            of each image.
        group: the processes that share the passes; each process gets the same parts.

    Returns:
        [N, R, 2] positions of R parts, in pixels.
    """
    settings, batch = config.features, config.runtime.predict_batch
    rotations = 1 if is_upright else settings.rotations

    def describe(rows: slice) -> list[Tensor]:
        described = [
            average_rotations(encoder.describe, images.to(device).float() / 255, rotations).half().cpu()
            for images in torch.split(pixels[rows], batch)
        ]
        return [torch.cat(described)]

    # Other strides would round differently, and they depend on how many processes computed the features.
    cells = group.compute_shared(len(pixels), batch, describe)[0].contiguous()
    colors = describe_colors(PixelFeed(pixels, device), slice(0, len(pixels)), batch)
    generator = torch.Generator(device).manual_seed(config.evaluation.seed)
    foreground = find_foreground(cells, colors, settings, generator)
    centroids = find_part_centroids(cells, foreground, config.evaluation.reference_parts, settings, generator)
    positions: FloatArray = place_parts(cells, centroids, settings.sharpness).xy.double().cpu().numpy()
    return positions


def measure_missed_movement(landmarks: FloatArray, parts: FloatArray) -> float:
    """Return the fraction of the movement of the parts that the landmarks do not predict.

    The positions of the parts are inexact. The inexactness cannot be predicted from anything, so it is
    estimated by predicting each part from the landmarks and the other parts together, and then it is left
    out. With the squares of distances, averaged over all parts:

        missed = sqrt((error from the landmarks - inexactness) / (error of guessing - inexactness))

    So the result is 0 if the landmarks predict the parts as well as the other parts do, and 1 if they predict
    nothing. It is NaN if the parts cannot be predicted from anything.

    Args:
        landmarks: [N, K, 2] landmarks, in pixels.
        parts: [N, R, 2] parts in the same images, R >= 2.
    """
    present = np.ones((len(parts), 1), dtype=bool)
    missed = movement = 0.0
    for index in range(parts.shape[1]):
        part, others = parts[:, index : index + 1], np.delete(parts, index, axis=1)
        predictors = (landmarks, others, np.concatenate([landmarks, others], axis=1))
        errors = [min(unexplained_fraction(inputs, part, present), 1.0) for inputs in predictors]
        spread = np.linalg.norm(part - part.mean(axis=0), axis=-1).mean()
        missed += spread**2 * (errors[0] ** 2 - min(errors) ** 2)
        movement += spread**2 * (1 - min(errors) ** 2)
    return float(np.sqrt(missed / movement)) if movement > 0 else float("nan")
