"""Test the decision whether features include the place of a part in the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark.feature_discovery.feature_images import UsedImages, compare_landmarks
from selfmark.feature_discovery.feature_places import settle_places
from selfmark.images.feed import PixelFeed
from selfmark.run.folder import Run
from tests.feature_discovery.feature_runs import create_run
from tests.features.tiny_encoder import TinyEncoder

CPU = torch.device("cpu")
SIDE = 128
IMAGES = 40
RED, BLUE = (
    torch.tensor(color, dtype=torch.uint8)[:, None, None] for color in ([255, 30, 30], [30, 30, 255])
)


def _create_run(folder: Path, **changes: Any) -> Run:
    settings = {
        "features__orientation": "upright",
        "features__place_weight": 0.5,
        "images__size": SIDE,
        "K": 3,
    }
    return create_run(folder, **settings | changes)


def _draw_faces(is_mirrored_at_random: bool) -> UsedImages:
    """Draw a gray square with two equal eyes and an off-center mouth in each image, at a random position."""
    random = np.random.default_rng(0)
    pixels = torch.zeros(IMAGES, 3, SIDE, SIDE, dtype=torch.uint8)
    for image in pixels:
        x, y = random.integers(-10, 11, 2)
        image[:, 24 + y : 104 + y, 24 + x : 104 + x] = 120
        for left, top, color in ((36, 40, RED), (76, 40, RED), (60, 80, BLUE)):
            image[:, top + y : top + y + 16, left + x : left + x + 16] = color
    if is_mirrored_at_random:
        flipped = torch.from_numpy(random.random(IMAGES) < 0.5)
        pixels[flipped] = pixels[flipped].flip(-1)
    identity = torch.eye(2, 3).expand(IMAGES, 2, 3)
    rows = torch.arange(IMAGES)
    return UsedImages(None, rows, identity, PixelFeed(pixels, CPU), slice(0, IMAGES))  # type: ignore[arg-type]


def test_places_are_used_where_they_tell_equal_parts_apart(tmp_path: Path) -> None:
    run = _create_run(tmp_path / "run")
    settle_places(run, TinyEncoder(), _draw_faces(is_mirrored_at_random=False))
    event = run.events()[-1]
    assert event["unexplained_with_places"] < event["unexplained_without"]
    assert (event["event"], event["places"]) == ("places", "used")
    assert run.config.features.used_place_weight == 0.5
    assert Run.open(tmp_path / "run").config.features.places == "used"


@pytest.mark.parametrize(("ratio", "places"), [(0.01, "ignored"), (100.0, "used")])
def test_the_ratio_of_the_errors_decides(ratio: float, places: str, tmp_path: Path) -> None:
    run = _create_run(tmp_path / "run", features__max_place_ratio=ratio, features__min_place_spread=1_000)
    settle_places(run, TinyEncoder(), _draw_faces(is_mirrored_at_random=True))
    assert run.config.features.places == places
    assert run.config.features.used_place_weight == (0.5 if places == "used" else 0.0)


@pytest.mark.parametrize(("min_spread", "places"), [(1.0, "used"), (1_000, "ignored")])
def test_landmarks_that_spread_further_need_not_be_easier_to_predict(
    min_spread: float, places: str, tmp_path: Path
) -> None:
    """Without places, the two eyes share a landmark that lies between them. With places, each has its own."""
    changes = {"features__max_place_ratio": 0.01, "features__max_spread_ratio": 1.0}
    run = _create_run(tmp_path / "run", features__min_place_spread=min_spread, **changes)
    settle_places(run, TinyEncoder(), _draw_faces(is_mirrored_at_random=False))
    assert run.events()[-1]["spread_factor"] > 1.1
    assert run.config.features.places == places


def test_places_are_ignored_where_objects_face_any_direction(tmp_path: Path) -> None:
    run = _create_run(tmp_path / "run", features__orientation="any")
    settle_places(run, TinyEncoder(), _draw_faces(is_mirrored_at_random=False))
    assert run.config.features.places == "ignored"
    assert run.events() == []


@pytest.mark.parametrize("places", ["used", "ignored"])
def test_a_given_setting_is_kept(places: str, tmp_path: Path) -> None:
    run = _create_run(tmp_path / "run", features__places=places)
    settle_places(run, TinyEncoder(), _draw_faces(is_mirrored_at_random=False))
    assert run.config.features.places == places
    assert run.events() == []


def test_places_are_decided_even_if_the_number_of_landmarks_is_not_known_yet(tmp_path: Path) -> None:
    run = _create_run(tmp_path / "run", K=0, auto_k__candidates=(2, 3, 5))
    settle_places(run, TinyEncoder(), _draw_faces(is_mirrored_at_random=False))
    assert run.config.features.places in {"used", "ignored"}
    assert run.config.K == 0


def test_landmarks_are_compared_after_turning_images_back() -> None:
    """Landmarks at the same position in all turned images have different positions when turned back."""
    angle = torch.linspace(0, 3, 24)
    matrix = torch.stack(
        [
            torch.stack([angle.cos(), -angle.sin(), torch.zeros(24)], dim=1),
            torch.stack([angle.sin(), angle.cos(), torch.zeros(24)], dim=1),
        ],
        dim=1,
    )
    fixed = torch.tensor([[10.0, 0.0], [0.0, 20.0]]).expand(24, 2, 2)
    assert compare_landmarks(fixed, fixed + 5, matrix) < 0.05
    noise = 100 * torch.randn(24, 2, 2, generator=torch.Generator().manual_seed(0))
    present = torch.tensor([[True, False]]).expand(24, 2)
    partly_noise = torch.stack([fixed[:, 0], noise[:, 1]], dim=1)
    assert compare_landmarks(fixed, partly_noise, matrix) > 0.5
    assert compare_landmarks(fixed, partly_noise, matrix, present) < 0.05
