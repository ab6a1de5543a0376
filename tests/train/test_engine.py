"""Step engine: learning rates, logging, guards, and checkpoints that resume bit for bit."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from selfmark.config import Optimizer, Runtime
from selfmark.errors import InputError, TrainingError
from selfmark.train.checkpoints import load_checkpoint, save_checkpoint
from selfmark.train.engine import Batch, Losses, Phase, TrainingTask, TrainState, build_train_state, run_phase

RUNTIME = Runtime(checkpoint_every=3, log_every=2)
OPTIMIZER = Optimizer(lr=0.01, clip_norm=1.0)


def _state(seed: int = 0, settings: Optimizer = OPTIMIZER) -> TrainState:
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    generator = torch.Generator().manual_seed(7)
    return build_train_state(network, [(network[0], 0.1), (network[2], 1.0)], settings, generator)


def _task(state: TrainState) -> TrainingTask:
    """Return a task whose inputs are drawn by the generator and shifted by the iteration."""

    def losses(shift: torch.Tensor) -> Losses:
        inputs = torch.randn(16, 4, generator=state.generator) + shift
        error = (state.network(inputs)[:, 0] - inputs.sum(dim=1)).square().mean()
        return {"total": error, "twice": 2 * error}

    def batches(start: int, stop: int) -> Generator[Batch]:
        for iteration in range(start, stop):
            yield (torch.tensor(0.01 * iteration),)

    return TrainingTask(losses, batches)


def _run(state: TrainState, stop: int, path: Path | None = None, drops: tuple[int, ...] = ()) -> list[tuple]:  # type: ignore[type-arg]
    """Train until an iteration and return the logged iterations and mean losses."""
    lines: list[tuple] = []  # type: ignore[type-arg]
    run_phase(
        state,
        Phase("test", 1, 0, stop, drops),
        _task(state),
        RUNTIME,
        lambda phase, iteration, means, seconds: lines.append((iteration, means)),
        (lambda: save_checkpoint(state, path)) if path else (lambda: None),
    )
    return lines


def test_resuming_gives_bitwise_the_same_weights(tmp_path: Path) -> None:
    uninterrupted = _state()
    _run(uninterrupted, 12)
    path = tmp_path / "checkpoint.safetensors"
    _run(_state(), 5, path)
    resumed = _state(seed=99)
    load_checkpoint(resumed, path)
    assert resumed.iteration == 5
    _run(resumed, 12)
    resumed_weights = resumed.network.state_dict()
    assert resumed_weights.keys() == uninterrupted.network.state_dict().keys()
    for name, expected in uninterrupted.network.state_dict().items():
        assert torch.equal(resumed_weights[name], expected), name
    assert torch.equal(uninterrupted.generator.get_state(), resumed.generator.get_state())


def test_logged_losses_are_means_since_the_last_line() -> None:
    lines = _run(_state(), 5)
    assert [iteration for iteration, _ in lines] == [2, 4, 5]
    state = _state()
    single_losses = []
    for iteration in range(1, 6):
        single_losses += _run_one(state, iteration)
    assert lines[0][1]["total"] == pytest.approx((single_losses[0] + single_losses[1]) / 2)
    assert lines[2][1]["twice"] == pytest.approx(2 * single_losses[4])


def _run_one(state: TrainState, stop: int) -> list[float]:
    return [means["total"] for _, means in _run(state, stop)]


def test_learning_rates_keep_their_scales_and_drop_by_a_factor_of_10() -> None:
    state = _state()
    _run(state, 4, drops=(3,))
    assert state.optimizer.learning_rates == pytest.approx([1e-4, 1e-3])
    _run(state, 6, drops=(3, 5))
    assert state.optimizer.learning_rates == pytest.approx([1e-5, 1e-4])


def test_a_loss_that_is_not_finite_raises_with_an_explanation() -> None:
    state = _state()
    with pytest.raises(TrainingError, match="total loss is no longer a finite number at iteration 2 of test"):
        run_phase(
            state,
            Phase("test", 1, 0, 4, ()),
            TrainingTask(
                lambda: {"total": state.network(torch.randn(2, 4)).sum() * float("nan")},
                lambda start, stop: (() for _ in range(start, stop)),
            ),
            RUNTIME,
            lambda *arguments: None,
            lambda: None,
        )


def test_training_reduces_the_loss() -> None:
    state = _state(settings=Optimizer(lr=0.02, clip_norm=1.0))
    lines = _run(state, 300)
    assert lines[-1][1]["total"] < 0.2 * lines[0][1]["total"]


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "foreign"])
def test_loading_a_damaged_checkpoint_raises_with_its_name(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "stage1.safetensors"
    save_checkpoint(_state(), path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("not a checkpoint")
    else:
        tensors = load_file(path)
        tensors.pop("network.0.weight")
        save_file(tensors, path, {"iteration": "3"})
    with pytest.raises(InputError, match=r"stage1\.safetensors"):
        load_checkpoint(_state(), path)


def test_a_failed_write_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stage1.safetensors"
    state = _state()
    save_checkpoint(state, path)
    before = path.read_bytes()

    def raise_disk_full(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", raise_disk_full)
    state.iteration = 50
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(state, path)
    assert path.read_bytes() == before
