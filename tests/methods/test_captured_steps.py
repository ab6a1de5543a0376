"""Test that captured steps (CUDA graphs) have the losses of eager steps, and that other steps run eagerly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from selfmark.config import Config, override, preset
from selfmark.images.feed import PixelFeed
from selfmark.methods.method_registry import METHODS, build_method
from selfmark.methods.training import build_task
from selfmark.model.network import prepare_network
from selfmark.run.processes import SINGLE_PROCESS
from selfmark.train.cuda_graph import CapturedStep
from selfmark.train.engine import Phase, TrainState, build_method_state, run_phase

_SETTINGS: dict[str, Any] = {
    "methods.batch": 4,
    "runtime.log_every": 1,
    "runtime.checkpoint_every": 10_000,
}


def _train(method: str, is_captured: bool, iterations: int) -> tuple[TrainState, list[dict[str, float]]]:
    """Train a method on smooth random images; return its state and the losses of every iteration."""
    device = torch.device("cuda")
    config: Config = override(preset("tiny"), {**_SETTINGS, "method": method})
    torch.manual_seed(0)
    network = build_method(config).to(device)
    prepare_network(network.psi, device, config.runtime)
    generator = torch.Generator(device).manual_seed(1)
    state = build_method_state(network, network.psi, network.lr, generator, SINGLE_PROCESS)
    assert state.capture
    state.capture = is_captured
    coarse = torch.rand((16, 3, 8, 8), generator=torch.Generator().manual_seed(2))
    images = torch.nn.functional.interpolate(coarse, size=(128, 128), mode="bilinear")
    feed = PixelFeed((images * 255).byte(), device)
    task = build_task(config, SINGLE_PROCESS, network, feed, np.full(16, -1), generator)
    losses: list[dict[str, float]] = []
    run_phase(
        state,
        Phase("method", 0, 0, iterations, ()),
        task,
        config.runtime,
        lambda phase, iteration, means, seconds: losses.append(means),
        lambda: None,
    )
    return state, losses


@pytest.mark.gpu
@pytest.mark.filterwarnings("error:training is slower")
@pytest.mark.parametrize("method", sorted(METHODS))
def test_captured_steps_give_the_losses_of_eager_steps(method: str) -> None:
    # The first three steps are eager in both trainings. Later steps differ by rounding errors, because the
    # order of atomic additions varies.
    eager, eager_losses = _train(method, is_captured=False, iterations=10)
    captured, captured_losses = _train(method, is_captured=True, iterations=10)
    for expected, actual in zip(eager_losses, captured_losses, strict=True):
        assert actual == pytest.approx(expected, rel=0.02, abs=1e-4)
    assert torch.equal(eager.generator.get_state(), captured.generator.get_state())


@pytest.mark.gpu
def test_a_step_that_waits_for_the_gpu_runs_eagerly() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    seen: list[float] = []

    def step(batch: torch.Tensor) -> None:
        noise = torch.rand((), generator=generator, device="cuda")
        seen.append(float(batch.sum() + noise))

    captured = CapturedStep(step, generator)

    def run_steps() -> None:
        for value in range(6):
            captured(torch.full((2,), float(value), device="cuda"))

    with pytest.warns(UserWarning, match="training is slower"):
        run_steps()
    expected = torch.Generator("cuda").manual_seed(0)
    draws = [float(torch.rand((), generator=expected, device="cuda")) for _ in range(6)]
    # The random numbers are those of a training that was never captured.
    assert seen == pytest.approx([2 * value + draw for value, draw in enumerate(draws)])
