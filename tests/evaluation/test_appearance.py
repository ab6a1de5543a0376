"""Test the check that compares how each landmark looks on different individuals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from selfmark.config import Features
from selfmark.evaluation.appearance import (
    compute_features,
    describe_landmarks,
    measure_purity,
)
from tests.features.random_images import random_images
from tests.features.tiny_encoder import TinyEncoder


def _make_descriptors(parts: list[list[int]], noise: float = 0.05) -> np.ndarray:
    """Return descriptors [N, K, D] of landmarks; parts[n][k] is the part that landmark k marks in image n."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(10, 16))[np.array(parts)]
    descriptors: np.ndarray = vectors + random.normal(0, noise, vectors.shape)
    return descriptors


def test_a_landmark_that_stays_on_one_part_is_pure() -> None:
    assert measure_purity(_make_descriptors([[0, 1, 2]] * 12), []).tolist() == [1, 1, 1]


def test_a_landmark_on_different_parts_in_different_images_is_not_pure() -> None:
    # Landmark 1 is on part 1 in 8 of 12 images, and on the part of landmark 2 in the other 4.
    purity = measure_purity(_make_descriptors([[0, 1, 2]] * 8 + [[0, 2, 2]] * 4), [])
    assert purity.tolist() == pytest.approx([1, 8 / 12, 1])


def test_purity_agrees_with_a_naive_loop() -> None:
    descriptors = _make_descriptors([[0, 1, 2], [0, 2, 1], [1, 1, 2], [0, 0, 0], [2, 1, 2]], noise=1.0)
    centered = descriptors - descriptors.reshape(-1, 16).mean(axis=0)
    expected = np.zeros(3)
    for image in range(5):
        for landmark in range(3):
            means = [
                np.delete(centered[:, other], image, axis=0).mean(axis=0)
                if other == landmark
                else centered[:, other].mean(axis=0)
                for other in range(3)
            ]
            cosine = [centered[image, landmark] @ mean / np.linalg.norm(mean) for mean in means]
            expected[landmark] += int(np.argmax(cosine) == landmark) / 5
    assert measure_purity(descriptors, []).tolist() == pytest.approx(expected.tolist())


def test_duplicate_landmarks_count_as_one() -> None:
    descriptors = _make_descriptors([[0, 1, 1]] * 40, noise=0.5)
    assert measure_purity(descriptors, [])[1:].max() < 0.9
    assert measure_purity(descriptors, [[1, 2]]).tolist() == [1, 1, 1]


def test_purity_of_a_single_image_is_unknown() -> None:
    assert np.isnan(measure_purity(_make_descriptors([[0, 1]]), [])).all()


def test_descriptors_are_the_features_at_the_landmarks() -> None:
    encoder, images = TinyEncoder(), random_images(3, 64)
    pixels = (images * 255).byte()
    cell_centers = np.broadcast_to(np.array([[3.5, 3.5], [35.5, 11.5]]), (3, 2, 2))
    with torch.no_grad():
        features = encoder.describe(pixels.float() / 255)
    cells = compute_features(encoder, pixels.float() / 255, torch.device("cpu"), batch=2)
    expected = torch.stack([features[:, :, 0, 0], features[:, :, 1, 4]], dim=1)
    np.testing.assert_allclose(
        describe_landmarks(cells, cell_centers, Features()),
        torch.nn.functional.normalize(expected, dim=-1),
        atol=2e-3,
    )
