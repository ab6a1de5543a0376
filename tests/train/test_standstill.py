"""Test phases that skip iterations when landmarks stand still: the rule, the engine, and resuming."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from selfmark.config import Optimizer, Runtime
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.train.checkpoints import load_checkpoint, save_checkpoint
from selfmark.train.engine import (
    Batch,
    Losses,
    Phase,
    TrainingTask,
    TrainState,
    build_train_state,
    run_phase,
)
from selfmark.train.objectives import LandmarkTable
from selfmark.train.standstill import Movements, Standstill, is_standing_still

# The first part ends after 32 iterations, where the learning rate drops. Landmarks are located after 4, 8,
# and so on until 28 iterations.
PHASE = Phase("stage 2", 0, 0, 40, (32,))
FIRST, INTERVAL, FINAL_START = 4, 4, 32


# --- rule ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percents", "limit", "patience", "expected"),
    [
        ([], 1.0, 1, False),
        ([0.5], 1.0, 1, True),
        ([0.5], 1.0, 2, False),  # One measurement is not enough.
        ([5.0, 0.9, 0.8], 1.0, 2, True),
        ([5.0, 0.9, 0.8], 1.0, 3, False),  # The landmarks moved in the first of the last three measurements.
        ([0.1, 0.1, 1.2, 0.1], 1.0, 2, False),  # The landmarks moved again in between.
        ([0.1, 1.0], 1.0, 1, False),  # The limit itself counts as movement.
        ([0.0, 0.0], 0.0, 2, False),
        ([math.nan, math.nan], 1.0, 2, False),
    ],
)
def test_landmarks_stand_still_after_enough_small_movements(
    percents: list[float], limit: float, patience: int, expected: bool
) -> None:
    assert is_standing_still(percents, limit, patience) == expected


def test_movements_are_mean_distances_between_measurements() -> None:
    movements = Movements()
    assert movements.to_tensors() == {}
    start = torch.tensor([[[10.0, 10.0], [50.0, 50.0]], [[20.0, 20.0], [60.0, 60.0]]])
    movements.add(start)
    assert movements.percents == []
    moved = start.clone()
    moved[0, 0] += torch.tensor([3.0, 4.0])  # a distance of 5 percent of the image's side
    moved[1, 1] += torch.tensor([0.0, -1.0])  # 1 percent
    movements.add(moved)
    movements.add(moved)
    assert movements.percents == [6 / 4, 0.0]


def test_movements_are_restored_from_their_tensors() -> None:
    movements = Movements(torch.rand(2, 3, 2), [0.1, 1 / 3])
    restored = Movements.from_tensors(movements.to_tensors(), torch.device("cpu"))
    assert restored.percents == movements.percents
    assert restored.positions is not None
    assert torch.equal(restored.positions, movements.positions)  # type: ignore[arg-type]
    assert Movements.from_tensors({}, torch.device("cpu")) == Movements()


def test_the_final_part_begins_with_the_first_drop_inside_the_phase() -> None:
    assert Phase("stage 2", 0, 0, 100, (25, 35)).final_start(0.4) == 25
    assert Phase("stage 2", 2, 30, 100, (25, 35)).final_start(0.4) == 35
    assert Phase("round", 1, 0, 3, (), 0.1).final_start(0.01) == 2, (
        "the final part has at least one iteration"
    )
    assert Phase("round", 1, 0, 3, (), 0.1).final_start(1.0) == 0, "without a first part, nothing is skipped"


def test_held_out_images_are_not_usable() -> None:
    present = torch.ones(10, 2, dtype=torch.bool)
    present[3] = False
    table = LandmarkTable.from_partners(torch.rand(10, 2, 2), present, LandmarkPartners.identity(2))
    kept, held_out = table.hold_out(3, seed=5)
    assert len(held_out) == 3
    assert sorted([*kept.usable.tolist(), *held_out.tolist()]) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert torch.equal(kept.xy, table.xy)
    with_same_seed, with_other_seed = (table.hold_out(3, seed)[1].tolist() for seed in (5, 6))
    assert with_same_seed == held_out.tolist() != with_other_seed


# --- engine ----------------------------------------------------------------------------------------------


class Training:
    """A small training. The weights of its first layer, times `scale`, are its landmarks in percent."""

    def __init__(self, limit: float, scale: float = 100.0, seed: int = 0) -> None:
        torch.manual_seed(seed)
        network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        generator = torch.Generator().manual_seed(7)
        self.state = build_train_state(network, [(network, 1.0)], Optimizer(lr=0.01), generator)
        self.measured: list[tuple[int, float, int]] = []
        self.trained: list[int] = []
        self.rates: list[float] = []
        self.logged: list[int] = []

        def locate() -> torch.Tensor:
            return scale * network[0].weight.detach().clone().view(4, 4, 2)

        self.standstill = Standstill(
            FIRST, INTERVAL, FINAL_START, limit, 2, locate, lambda *values: self.measured.append(values)
        )

    def run(
        self,
        path: Path | None = None,
        stop_requested: Callable[[TrainState], bool] = lambda _: False,
        checkpoint_every: int = 3,
    ) -> None:
        """Train to the end of the phase, or until `stop_requested`."""
        state = self.state

        def losses(shift: torch.Tensor) -> Losses:
            self.trained.append(state.iteration)
            self.rates += state.optimizer.learning_rates
            inputs = torch.randn(16, 4, generator=state.generator) + shift
            return {"total": (state.network(inputs)[:, 0] - inputs.sum(dim=1)).square().mean()}

        def batches(start: int, stop: int) -> Generator[Batch]:
            for iteration in range(start, stop):
                yield (torch.tensor(0.01 * iteration),)

        run_phase(
            state,
            PHASE,
            TrainingTask(losses, batches),
            Runtime(checkpoint_every=checkpoint_every, log_every=5),
            lambda phase, iteration, means, seconds: self.logged.append(iteration),
            (lambda: save_checkpoint(state, path)) if path else (lambda: None),
            lambda: stop_requested(state),
            self.standstill,
        )


def _assert_same_state(first: TrainState, second: TrainState) -> None:
    for name, value in first.network.state_dict().items():
        assert torch.equal(second.network.state_dict()[name], value), name
    moments, others = (state.optimizer.state_tensors(state.network) for state in (first, second))
    assert all(torch.equal(moments[name], others[name]) for name in moments)
    assert torch.equal(first.generator.get_state(), second.generator.get_state())
    assert first.movements.percents == second.movements.percents


def test_a_phase_whose_landmarks_stand_still_continues_with_its_final_part() -> None:
    training = Training(limit=1e9)  # The landmarks count as standing still, however far they move.
    training.run()
    # Landmarks are first located after 4 iterations, so movements are known after 8 and 12. Then the final
    # part begins.
    assert [(iteration, next_iteration) for iteration, _, next_iteration in training.measured] == [
        (8, 8),
        (12, 32),
    ]
    assert training.trained == [*range(12), *range(32, 40)]
    assert training.rates == pytest.approx([0.01] * 12 + [0.001] * 8), "the learning rate still drops"
    assert training.logged == [4, 5, 8, 10, 12, 35, 40]
    assert training.state.iteration == PHASE.stop


def test_a_phase_whose_landmarks_move_keeps_all_iterations() -> None:
    training, fixed = Training(limit=0.0), Training(limit=0.0)
    training.run()
    fixed.standstill = None  # type: ignore[assignment]
    fixed.run()
    assert training.trained == fixed.trained == list(range(40))
    assert [iteration for iteration, *_ in training.measured] == [8, 12, 16, 20, 24, 28]
    fixed.state.movements = training.state.movements
    _assert_same_state(training.state, fixed.state)  # Measuring has not changed the training.


@pytest.mark.parametrize("checkpoint_every", [1, 3, 100])
@pytest.mark.parametrize("interrupted_at", [3, 4, 7, 8, 11, 12, 13, 32, 33, 39])
def test_an_interrupted_phase_makes_the_same_decision(
    interrupted_at: int, checkpoint_every: int, tmp_path: Path
) -> None:
    limit = _choose_limit()
    uninterrupted = Training(limit)
    uninterrupted.run()
    skips = [next_iteration - iteration for iteration, _, next_iteration in uninterrupted.measured]
    assert sum(skips) > 0, "movements fall below the limit during the first part"
    path = tmp_path / "stage2.safetensors"
    stopped = Training(limit)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(path, lambda state: state.iteration >= interrupted_at, checkpoint_every)
    resumed = Training(limit, seed=99)
    load_checkpoint(resumed.state, path)
    resumed.run(path)
    _assert_same_state(uninterrupted.state, resumed.state)


@pytest.mark.parametrize("killed_at", [5, 9, 13, 17, 21])
def test_a_killed_phase_makes_the_same_decision(killed_at: int, tmp_path: Path) -> None:
    """A killed training repeats the iterations since its last checkpoint."""
    limit = _choose_limit()
    uninterrupted = Training(limit)
    uninterrupted.run()
    path = tmp_path / "stage2.safetensors"

    def kill(state: TrainState) -> bool:
        if len(killed.trained) >= killed_at:
            raise SystemExit
        return False

    killed = Training(limit)
    with pytest.raises(SystemExit):
        killed.run(path, kill)
    resumed = Training(limit, seed=99)
    load_checkpoint(resumed.state, path)
    resumed.run(path)
    _assert_same_state(uninterrupted.state, resumed.state)


def _choose_limit() -> float:
    """Return a limit below which the movements of the landmarks fall in the middle of the first part."""
    training = Training(limit=0.0)
    training.run()
    movements = [percent for _, percent, _ in training.measured]
    pairs = [max(pair) for pair in pairwise(movements)]
    return sorted(pairs)[len(pairs) // 2] * (1 + 1e-9)


def test_a_checkpoint_without_measurements_can_be_loaded(tmp_path: Path) -> None:
    """Checkpoints of earlier versions have no measurements."""
    path = tmp_path / "stage2.safetensors"
    training = Training(limit=1e9)
    save_checkpoint(training.state, path)
    load_checkpoint(training.state, path)
    assert training.state.movements == Movements()
    training.run()
    assert len(training.trained) == 20


def test_several_processes_average_their_movements() -> None:
    movements = Movements()
    positions = torch.zeros(1, 1, 2)
    movements.add(positions)

    class GroupOfTwo:
        size = 2

        def all_sum(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor + 1.0  # The other process has measured 1 percent.

    movements.add(positions + torch.tensor([3.0, 4.0]), GroupOfTwo())  # type: ignore[arg-type]
    assert movements.percents == [3.0]
