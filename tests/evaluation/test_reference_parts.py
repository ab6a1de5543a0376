"""Test the check of runs without features by parts that pretrained features find."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from selfmark.config import override, preset
from selfmark.evaluation.reference_parts import find_reference_parts, measure_missed_movement
from selfmark.points import FloatArray
from tests.features.tiny_encoder import TinyEncoder

IMAGES, SIDE = 400, 64
# If x and y of a part vary equally, but only x is predicted, the mean error is that of y: sqrt(2 / pi)
# standard deviations. That of guessing is sqrt(pi / 2).
HALF_PREDICTED = 2 / np.pi


def _move_object(seed: int) -> tuple[FloatArray, FloatArray]:
    """Return positions [N, 2] of an object, and of its 6 parts [N, 6, 2]."""
    random = np.random.default_rng(seed)
    position = random.normal(0, 8, (IMAGES, 2))
    return position, position[:, None] + random.uniform(-20, 20, (6, 2))


@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_the_missed_movement_does_not_depend_on_inexact_parts(noise: float) -> None:
    position, parts = _move_object(0)
    random = np.random.default_rng(1)
    inexact = parts + random.normal(0, noise, parts.shape)
    only_x = np.stack([position[:, :1], np.zeros((IMAGES, 1))], axis=-1)
    unrelated = random.normal(0, 8, (IMAGES, 3, 2))
    assert measure_missed_movement(position[:, None] + 3.0, inexact) == pytest.approx(0, abs=0.08)
    assert measure_missed_movement(only_x, inexact) == pytest.approx(HALF_PREDICTED, abs=0.05)
    assert measure_missed_movement(unrelated, inexact) == pytest.approx(1, abs=0.03)


def test_the_missed_movement_agrees_with_its_formula_for_exact_errors() -> None:
    """Every second image repeats the one before, so that both halves give the same least-squares fit."""
    random = np.random.default_rng(2)
    parts = np.repeat(random.normal(0, 8, (60, 3, 2)), 2, axis=0)
    landmarks = np.repeat(random.normal(0, 8, (60, 1, 2)), 2, axis=0)

    def error(inputs: FloatArray, index: int) -> float:
        half_inputs, half_part = inputs[::2].reshape(60, -1), parts[::2, index]
        centered = half_inputs - half_inputs.mean(axis=0)
        gram = centered.T @ centered
        weights = np.linalg.solve(
            gram + 0.01 * np.abs(gram).max() * np.eye(len(gram)),
            centered.T @ (half_part - half_part.mean(axis=0)),
        )
        residual = half_part - half_part.mean(axis=0) - centered @ weights
        return float(np.linalg.norm(residual, axis=1).mean())

    missed = movement = 0.0
    for index in range(3):
        others = np.delete(parts, index, axis=1)
        inexactness = min(
            error(inputs, index)
            for inputs in (landmarks, others, np.concatenate([landmarks, others], axis=1))
        )
        guessing = np.linalg.norm(parts[:, index] - parts[:, index].mean(axis=0), axis=1).mean()
        missed += error(landmarks, index) ** 2 - inexactness**2
        movement += guessing**2 - inexactness**2
    assert measure_missed_movement(landmarks, parts) == pytest.approx(np.sqrt(missed / movement), rel=1e-6)


def test_parts_that_never_move_say_nothing() -> None:
    assert np.isnan(measure_missed_movement(np.zeros((50, 2, 2)), np.full((50, 3, 2), 5.0)))


@pytest.mark.parametrize("is_upright", [True, False])
def test_reference_parts_follow_the_object(is_upright: bool) -> None:
    """A square of four colors moves on a gray background; its position predicts all parts on it."""
    random = np.random.default_rng(5)
    position = random.integers(1, 5, (48, 2))  # cells
    colors = [(255, 30, 30), (30, 255, 30), (30, 30, 255), (240, 240, 30)]
    pixels = torch.full((48, 3, SIDE, SIDE), 128, dtype=torch.uint8)
    for image, (column, row) in enumerate(position.tolist()):
        for number, color in enumerate(colors):
            y, x = 8 * (row + number // 2), 8 * (column + number % 2)
            pixels[image, :, y : y + 8, x : x + 8] = torch.tensor(color, dtype=torch.uint8)[:, None, None]
    config = override(preset("tiny"), {"evaluation.reference_parts": 4, "images.size": SIDE})
    parts = find_reference_parts(
        TinyEncoder(is_symmetric=True), pixels, config, torch.device("cpu"), is_upright=is_upright
    )
    assert parts.shape == (48, 4, 2)
    assert measure_missed_movement(8.0 * position[:, None], parts) < 0.1
    assert measure_missed_movement(random.uniform(0, SIDE, (48, 1, 2)), parts) > 0.8
