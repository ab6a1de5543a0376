from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from selfmark.errors import InputError
from selfmark.evaluate import (
    backward_nme,
    box_normaliser,
    forward_nme,
    mean_shape,
    mean_shape_nme,
    nme,
    pair_normaliser,
)

K, L, TRAIN, TEST = 5, 7, 50, 20


def naive_nme(predicted: np.ndarray, truth: np.ndarray, visible: np.ndarray, normaliser: np.ndarray) -> float:
    images = []
    for image in range(len(truth)):
        errors = [
            math.dist(predicted[image, point], truth[image, point]) / normaliser[image]
            for point in range(truth.shape[1])
            if visible[image, point]
        ]
        if errors:
            images.append(sum(errors) / len(errors))
    return 100.0 * sum(images) / len(images)


@pytest.fixture
def world() -> dict[str, np.ndarray]:
    """Discovered points that follow the annotated ones up to noise, with some annotations hidden as NaN."""
    rng = np.random.default_rng(0)
    truth = rng.normal(60.0, 15.0, (TRAIN + TEST, L, 2))
    mix = rng.normal(0.0, 0.5, (2 * L, 2 * K))
    landmarks = (truth.reshape(len(truth), -1) @ mix).reshape(-1, K, 2) + rng.normal(
        0, 1.0, (TRAIN + TEST, K, 2)
    )
    visible = rng.random((TRAIN + TEST, L)) < 0.8
    visible[-1] = False  # one test image without any
    truth = np.where(visible[..., None], truth, np.nan)
    return {
        "train_landmarks": landmarks[:TRAIN],
        "train_truth": truth[:TRAIN],
        "train_visible": visible[:TRAIN],
        "test_landmarks": landmarks[TRAIN:],
        "test_truth": truth[TRAIN:],
        "test_visible": visible[TRAIN:],
        "normaliser": rng.uniform(40.0, 90.0, TEST),
    }


def ridge_alpha(x: np.ndarray, ridge: float) -> float:
    centred = x - x.mean(axis=0)
    return float(ridge * (centred.T @ centred).max())


def test_by_hand() -> None:
    truth = np.zeros((2, 2, 2))
    predicted = np.array([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 2.0], [6.0, 8.0]]])
    # Image 1: (5 + 1) / 2 / 10 = 0.3; image 2, second point hidden: 2 / 20 = 0.1; mean 0.2.
    visible = np.array([[True, True], [True, False]])
    assert nme(predicted, truth, visible, np.array([10.0, 20.0])) == pytest.approx(20.0)


def test_agrees_with_a_naive_loop(world: dict[str, np.ndarray]) -> None:
    truth, visible, normaliser = world["test_truth"], world["test_visible"], world["normaliser"]
    predicted = np.nan_to_num(truth) + np.random.default_rng(1).normal(0, 5.0, truth.shape)
    assert nme(predicted, truth, visible, normaliser) == pytest.approx(
        naive_nme(predicted, truth, visible, normaliser), rel=1e-12
    )


def test_forward_is_one_ridge_per_annotated_point(world: dict[str, np.ndarray]) -> None:
    predicted = np.zeros((TEST, L, 2))
    for point in range(L):
        rows = [image for image in range(TRAIN) if world["train_visible"][image, point]]
        x = world["train_landmarks"][rows].reshape(len(rows), -1)
        model = Ridge(alpha=ridge_alpha(x, 0.01), solver="cholesky").fit(x, world["train_truth"][rows, point])
        predicted[:, point] = model.predict(world["test_landmarks"].reshape(TEST, -1))
    expected = naive_nme(predicted, world["test_truth"], world["test_visible"], world["normaliser"])
    assert forward_nme(**world, ridge=0.01) == pytest.approx(expected, rel=1e-8)


def test_backward_fills_hidden_annotations_with_their_training_mean(world: dict[str, np.ndarray]) -> None:
    mean = np.nanmean(world["train_truth"], axis=0)

    def filled(truth: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(truth), mean, truth).reshape(len(truth), -1)

    x = filled(world["train_truth"])
    model = Ridge(alpha=ridge_alpha(x, 0.1), solver="cholesky").fit(
        x, world["train_landmarks"].reshape(TRAIN, -1)
    )
    predicted = model.predict(filled(world["test_truth"])).reshape(TEST, K, 2)
    everything = np.ones((TEST, K), bool)
    expected = naive_nme(predicted, world["test_landmarks"], everything, world["normaliser"])
    assert backward_nme(**world, ridge=0.1) == pytest.approx(expected, rel=1e-8)


def test_mean_shape_baseline(world: dict[str, np.ndarray]) -> None:
    mean = np.nanmean(world["train_truth"], axis=0)
    np.testing.assert_allclose(mean_shape(world["train_truth"], world["train_visible"]), mean, rtol=1e-12)
    predicted = np.stack([mean] * TEST)
    expected = naive_nme(predicted, world["test_truth"], world["test_visible"], world["normaliser"])
    names = ("train_truth", "train_visible", "test_truth", "test_visible", "normaliser")
    assert mean_shape_nme(**{name: world[name] for name in names}) == pytest.approx(expected, rel=1e-12)


def test_perfect_landmarks_give_almost_no_error_and_useless_ones_the_mean_shape() -> None:
    rng = np.random.default_rng(2)
    truth = rng.normal(50, 10, (80, 4, 2))
    visible, normaliser = np.ones((40, 4), bool), np.full(40, 30.0)
    perfect = forward_nme(truth[:40], truth[:40], truth[40:], truth[40:], visible, normaliser, 1e-9, visible)
    assert perfect < 1e-4
    still = np.full((40, 3, 2), 5.0)
    useless = forward_nme(still, truth[:40], still, truth[40:], visible, normaliser, 0.1, visible)
    assert useless == pytest.approx(mean_shape_nme(truth[:40], visible, truth[40:], visible, normaliser))


def test_normalisers() -> None:
    truth = np.array([[[0.0, 0.0], [8.0, 2.0], [100.0, 100.0]], [[1.0, 1.0], [4.0, 5.0], [1.0, 1.0]]])
    visible = np.array([[True, True, False], [False, False, False]])
    assert box_normaliser(truth, visible).tolist() == [4.0, 0.0]
    assert pair_normaliser(truth, 0, 1).tolist() == pytest.approx([math.sqrt(68), 5.0])


def test_what_cannot_be_evaluated_is_refused(world: dict[str, np.ndarray]) -> None:
    truth = np.zeros((2, 3, 2))
    with pytest.raises(InputError, match="no image has a visible landmark"):
        nme(truth, truth, np.zeros((2, 3), bool), np.ones(2))
    with pytest.raises(InputError, match="image number 1"):
        nme(truth, truth, np.ones((2, 3), bool), np.array([1.0, 0.0]))
    with pytest.raises(InputError, match="image number 0"):
        nme(truth, truth, np.ones((2, 3), bool), np.array([np.nan, 1.0]))
    with pytest.raises(ValueError, match="shapes do not agree"):
        nme(truth, truth[:1], np.ones((2, 3), bool), np.ones(2))
    never = {**world, "train_visible": world["train_visible"] & (np.arange(L) != 2)}
    with pytest.raises(InputError, match="landmark number 2"):
        forward_nme(**never, ridge=0.1)
    unasked = {**never, "test_visible": never["test_visible"] & (np.arange(L) != 2)}
    assert np.isfinite(forward_nme(**unasked, ridge=0.1))
