"""Check without labels whether each landmark marks the same part on different individuals.

Stability under deformation does not show this: a landmark that marks the head of one animal and the tail of
the next may still follow every deformation. So these checks compare images of different individuals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import DEFAULT_FEATURES, Config, Features
from selfmark.errors import InputError
from selfmark.evaluation.appearance import (
    align_images,
    compute_features,
    describe_landmarks,
    measure_purity,
    measure_unexplained_by_appearance,
)
from selfmark.evaluation.constellation import (
    fit_constellations,
    group_duplicates,
    measure_unexplained_by_others,
)
from selfmark.evaluation.kinds import measure_kind_separation
from selfmark.evaluation.reference_parts import find_reference_parts, measure_missed_movement
from selfmark.features.cells import append_places
from selfmark.features.encoder import Encoder
from selfmark.features.loading import load_encoder
from selfmark.features.orientation import measure_uprightness
from selfmark.points import FloatArray
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.sampling import evenly_spaced

_MIN_DESCRIBED, _MAX_DESCRIBED = 8, 200  # number of images for the checks of appearance
_MIN_REFERENCE_IMAGES = 40  # parts cannot be predicted from each other in fewer images
_MIN_UPRIGHT_IMAGES, _MAX_UPRIGHT_IMAGES = 16, 60  # number of images for measuring uprightness
_MIN_SIDE = 256  # pixels; smaller images are enlarged, because they give too few features
_SIDE_UNIT = 32  # pixels; every encoder accepts images whose side is a multiple of this


@dataclass(frozen=True)
class IndividualChecks:
    """Checks of K landmarks across individuals. A check that was not made is all NaN.

    Attributes:
        purity: [K] fraction of images in which the landmark looks more like the same landmark in the other
            images than like any other landmark.
        constellation: [K] fraction of images in which the landmark has its usual place among the others.
        unexplained: [K] error of predicting the landmark from the others, divided by the error of guessing
            its mean position.
        appearance_error: [K] error of predicting the landmark from places that are found by appearance alone,
            divided by the error of guessing its mean position. There is one such place for each of the K
            landmarks: where the image looks most like that landmark in the other images.
        duplicates: groups of landmarks that mark the same place.
        spread: [K] mean distance of the landmark from its mean position, as a fraction of the image's side.
        kind_separation: 0..1, how clearly the images show two kinds of objects; NaN if not measured.
        upright_accuracy: accuracy of telling images from upside-down copies (0.5 is chance); NaN if not
            measured.
        missed_movement: fraction of the movement of the object's parts that the landmarks do not predict, see
            `reference_parts`; NaN for runs with features, and with fewer than 40 images.
    """

    purity: FloatArray
    constellation: FloatArray
    unexplained: FloatArray
    appearance_error: FloatArray
    duplicates: list[list[int]]
    spread: FloatArray
    kind_separation: float
    upright_accuracy: float
    missed_movement: float


def check_individuals(
    xy: FloatArray,
    pixels: Tensor,
    config: Config,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
) -> IndividualChecks:
    """Check the landmarks of images of different individuals.

    The checks of appearance and the missed movement need pretrained features: those of the run, or the
    default features if the run has no features. They use at most 200 images. They are not made with fewer
    than 8 images, or if the weights of the features are not installed.

    Args:
        xy: [N, K, 2] landmarks, network pixels.
        pixels: [N, 3, S, S] uint8 network images.
        config: settings of the run.
        device: device to compute on.
        group: the processes that share the computation of features; each process gets all results.
    """
    settings, side = config.evaluation, pixels.shape[-1]
    duplicates = group_duplicates(xy, settings.duplicate_radius * side)
    constellation = unexplained = np.full(xy.shape[1], np.nan)
    if xy.shape[1] > 1:
        residual = fit_constellations(xy).residual
        constellation = (residual <= settings.constellation_radius).mean(axis=0)
        unexplained = measure_unexplained_by_others(xy, duplicates)
    appearance = _AppearanceChecks.unmeasured(xy.shape[1])
    missed_movement = math.nan
    encoder = _load_encoder(config, device) if len(pixels) >= _MIN_DESCRIBED else None
    if encoder is not None:
        rows = evenly_spaced(len(pixels), _MAX_DESCRIBED)
        enlarged = _enlarge(pixels[rows])
        points = (xy[rows] + 0.5) * (enlarged.shape[-1] / side) - 0.5
        appearance = _check_appearance(encoder, enlarged, points, duplicates, config, device, group)
        if not config.uses_features and len(pixels) >= _MIN_REFERENCE_IMAGES:
            is_upright = appearance.upright_accuracy >= config.features.min_upright_accuracy
            parts = find_reference_parts(
                encoder, enlarged, config, device, is_upright=is_upright, group=group
            )
            missed_movement = measure_missed_movement(points, parts)
    return IndividualChecks(
        purity=appearance.purity,
        constellation=constellation,
        unexplained=unexplained,
        appearance_error=appearance.error,
        duplicates=duplicates,
        spread=np.linalg.norm(xy - xy.mean(axis=0), axis=-1).mean(axis=0) / side,
        kind_separation=appearance.kind_separation,
        upright_accuracy=appearance.upright_accuracy,
        missed_movement=missed_movement,
    )


class _AppearanceChecks(NamedTuple):
    """Checks that need pretrained features; `error` is the `appearance_error` of `IndividualChecks`."""

    purity: FloatArray
    error: FloatArray
    kind_separation: float
    upright_accuracy: float

    @classmethod
    def unmeasured(cls, num_landmarks: int) -> _AppearanceChecks:
        """Return checks whose values are all NaN."""
        unmeasured_values = np.full(num_landmarks, np.nan)
        return cls(unmeasured_values, unmeasured_values, math.nan, math.nan)


@torch.no_grad()
def _check_appearance(
    encoder: Encoder,
    pixels: Tensor,
    xy: FloatArray,
    duplicates: list[list[int]],
    config: Config,
    device: torch.device,
    group: ProcessGroup,
) -> _AppearanceChecks:
    batch = config.runtime.predict_batch
    settings = _choose_places(config)
    # The place of a part in an image says which part it is only if the image stays as it is.
    is_aligned = settings.places != "used" and xy.shape[1] > 1
    images = align_images(pixels.cpu(), xy, fit_constellations(xy) if is_aligned else None)
    features = compute_features(encoder, images.pixels, device, batch, group)
    cells = append_places(features, settings)
    descriptor = describe_landmarks(cells, images.xy, settings)
    appearance = descriptor[..., : features.shape[1]]
    return _AppearanceChecks(
        purity=measure_purity(appearance, duplicates),
        error=measure_unexplained_by_appearance(images, cells, descriptor, xy, settings),
        kind_separation=measure_kind_separation(appearance),
        upright_accuracy=_measure_uprightness(encoder, pixels, config, device, group),
    )


def _choose_places(config: Config) -> Features:
    """Return settings of features with places used or ignored, whichever suits the check of appearance.

    If the run tells similar parts of upright objects apart by their places, such as the two eyes, the check
    does, too. Zero-shot landmarks were found by exactly this, so it would only confirm them.
    """
    features = config.features
    uses_places = (
        features.places == "used"
        and features.orientation == "upright"
        and config.method != "zero-shot"
        and config.uses_features
    )
    return features if uses_places else replace(features, places="ignored")


def _measure_uprightness(
    encoder: Encoder, pixels: Tensor, config: Config, device: torch.device, group: ProcessGroup
) -> float:
    """Return the accuracy of telling images from upside-down copies.

    The result is NaN if the run does not expect upright objects, or if there are too few images.
    """
    expects_upright = config.features.orientation in ("upright", "auto") and config.augment.rotation < 90
    if not expects_upright or len(pixels) < _MIN_UPRIGHT_IMAGES:
        return math.nan
    sample = pixels[evenly_spaced(len(pixels), _MAX_UPRIGHT_IMAGES)].to(device)
    return measure_uprightness(encoder, sample, config.runtime.predict_batch, group)


def _enlarge(pixels: Tensor) -> Tensor:
    """Enlarge images [N, 3, S, S] uint8 to a side that encoders accept, at least `_MIN_SIDE`."""
    side = _SIDE_UNIT * math.ceil(max(pixels.shape[-1], _MIN_SIDE) / _SIDE_UNIT)
    if side == pixels.shape[-1]:
        return pixels
    enlarged = F.interpolate(pixels.float(), (side, side), mode="bilinear", align_corners=False)
    return enlarged.round().to(torch.uint8)


def _load_encoder(config: Config, device: torch.device) -> Encoder | None:
    """Load the encoder of the run, or the default encoder; None if its weights are not installed."""
    try:
        return load_encoder(config.features.name if config.uses_features else DEFAULT_FEATURES, device)
    except InputError:
        return None
