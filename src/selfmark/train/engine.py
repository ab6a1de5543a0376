"""The step engine all phases share: backward pass, update, learning rate, logging, checkpoints.

Losses are summed on the device and read back only when a line is logged, so steps never wait for the host.
Where the network's operations allow it, a step is recorded once per phase and then replayed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selfmark.config import Optimizer, Runtime
from selfmark.errors import TrainingError
from selfmark.model.operations import PLAIN, Operations
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.train.cuda_graph import CapturedStep
from selfmark.train.optimizer import FlatRMSprop


@dataclass
class TrainState:
    """Everything a phase changes: what a checkpoint must hold to go on as if nothing had happened."""

    network: nn.Module
    optimizer: FlatRMSprop
    generator: torch.Generator
    group: ProcessGroup  # the processes that train together
    record: bool  # whether steps are recorded and replayed
    iteration: int = 0


@dataclass(frozen=True)
class Phase:
    """One stretch of training: its name, its iterations, and where the learning rate drops tenfold."""

    stage: str
    round: int
    start: int
    stop: int
    drops: tuple[int, ...]


Losses = Mapping[str, Tensor]
Batch = tuple[Tensor, ...]
OnLog = Callable[[Phase, int, dict[str, float], float], None]


@dataclass(frozen=True)
class TrainingTask:
    """What a phase minimizes, and on what.

    losses:  terms of a batch; "total" is minimized, all are logged
    batches: the batches of iterations start..stop-1, in order
    """

    losses: Callable[..., Losses]
    batches: Callable[[int, int], Generator[Batch]]


def build_train_state(
    network: nn.Module,
    shares: list[tuple[nn.Module, float]],
    settings: Optimizer,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> TrainState:
    """RMSprop over parts of the network, each at its share of the learning rate."""
    operations: Operations = getattr(network, "operations", PLAIN)
    optimizer = FlatRMSprop(shares, settings, operations.copy_dtype)
    operations.adopt(optimizer.copies)
    record = operations.recordable and group.size == 1
    return TrainState(network, optimizer, generator, group, record)


def run_phase(
    state: TrainState,
    phase: Phase,
    task: TrainingTask,
    runtime: Runtime,
    on_log: OnLog,
    on_checkpoint: Callable[[], None],
    stop_asked: Callable[[], bool] = lambda: False,
) -> None:
    """Run a phase from wherever the state stands to its end.

    A checkpoint is written every so many iterations and at the end of the phase; never one with a loss or a
    weight that is not finite.

    Raises:
        KeyboardInterrupt: `stop_asked` said so; the state is checkpointed first.
    """
    state.network.train()
    running = _Step(state, task.losses)
    step = CapturedStep(running, state.generator) if state.record else running
    began = time.monotonic()
    with closing(task.batches(state.iteration, phase.stop)) as batches:
        for batch in batches:
            state.optimizer.scale_rate(0.1 ** sum(state.iteration >= drop for drop in phase.drops))
            step(*batch)
            state.iteration += 1
            to_log = state.iteration % runtime.log_every == 0 or state.iteration == phase.stop
            if to_log:
                means = running.means()
                _require_finite(means, phase, state.iteration)
                on_log(phase, state.iteration, means, time.monotonic() - began)
            stop = _all_stop(stop_asked, state.group, to_log)
            due = state.iteration % runtime.checkpoint_every == 0 or stop
            if due and state.iteration < phase.stop:
                _require_sound(state, running, phase)
                on_checkpoint()
            if stop:
                break
    state.optimizer.zero_grad()
    if state.iteration == phase.stop:
        _require_sound(state, running, phase)
        on_checkpoint()
    else:
        raise KeyboardInterrupt


def _all_stop(asked: Callable[[], bool], group: ProcessGroup, together: bool) -> bool:
    """Whether to stop now. Processes agree on it where they wait for each other anyway: at a line logged."""
    if group.size == 1:
        return asked()
    return together and group.any(asked())


class _Step:
    """Losses, backward pass, update; the terms add up on the device until their means are asked for."""

    def __init__(self, state: TrainState, losses: Callable[..., Losses]) -> None:
        self._state, self._losses = state, losses
        self._names: tuple[str, ...] = ()
        self._sums = torch.empty(0)
        self._since = state.iteration

    def __call__(self, *batch: Tensor) -> None:
        self._state.optimizer.zero_grad()
        terms = self._losses(*batch)
        terms["total"].backward()  # type: ignore[no-untyped-call]
        self._state.optimizer.step(self._state.group)
        values = torch.stack([term.detach() for term in terms.values()])
        if not self._names:
            self._names, self._sums = tuple(terms), torch.zeros_like(values)
        self._sums += values

    def finite(self) -> bool:
        """Whether all terms since the last call of `means` were finite."""
        return bool(self._sums.isfinite().all())

    def means(self) -> dict[str, float]:
        """Of each term over the steps since the last call and over all processes."""
        group, steps = self._state.group, self._state.iteration - self._since
        sums = group.all_sum(self._sums.clone()).tolist()
        self._sums.zero_()
        self._since = self._state.iteration
        return {name: value / (steps * group.size) for name, value in zip(self._names, sums, strict=True)}


def _require_sound(state: TrainState, running: _Step, phase: Phase) -> None:
    """What is about to be kept must be worth resuming; asked only where the device is waited for anyway."""
    if not (running.finite() and all(bool(p.isfinite().all()) for p in state.network.parameters())):
        raise TrainingError(_diverged("a loss or a weight is", phase, state.iteration))


def _diverged(what: str, phase: Phase, iteration: int) -> str:
    return (
        f"{what} no longer a finite number at iteration {iteration} of {phase.stage}: what was reached "
        "before is kept; resume with a lower optimizer.lr or with optimizer.clip_norm set, e.g. "
        "--resume --set optimizer.clip_norm=1"
    )


def _require_finite(means: dict[str, float], phase: Phase, iteration: int) -> None:
    bad = [name for name, value in means.items() if not math.isfinite(value)]
    if bad:
        raise TrainingError(_diverged(f"the {bad[0]} loss is", phase, iteration))
