"""Test the training loop: learning rates, logging, losses that are not finite, and resuming bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from selfmark.config import Optimizer, Runtime, Student
from selfmark.errors import InputError, TrainingError
from selfmark.model.feature_network import FeaturePsi
from selfmark.run.processes import SINGLE_PROCESS
from selfmark.train.checkpoints import load_checkpoint, save_checkpoint
from selfmark.train.engine import (
    Batch,
    Losses,
    Phase,
    TrainingTask,
    TrainState,
    build_student_state,
    build_train_state,
    run_phase,
)
from tests.features.random_images import random_images
from tests.features.tiny_encoder import TinyEncoder

RUNTIME = Runtime(checkpoint_every=3, log_every=2)
OPTIMIZER = Optimizer(lr=0.01, clip_norm=1.0)


def _build_state(seed: int = 0, settings: Optimizer = OPTIMIZER) -> TrainState:
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    generator = torch.Generator().manual_seed(7)
    return build_train_state(network, [(network[0], 0.1), (network[2], 1.0)], settings, generator)


def _build_task(state: TrainState) -> TrainingTask:
    """Return a task with inputs from the state's generator; their mean grows with the iteration."""

    def losses(shift: torch.Tensor) -> Losses:
        inputs = torch.randn(16, 4, generator=state.generator) + shift
        error = (state.network(inputs)[:, 0] - inputs.sum(dim=1)).square().mean()
        return {"total": error, "twice": 2 * error}

    def batches(start: int, stop: int) -> Generator[Batch]:
        for iteration in range(start, stop):
            yield (torch.tensor(0.01 * iteration),)

    return TrainingTask(losses, batches)


def _run(state: TrainState, stop: int, path: Path | None = None, drops: tuple[int, ...] = ()) -> list[tuple]:  # type: ignore[type-arg]
    """Train until iteration `stop` and return the logged iterations and mean losses."""
    lines: list[tuple] = []  # type: ignore[type-arg]
    run_phase(
        state,
        Phase("test", 1, 0, stop, drops),
        _build_task(state),
        RUNTIME,
        lambda phase, iteration, means, seconds: lines.append((iteration, means)),
        (lambda: save_checkpoint(state, path)) if path else (lambda: None),
    )
    return lines


def test_resuming_gives_bitwise_identical_weights(tmp_path: Path) -> None:
    uninterrupted = _build_state()
    _run(uninterrupted, 12)
    path = tmp_path / "checkpoint.safetensors"
    _run(_build_state(), 5, path)
    resumed = _build_state(seed=99)
    load_checkpoint(resumed, path)
    assert resumed.iteration == 5
    _run(resumed, 12)
    resumed_weights = resumed.network.state_dict()
    assert resumed_weights.keys() == uninterrupted.network.state_dict().keys()
    for name, expected in uninterrupted.network.state_dict().items():
        assert torch.equal(resumed_weights[name], expected), name
    assert torch.equal(uninterrupted.generator.get_state(), resumed.generator.get_state())


def test_logged_losses_are_means_since_the_last_line() -> None:
    lines = _run(_build_state(), 5)
    assert [iteration for iteration, _ in lines] == [2, 4, 5]
    state = _build_state()
    single_losses = []
    for iteration in range(1, 6):
        single_losses += _run_one(state, iteration)
    assert lines[0][1]["total"] == pytest.approx((single_losses[0] + single_losses[1]) / 2)
    assert lines[2][1]["twice"] == pytest.approx(2 * single_losses[4])


def _run_one(state: TrainState, stop: int) -> list[float]:
    """Train the iteration that ends at `stop`, and return its loss in a list."""
    return [means["total"] for _, means in _run(state, stop)]


def test_learning_rates_keep_their_scales_and_drop_by_a_factor_of_10() -> None:
    state = _build_state()
    _run(state, 4, drops=(3,))
    assert state.optimizer.learning_rates == pytest.approx([1e-4, 1e-3])
    _run(state, 6, drops=(3, 5))
    assert state.optimizer.learning_rates == pytest.approx([1e-5, 1e-4])


@pytest.mark.parametrize("warmup_fraction", [0.1, 0.3, 1.0])
def test_one_cycle_rises_and_falls_along_half_cosine_waves(warmup_fraction: float) -> None:
    start, stop = 40, 160
    phase = Phase("round", 2, start, stop, (), warmup_fraction)
    peak = warmup_fraction * (stop - start)
    for iteration in range(start, stop):
        step = iteration - start
        if step < peak:
            expected = math.sin(math.pi / 2 * step / peak) ** 2
        else:
            expected = math.cos(math.pi / 2 * (step - peak) / (stop - start - peak)) ** 2
        assert phase.lr_factor(iteration) == pytest.approx(expected, abs=1e-12)
    factors = [phase.lr_factor(iteration) for iteration in range(start, stop)]
    assert factors[0] == 0
    assert max(factors) > 0.999


def test_drops_also_apply_to_a_cycle() -> None:
    with_drops, without_drops = (Phase("round", 1, 0, 50, drops, 0.2) for drops in ((30, 40), ()))
    ratios = [with_drops.lr_factor(step) / without_drops.lr_factor(step) for step in (10, 29, 30, 39, 40, 49)]
    assert ratios == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_without_a_cycle_only_drops_change_the_learning_rate() -> None:
    phase = Phase("stage 1", 0, 0, 100, (50, 80))
    assert [phase.lr_factor(step) for step in (0, 49, 50, 79, 80, 99)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


def _run_with_loss(state: TrainState, loss: Callable[[], torch.Tensor]) -> None:
    """Train four iterations with a loss that needs no batches."""
    task = TrainingTask(lambda: {"total": loss()}, lambda start, stop: (() for _ in range(start, stop)))
    run_phase(state, Phase("test", 1, 0, 4, ()), task, RUNTIME, lambda *arguments: None, lambda: None)


def test_a_loss_that_is_not_finite_raises_with_an_explanation() -> None:
    state = _build_state()
    with pytest.raises(TrainingError, match="total loss is no longer a finite number at iteration 2 of test"):
        _run_with_loss(state, lambda: state.network(torch.randn(2, 4)).sum() * float("nan"))


@pytest.mark.parametrize("is_student", [False, True])
def test_the_advice_names_a_setting_that_this_training_uses(is_student: bool) -> None:
    state = _build_student_state(is_frozen=True) if is_student else _build_state()
    inputs = IMAGES if is_student else torch.zeros(2, 4)
    with pytest.raises(TrainingError) as error:
        _run_with_loss(state, lambda: state.network(inputs).sum() * float("inf"))
    assert ("student.lr" in str(error.value)) == is_student
    assert ("optimizer.clip_norm" in str(error.value)) != is_student


def test_training_reduces_the_loss() -> None:
    state = _build_state(settings=Optimizer(lr=0.02, clip_norm=1.0))
    lines = _run(state, 300)
    assert lines[-1][1]["total"] < 0.2 * lines[0][1]["total"]


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "foreign"])
def test_loading_a_damaged_checkpoint_raises_with_its_name(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "stage1.safetensors"
    save_checkpoint(_build_state(), path)
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
        load_checkpoint(_build_state(), path)


def test_a_failed_write_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stage1.safetensors"
    state = _build_state()
    save_checkpoint(state, path)
    before = path.read_bytes()

    def raise_disk_full(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", raise_disk_full)
    state.iteration = 50
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(state, path)
    assert path.read_bytes() == before


# --- networks on an encoder --------------------------------------------------------------------------

STUDENT = Student(lr=0.01, encoder_lr=0.1, weight_decay=0.0, width=8, depth=2, warmup_fraction=0.2)
IMAGES = random_images(6, 32)
# The learning rate rises in the first 4 of 20 iterations (a fraction of 0.2), and falls along a half cosine
# wave in the other 16. The last iteration is number 19, which is 15 iterations after the peak.
LAST_LR_FACTOR = math.cos(math.pi / 2 * 15 / 16) ** 2


def _build_student_state(is_frozen: bool, seed: int = 0, student: Student = STUDENT) -> TrainState:
    torch.manual_seed(seed)
    network = FeaturePsi(TinyEncoder(), student, landmarks=3)
    return build_student_state(network, student, is_frozen, torch.Generator().manual_seed(7), SINGLE_PROCESS)


def _run_student(state: TrainState, path: Path | None = None, interrupt_at: int = 0) -> list[float]:
    """Train one cycle of 20 iterations, or until `interrupt_at`; return the mean losses."""
    target = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))

    def losses(index: torch.Tensor) -> Losses:
        noise = 0.02 * torch.randn(IMAGES.shape, generator=state.generator)
        maps = state.network((IMAGES + noise)[index])
        return {"total": (maps - target[index]).square().mean()}

    def batches(start: int, stop: int) -> Generator[Batch]:
        for iteration in range(start, stop):
            yield (torch.tensor([iteration % 6, (iteration + 2) % 6]),)

    totals: list[float] = []
    run_phase(
        state,
        Phase("round", 1, 0, 20, (), STUDENT.warmup_fraction),
        TrainingTask(losses, batches),
        RUNTIME,
        lambda phase, iteration, means, seconds: totals.append(means["total"]),
        (lambda: save_checkpoint(state, path)) if path else (lambda: None),
        lambda: state.iteration == interrupt_at,
    )
    return totals


@pytest.mark.parametrize("is_frozen", [True, False])
def test_an_interrupted_cycle_is_resumed_bit_for_bit(is_frozen: bool, tmp_path: Path) -> None:
    uninterrupted = _build_student_state(is_frozen)
    totals = _run_student(uninterrupted)
    path = tmp_path / "student-1.safetensors"
    with pytest.raises(KeyboardInterrupt):
        _run_student(_build_student_state(is_frozen), path, interrupt_at=10)
    resumed = _build_student_state(is_frozen, seed=99)
    assert load_checkpoint(resumed, path) == 10
    assert _run_student(resumed) == totals[5:]  # A mean is logged every two iterations.
    expected = uninterrupted.network.state_dict()
    for name, value in resumed.network.state_dict().items():
        assert torch.equal(value, expected[name]), name
    first, second = (state.optimizer.state_tensors(state.network) for state in (uninterrupted, resumed))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert float(first["steps"]) == 20


def test_a_frozen_encoder_keeps_its_weights() -> None:
    state = _build_student_state(is_frozen=True)
    before = {name: value.clone() for name, value in state.network.state_dict().items()}
    totals = _run_student(state)
    for name, value in state.network.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith("encoder."), name
    assert totals[-1] < totals[0]
    assert state.optimizer.learning_rates == pytest.approx([0.01 * LAST_LR_FACTOR])


def test_the_encoder_learns_more_slowly_than_the_head() -> None:
    """Steps of Adam are about as large as the learning rate, which is ten times lower for the encoder."""
    state = _build_student_state(is_frozen=False)
    before = {name: value.clone() for name, value in state.network.state_dict().items()}
    _run_student(state)
    sizes: dict[str, list[float]] = {"head": [], "encoder": []}
    for name, value in state.network.state_dict().items():
        sizes[name.split(".")[0]].append(float((value - before[name]).abs().mean()))
    ratio = max(sizes["encoder"]) / max(sizes["head"])
    assert 0.02 < ratio < 0.5
    rate = 0.01 * LAST_LR_FACTOR
    assert state.optimizer.learning_rates == pytest.approx([rate, 0.1 * rate])


def test_an_encoder_is_unfrozen_in_a_later_round() -> None:
    network = _build_student_state(is_frozen=True).network
    assert isinstance(network, FeaturePsi)
    state = build_student_state(network, STUDENT, False, torch.Generator().manual_seed(7), SINGLE_PROCESS)
    before = network.encoder.cells.weight.clone()  # type: ignore[union-attr,operator]
    _run_student(state)
    assert not torch.equal(network.encoder.cells.weight, before)  # type: ignore[union-attr,arg-type]


def test_weight_decay_shrinks_weights_that_have_no_gradient() -> None:
    student = Student(lr=0.01, weight_decay=0.5, width=8, depth=2)
    state = _build_student_state(is_frozen=True, student=student)
    before = {name: value.clone() for name, value in state.network.state_dict().items()}
    _run_with_loss(state, lambda: 0 * state.network(IMAGES).sum())
    for name, value in state.network.state_dict().items():
        factor = (1 - 0.01 * 0.5) ** 4 if name.startswith("head.") else 1
        torch.testing.assert_close(value, before[name] * factor)


def test_a_checkpoint_of_a_frozen_encoder_does_not_fit_a_trained_encoder(tmp_path: Path) -> None:
    path = tmp_path / "student-1.safetensors"
    save_checkpoint(_build_student_state(is_frozen=True), path)
    with pytest.raises(InputError, match=r"student-1\.safetensors does not belong to this run"):
        load_checkpoint(_build_student_state(is_frozen=False), path)
