"""Test the checks across individuals, on drawn animals whose landmarks are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from selfmark.config import override, preset
from selfmark.errors import InputError
from selfmark.evaluation import individuals
from selfmark.evaluation.individuals import IndividualChecks, check_individuals
from tests.features.tiny_encoder import TinyEncoder

IMAGES, SIDE = 24, 128
PARTS = {"head": (255, 30, 30), "tail": (30, 255, 30), "wing": (30, 30, 255), "belly": (240, 240, 30)}
BODY = np.array([[-30, 0], [30, 4], [4, -22], [0, 20]], dtype=float)  # head, tail, wing, belly


def _draw_animals() -> tuple[torch.Tensor, npt.NDArray[np.float64]]:
    """Return pictures [N, 3, S, S] of animals that face any direction, and positions of parts [N, 4, 2]."""
    random = np.random.default_rng(0)
    pixels = np.full((IMAGES, SIDE, SIDE, 3), 128, dtype=np.uint8)
    positions = np.empty((IMAGES, 4, 2))
    for index in range(IMAGES):
        angle = random.uniform(0, 2 * np.pi)
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        positions[index] = BODY @ rotation.T + 63.5 + random.uniform(-8, 8, 2)
        for (x, y), color in zip(positions[index].round().astype(int), PARTS.values(), strict=True):
            pixels[index, y - 8 : y + 9, x - 8 : x + 9] = color
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), positions


def _check(
    monkeypatch: pytest.MonkeyPatch, xy: npt.NDArray[np.float64], pixels: torch.Tensor, **changes: Any
) -> IndividualChecks:
    """Run all checks on the given landmarks, with the features of a tiny encoder."""
    monkeypatch.setattr(individuals, "load_encoder", lambda *_: TinyEncoder(is_symmetric=True))
    settings = {"evaluation.duplicate_radius": 0.03} | changes
    return check_individuals(xy, pixels, override(preset("tiny"), settings), torch.device("cpu"))


def test_landmarks_that_stay_on_one_part_pass_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, positions = _draw_animals()
    result = _check(monkeypatch, positions, pixels)
    assert (result.purity == 1).all()
    assert (result.constellation == 1).all()
    assert result.unexplained.max() < 0.3
    assert result.appearance_error.max() < 0.3
    assert result.duplicates == []
    np.testing.assert_allclose(
        result.spread, np.linalg.norm(positions - positions.mean(axis=0), axis=2).mean(axis=0) / SIDE
    )


def test_a_landmark_that_switches_between_head_and_tail_is_worse_in_every_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pixels, positions = _draw_animals()
    is_on_tail = np.arange(IMAGES) % 3 == 0
    positions[is_on_tail, 0] = positions[is_on_tail, 1]
    result = _check(monkeypatch, positions, pixels)
    assert result.purity[0] == pytest.approx(2 / 3, abs=0.1)
    assert result.constellation[0] == pytest.approx(2 / 3, abs=0.1)
    assert result.unexplained[0] > 2 * result.unexplained[2:].max()
    assert result.appearance_error[0] > 0.5
    assert result.appearance_error[1:].max() < 0.4
    assert (result.purity[1:] == 1).all()
    assert (result.constellation[1:] > 0.9).all()


def test_two_landmarks_on_one_place_are_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, positions = _draw_animals()
    result = _check(monkeypatch, np.concatenate([positions, positions[:, 2:3] + 1], axis=1), pixels)
    assert result.duplicates == [[2, 4]]
    assert (result.purity[[2, 4]] == 1).all()


def test_checks_that_cannot_be_made_have_nan_results(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, positions = _draw_animals()
    single_check = _check(monkeypatch, positions[:, :1], pixels)
    assert np.isnan(single_check.constellation).all()
    assert np.isnan(single_check.unexplained).all()

    def raise_missing(*_: Any) -> None:
        raise InputError("the weights are not installed")

    monkeypatch.setattr(individuals, "load_encoder", raise_missing)
    result = check_individuals(positions, pixels, preset("tiny"), torch.device("cpu"))
    assert np.isnan(result.purity).all()
    assert np.isnan(result.appearance_error).all()
    assert np.isnan(result.kind_separation)
    assert (result.constellation == 1).all()


# --- places of parts, and runs without features -----------------------------------------------------------

FEATURES = "efficientnet-lite0"  # replaced by a tiny encoder


def _draw_faces() -> tuple[torch.Tensor, npt.NDArray[np.float64]]:
    """Return pictures of upright faces with two eyes that look the same, and positions of eyes and mouth."""
    random = np.random.default_rng(1)
    pixels = np.full((IMAGES, SIDE, SIDE, 3), 128, dtype=np.uint8)
    usual = np.array([[36.0, 40], [92, 40], [64, 96]])
    positions = usual + random.uniform(-14, 14, (IMAGES, 1, 2)) + random.uniform(-5, 5, (IMAGES, 3, 2))
    colors = [PARTS["head"], PARTS["head"], PARTS["tail"]]
    for picture, parts in zip(pixels, positions, strict=True):
        for (x, y), color in zip(parts.round().astype(int), colors, strict=True):
            picture[y - 8 : y + 9, x - 8 : x + 9] = color
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), positions


def test_eyes_are_told_apart_by_their_places_if_the_run_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, positions = _draw_faces()
    run = {"features.name": FEATURES, "features.orientation": "upright"}
    used = _check(monkeypatch, positions, pixels, **run, **{"features.places": "used"})
    ignored = _check(monkeypatch, positions, pixels, **run, **{"features.places": "ignored"})
    assert used.appearance_error[:2].max() < 0.45
    assert ignored.appearance_error[:2].min() > 1.2 * used.appearance_error[:2].max()


@pytest.mark.parametrize(
    "changes",
    [
        {"features.orientation": "any"},  # objects face any direction, so a place means nothing
        {"method": "zero-shot"},  # zero-shot landmarks were found by their places
        {"features.name": "none"},
    ],
)
def test_other_runs_are_checked_without_places(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    pixels, positions = _draw_faces()
    run = {"features.name": FEATURES, "features.orientation": "upright"} | changes
    used = _check(monkeypatch, positions, pixels, **run, **{"features.places": "used"})
    ignored = _check(monkeypatch, positions, pixels, **run, **{"features.places": "ignored"})
    np.testing.assert_array_equal(used.appearance_error, ignored.appearance_error)


@pytest.mark.parametrize(
    ("name", "images", "is_measured"), [("none", 40, True), ("none", 39, False), (FEATURES, 40, False)]
)
def test_missed_movement_is_measured_for_runs_without_features(
    monkeypatch: pytest.MonkeyPatch, name: str, images: int, is_measured: bool
) -> None:
    pixels, positions = _draw_faces()
    rows = np.arange(images) % IMAGES
    result = _check(
        monkeypatch,
        positions[rows],
        pixels[torch.from_numpy(rows)],
        **{"features.name": name, "evaluation.reference_parts": 3},
    )
    assert np.isfinite(result.missed_movement) == is_measured
    assert not result.missed_movement > 0.5
