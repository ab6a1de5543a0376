"""Whether the same number is the same part on different individuals, measured without labels.

Stability under deformation cannot tell: a landmark that is the head of one animal and the tail of the next
follows every deformation. These checks compare images of different individuals instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import DEFAULT_FEATURES, Config
from selfmark.errors import InputError
from selfmark.evaluation.appearance import compute_features, describe_landmarks, measure_purity
from selfmark.evaluation.constellation import fit_constellations, group_duplicates, unexplained_by_others
from selfmark.features.encoder import Encoder
from selfmark.features.loading import load_encoder
from selfmark.points import FloatArray
from selfmark.sampling import evenly_spaced

_MAX_DESCRIBED = 100  # images in which landmarks are described
_MIN_SIDE = 256  # pixels; smaller images have too few cells
_SIDE_UNIT = 32  # encoders need a side that is a multiple of this


@dataclass(frozen=True)
class IndividualChecks:
    """Checks of K landmarks across individuals. A check that was not made is all NaN.

    Attributes:
        purity: [K] fraction of images in which the landmark looks more like itself than like any other.
        constellation: [K] fraction of images in which it has its usual place among the other landmarks.
        unexplained: [K] error of predicting it from the others, over that of guessing its mean position.
        duplicates: groups of landmarks that mark the same place.
    """

    purity: FloatArray
    constellation: FloatArray
    unexplained: FloatArray
    duplicates: list[list[int]]


def check_individuals(
    xy: FloatArray, pixels: Tensor, config: Config, device: torch.device
) -> IndividualChecks:
    """Check the landmarks of images of different individuals.

    Purity needs pretrained features: those of the run, or the default ones for a run without features. It is
    measured on some of the images, and not at all if the weights are not installed.

    Args:
        xy: [N, K, 2] landmarks, network pixels.
        pixels: [N, 3, S, S] uint8 network images.
        config: settings of the run.
        device: device to compute on.
    """
    settings, batch, side = config.evaluation, config.runtime.predict_batch, pixels.shape[-1]
    duplicates = group_duplicates(xy, settings.duplicate_radius * side)
    constellation = unexplained = purity = np.full(xy.shape[1], np.nan)
    if xy.shape[1] > 1:
        residual = fit_constellations(xy).residual
        constellation = (residual <= settings.constellation_radius).mean(axis=0)
        unexplained = unexplained_by_others(xy, duplicates)
    encoder = _load_encoder(config, device)
    if encoder is not None:
        rows = evenly_spaced(len(pixels), _MAX_DESCRIBED)
        enlarged = _enlarge(pixels[rows])
        points = (xy[rows] + 0.5) * (enlarged.shape[-1] / side) - 0.5
        cells = compute_features(encoder, enlarged, device, batch)
        purity = measure_purity(describe_landmarks(cells, points), duplicates)
    return IndividualChecks(purity, constellation, unexplained, duplicates)


def _enlarge(pixels: Tensor) -> Tensor:
    """Enlarge images [N, 3, S, S] uint8 to a side that encoders accept and that has enough cells."""
    side = _SIDE_UNIT * math.ceil(max(pixels.shape[-1], _MIN_SIDE) / _SIDE_UNIT)
    if side == pixels.shape[-1]:
        return pixels
    enlarged = F.interpolate(pixels.float(), (side, side), mode="bilinear", align_corners=False)
    return enlarged.round().to(torch.uint8)


def _load_encoder(config: Config, device: torch.device) -> Encoder | None:
    """Load the encoder of the run, or the default one; None if its weights are not installed."""
    try:
        return load_encoder(config.features.name if config.uses_features else DEFAULT_FEATURES, device)
    except InputError:
        return None
