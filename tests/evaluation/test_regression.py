"""Test linear regression with a ridge or without a bias, against scikit-learn and small examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge

from selfmark.evaluation.regression import fit_ridge, fit_without_bias


def make_data(
    seed: int, images: int = 60, inputs: int = 14, targets: int = 6
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(50.0, 12.0, (images, inputs))
    return x, x[:, :targets] * 0.7 + rng.normal(20.0, 3.0, (images, targets))


@pytest.mark.parametrize("ridge", [1e-3, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize("images", [8, 60])  # fewer and more images than the 14 inputs
def test_ridge_agrees_with_scikit_learn(ridge: float, images: int) -> None:
    x, y = make_data(1, images)
    centered = x - x.mean(axis=0)
    largest = max(centered[:, i] @ centered[:, j] for i in range(x.shape[1]) for j in range(x.shape[1]))
    sklearn_ridge = Ridge(alpha=ridge * largest, fit_intercept=True, solver="cholesky").fit(x, y)
    ours = fit_ridge(x, y, ridge)
    np.testing.assert_allclose(ours.weights, sklearn_ridge.coef_.T, atol=1e-8)
    new_inputs, _ = make_data(2)
    np.testing.assert_allclose(ours.predict(new_inputs), sklearn_ridge.predict(new_inputs), atol=1e-8)


@pytest.mark.parametrize("images", [1, 8, 60])  # fewer and more images than the 14 inputs
def test_without_bias_agrees_with_least_squares_without_intercept(images: int) -> None:
    x, y = make_data(1, images)
    sklearn_regression = LinearRegression(fit_intercept=False).fit(x, y)
    ours = fit_without_bias(x, y)
    np.testing.assert_allclose(ours.weights, sklearn_regression.coef_.T, atol=1e-9)
    new_inputs, _ = make_data(2)
    np.testing.assert_allclose(ours.predict(new_inputs), sklearn_regression.predict(new_inputs), atol=1e-8)
    # The residual of least squares is orthogonal to the inputs.
    np.testing.assert_allclose(x.T @ (ours.predict(x) - y), 0.0, atol=1e-6)


def test_without_bias_the_prediction_goes_through_the_origin() -> None:
    # The points are (1, 3) and (2, 5). The best slope through the origin is (1 * 3 + 2 * 5) / (1 + 4).
    regressor = fit_without_bias(np.array([[1.0], [2.0]]), np.array([[3.0], [5.0]]))
    assert regressor.weights[0, 0] == pytest.approx(13 / 5)
    assert regressor.predict(np.zeros((1, 1)))[0, 0] == 0.0


def test_one_image_gives_the_minimum_norm_solution() -> None:
    regressor = fit_without_bias(np.array([[3.0, 4.0]]), np.array([[10.0]]))
    # The weights are parallel to the input, and 3 * 1.2 + 4 * 1.6 = 10.
    np.testing.assert_allclose(regressor.weights[:, 0], [1.2, 1.6])


@pytest.mark.parametrize("images", [8, 60])
def test_ridge_zero_agrees_with_least_squares_with_intercept(images: int) -> None:
    x, y = make_data(6, images)
    sklearn_regression = LinearRegression().fit(x, y)
    new_inputs, _ = make_data(7)
    np.testing.assert_allclose(
        fit_ridge(x, y, 0.0).predict(new_inputs), sklearn_regression.predict(new_inputs), atol=1e-7
    )


def test_ridge_zero_recovers_an_exact_linear_relation() -> None:
    x, _ = make_data(3)
    weights = np.random.default_rng(0).normal(size=(x.shape[1], 4))
    regressor = fit_ridge(x, x @ weights + 5.0, ridge=0.0)
    np.testing.assert_allclose(regressor.weights, weights, atol=1e-8)


def test_ridge_with_one_input_agrees_with_hand_computation() -> None:
    # Centered x = (-1, 0, 1), y = (-2, 0, 2): X'X = 2, lambda = 0.5 * 2, weight = 4 / (2 + 1).
    regressor = fit_ridge(np.array([[1.0], [2.0], [3.0]]), np.array([[0.0], [2.0], [4.0]]), ridge=0.5)
    assert regressor.weights[0, 0] == pytest.approx(4 / 3)
    assert regressor.predict(np.array([[2.0]]))[0, 0] == pytest.approx(2.0)
    assert regressor.predict(np.array([[5.0]]))[0, 0] == pytest.approx(2.0 + 3 * 4 / 3)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 100), st.floats(-500, 500), st.integers(0, 1000))
def test_prediction_does_not_depend_on_unit_or_origin_of_the_inputs(
    scale: float, shift: float, seed: int
) -> None:
    x, y = make_data(seed)
    plain = fit_ridge(x, y, 0.1).predict(x)
    np.testing.assert_allclose(
        fit_ridge(x * scale + shift, y, 0.1).predict(x * scale + shift), plain, atol=1e-6
    )


def test_inputs_that_never_move_are_ignored() -> None:
    x, y = make_data(4)
    with_constant = np.concatenate([x, np.full((len(x), 2), 7.0)], axis=1)
    np.testing.assert_allclose(
        fit_ridge(with_constant, y, 0.0).predict(with_constant), fit_ridge(x, y, 0.0).predict(x), atol=1e-6
    )
    only_constant = fit_ridge(np.full((5, 3), 2.0), np.arange(5.0)[:, None], 0.1)
    assert only_constant.predict(np.full((1, 3), 2.0))[0, 0] == pytest.approx(2.0)


def test_float32_points_are_computed_in_double() -> None:
    x, y = make_data(5)
    ours = fit_ridge(x.astype(np.float32), y.astype(np.float32), 0.01)
    assert ours.weights.dtype == np.float64
    np.testing.assert_allclose(ours.weights, fit_ridge(x, y, 0.01).weights, atol=1e-5)


@pytest.mark.parametrize(("input_rows", "target_rows", "ridge"), [(4, 5, 0.1), (0, 0, 0.1), (4, 4, -1.0)])
def test_invalid_arguments_are_value_errors(input_rows: int, target_rows: int, ridge: float) -> None:
    with pytest.raises(ValueError):
        fit_ridge(np.ones((input_rows, 2)), np.ones((target_rows, 2)), ridge)
    if input_rows != target_rows or input_rows == 0:
        with pytest.raises(ValueError):
            fit_without_bias(np.ones((input_rows, 2)), np.ones((target_rows, 2)))
