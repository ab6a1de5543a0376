"""Test the check for unfamiliar images: a distance computed by hand, and the warning."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from selfmark.config import Guards
from selfmark.detector import Detector
from selfmark.evaluation.familiarity import (
    FILE,
    fit_familiarity,
    measure_unfamiliarity,
    save_familiarity,
    warn_of_unfamiliar_images,
)
from selfmark.features.loading import load_encoder
from selfmark.images.sources import list_images
from selfmark.images.store import iterate_crops

TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"


def test_the_distance_matches_a_hand_computed_case() -> None:
    """One half of the images is at 0 on the first axis and the other half at 2: the squared distance is 4."""
    first, second = torch.zeros(4, 3), torch.tensor([[2.0, 0, 0]]).repeat(4, 1)
    familiarity = fit_familiarity(torch.cat([first, second]))
    torch.testing.assert_close(familiarity.mean, torch.tensor([1.0, 0, 0]))
    assert familiarity.limit == pytest.approx(4)
    assert measure_unfamiliarity(familiarity, torch.cat([first, second])) == pytest.approx(1 / 4)
    assert measure_unfamiliarity(familiarity, torch.tensor([[1.0, 4, 0]])) == pytest.approx(4)


def test_unfamiliar_images_cause_a_warning(photos: Path, tmp_path: Path) -> None:
    detector, guards = Detector.load(TOY_DETECTOR), Guards()
    images = list_images([photos])
    (store,) = iterate_crops(images[:12], detector.card.images, 12)
    save_familiarity(detector, store.pixels, tmp_path, guards)
    assert not (tmp_path / FILE).exists(), "a detector without features has no familiarity file"
    assert warn_of_unfamiliar_images(tmp_path, detector, images, guards) is None
    detector.psi.encoder = load_encoder("efficientnet-lite0", torch.device("cpu"))  # type: ignore[assignment]
    save_familiarity(detector, store.pixels, tmp_path, guards)
    assert warn_of_unfamiliar_images(tmp_path, detector, images[12:], guards) is None
    for number in range(4):
        noise = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        cv2.imwrite(str(tmp_path / f"noise{number}.png"), noise)
    other_refs = list_images([str(tmp_path / "noise*.png")])
    warning = warn_of_unfamiliar_images(tmp_path, detector, other_refs, guards)
    assert warning is not None
    assert f"different from those that {tmp_path} was trained on" in warning
