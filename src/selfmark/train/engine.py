"""Run the training loop of all phases: backward pass, update, learning rate, logging, checkpoints.

Losses are summed on the device and read only when a line is logged, so that the host does not wait for the
device after every step. If the network's backend allows it and only one process trains, the step is captured
once per phase as a CUDA graph and then replayed. A step that cannot be captured runs eagerly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from selfmark.config import Optimizer, Runtime, Student
from selfmark.errors import TrainingError
from selfmark.model.backend import Backend
from selfmark.model.feature_network import FeaturePsi
from selfmark.model.network import Psi
from selfmark.model.plain_backend import PLAIN_BACKEND
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.train.cuda_graph import CapturedStep
from selfmark.train.optimizer import FlatAdamW, FlatOptimizer, FlatRMSprop
from selfmark.train.standstill import Movements, Standstill


@dataclass
class TrainState:
    """State of a training and how its steps run; a checkpoint of the state is enough to resume."""

    network: nn.Module
    optimizer: FlatOptimizer
    generator: torch.Generator
    group: ProcessGroup  # the processes that train together
    capture: bool  # whether to capture steps as a CUDA graph
    iteration: int = 0
    movements: Movements = field(default_factory=Movements)  # of landmarks, if the phase may end early


@dataclass(frozen=True)
class Phase:
    """Part of the training: its name, its iterations and its learning rate.

    stage:           name of the phase in log events, e.g. "warm-up"
    round:           number of the round, or of the phase if Stage 2 has several; otherwise 0
    start:           first iteration
    stop:            iteration after the last one
    drops:           iterations at which the learning rate drops by a factor of 10
    warmup_fraction: if above 0, the learning rate follows one cycle: it rises during this fraction of the
                     phase and falls during the rest, each along half a period of a cosine
    """

    stage: str
    round: int
    start: int
    stop: int
    drops: tuple[int, ...]
    warmup_fraction: float = 0.0

    def lr_factor(self, iteration: int) -> float:
        """Return the factor on the learning rate at an iteration.

        >>> Phase("stage 2", 0, 0, 100, (50,)).lr_factor(60)
        0.1
        >>> phase = Phase("round", 1, 0, 100, (), warmup_fraction=0.1)
        >>> [round(phase.lr_factor(iteration), 2) for iteration in (0, 5, 10, 55, 99)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        """
        factor = 0.1 ** sum(iteration >= drop for drop in self.drops)
        if self.warmup_fraction > 0:
            done = (iteration - self.start) / (self.stop - self.start)
            warmup = self.warmup_fraction
            height = done / warmup if done < warmup else (1 - done) / (1 - warmup)
            factor *= 0.5 - 0.5 * math.cos(math.pi * height)
        return float(factor)

    def final_start(self, final_fraction: float) -> int:
        """Return the first iteration of the final part: the first drop, or else a fraction before the end.

        >>> Phase("stage 2", 0, 0, 100, (50, 80)).final_start(0.4)
        50
        >>> Phase("round", 1, 0, 100, (), warmup_fraction=0.1).final_start(0.4)
        60
        """
        drops = [drop for drop in self.drops if self.start <= drop < self.stop]
        return min(drops, default=self.stop - max(1, round(final_fraction * (self.stop - self.start))))


Losses = Mapping[str, Tensor]
"""Mapping from names to loss terms; "total" is minimized."""
Batch = tuple[Tensor, ...]
OnLog = Callable[[Phase, int, dict[str, float], float], None]
"""Called with the phase, the iteration, the mean losses and the seconds, see `run_phase`."""


@dataclass(frozen=True)
class TrainingTask:
    """Loss and batches of a phase.

    losses:  maps the tensors of a batch to loss terms; "total" is minimized, and all terms are logged
    batches: yields the batches of iterations start..stop-1, in order
    """

    losses: Callable[..., Losses]
    batches: Callable[[int, int], Generator[Batch]]


def build_train_state(
    network: nn.Module,
    lr_scales: list[tuple[nn.Module, float]],
    settings: Optimizer,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> TrainState:
    """Create an RMSprop optimizer and the state at iteration 0.

    Args:
        network: the network to train.
        lr_scales: parts of the network and the factor on the learning rate of each.
        settings: settings of the optimizer.
        generator: source of the random numbers of augmentation and sampling.
        group: the processes that train together.
    """
    backend: Backend = getattr(network, "backend", PLAIN_BACKEND)
    optimizer = FlatRMSprop(lr_scales, settings, backend.execution.weight_dtype)
    backend.execution.use_weight_copies(optimizer.weight_copies)
    capture = backend.execution.is_capturable and group.size == 1
    return TrainState(network, optimizer, generator, group, capture)


def build_student_state(
    network: FeaturePsi, settings: Student, is_frozen: bool, generator: torch.Generator, group: ProcessGroup
) -> TrainState:
    """Create an AdamW optimizer for a head and its encoder (unless frozen), and the state at iteration 0.

    Args:
        network: the network to train.
        settings: learning rates and weight decay.
        is_frozen: whether the encoder keeps its weights.
        generator: source of the random numbers of augmentation and sampling.
        group: the processes that train together.
    """
    network.encoder.requires_grad_(not is_frozen)
    lr_scales: list[tuple[nn.Module, float]] = [(network.head, 1.0)]
    if not is_frozen:
        lr_scales.append((network.encoder, settings.encoder_lr))
    optimizer = FlatAdamW(lr_scales, settings.lr, settings.weight_decay)
    capture = network.backend.execution.is_capturable and group.size == 1
    return TrainState(network, optimizer, generator, group, capture)


def build_method_state(
    network: nn.Module, psi: Psi, lr: float, generator: torch.Generator, group: ProcessGroup
) -> TrainState:
    """Create an Adam optimizer for the network of another paper's method, and the state at iteration 0.

    Args:
        network: all networks that the method trains, including `psi`.
        psi: the part that finds landmarks, prepared for the device; no other part has a backend.
        lr: learning rate.
        generator: source of the random numbers of augmentation and sampling.
        group: the processes that train together.
    """
    execution = psi.backend.execution
    in_psi = set(psi.parameters())
    other_parameters = nn.ParameterList(p for p in network.parameters() if p not in in_psi)
    parts: list[tuple[nn.Module, float]] = [(psi, 1.0), (other_parameters, 1.0)]
    not_empty = [(part, scale) for part, scale in parts if any(True for _ in part.parameters())]
    optimizer = FlatAdamW(not_empty, lr, weight_decay=0.0, copy_dtype=execution.weight_dtype)
    optimizer.remedy = f"start a new run with a lower learning rate of its method than {lr:g}"
    execution.use_weight_copies(optimizer.weight_copies)
    return TrainState(network, optimizer, generator, group, execution.is_capturable and group.size == 1)


def run_phase(
    state: TrainState,
    phase: Phase,
    task: TrainingTask,
    runtime: Runtime,
    on_log: OnLog,
    on_checkpoint: Callable[[], None],
    stop_requested: Callable[[], bool] = lambda: False,
    standstill: Standstill | None = None,
) -> None:
    """Train from the current iteration of the state to the end of the phase.

    A checkpoint is written every `runtime.checkpoint_every` iterations, after iterations are skipped, and at
    the end of the phase. If a loss or a weight is not finite, no checkpoint is written.

    Args:
        state: network, optimizer and iteration; the training changes them.
        phase: iterations and learning rate.
        task: loss and batches.
        runtime: how often to log and to write checkpoints.
        on_log: called with the phase, the iteration, the mean losses since the last call, and the seconds
            since the start of the phase.
        on_checkpoint: called when a checkpoint is due.
        stop_requested: called after each iteration; returns True to stop. With several processes, it is
            called only when a line is logged.
        standstill: when to skip iterations because the landmarks stand still; None to skip none.

    Raises:
        KeyboardInterrupt: if `stop_requested` returned True before the end; a checkpoint is written first.
        TrainingError: if a loss or a weight is not finite.
    """
    state.network.train()
    eager_step = _Step(state, task.losses)
    step = CapturedStep(eager_step, state.generator) if state.capture else eager_step
    start_time = time.monotonic()
    stop = False
    while state.iteration < phase.stop and not stop:
        with closing(task.batches(state.iteration, phase.stop)) as batches:
            for batch in batches:
                state.optimizer.scale_learning_rate(phase.lr_factor(state.iteration))
                step(*batch)
                state.iteration += 1
                done = next_iteration = state.iteration
                is_measurement_due = standstill is not None and standstill.is_due(done)
                is_log_due = done % runtime.log_every == 0 or done == phase.stop or is_measurement_due
                if is_log_due:
                    means = eager_step.pop_means()
                    _require_finite_losses(means, state, phase)
                    on_log(phase, done, means, time.monotonic() - start_time)
                stop = _agree_to_stop(stop_requested, state.group, is_log_due)
                if standstill is not None and is_measurement_due:
                    next_iteration = state.iteration = standstill.measure(done, state.movements, state.group)
                    eager_step.skip_to(next_iteration)
                is_skipping = next_iteration > done
                is_checkpoint_due = done % runtime.checkpoint_every == 0 or is_skipping or stop
                if is_checkpoint_due and state.iteration < phase.stop:
                    _require_finite_state(state, eager_step, phase)
                    on_checkpoint()
                if is_skipping or stop:
                    break  # After a skip, the loop starts again with the batches of later iterations.
    state.optimizer.zero_grad()
    if state.iteration == phase.stop:
        _require_finite_state(state, eager_step, phase)
        on_checkpoint()
    else:
        raise KeyboardInterrupt


def _agree_to_stop(stop_requested: Callable[[], bool], group: ProcessGroup, is_sync_point: bool) -> bool:
    """Return True if any process wants to stop.

    With several processes, the answer is exchanged only at sync points, where the processes wait for each
    other anyway to write a log line. Between sync points, the result is False.
    """
    if group.size == 1:
        return stop_requested()
    return is_sync_point and group.any(stop_requested())


class _Step:
    """Training step: loss, backward pass and update.

    The loss terms are summed on the device until `pop_means` reads their means.
    """

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

    def is_finite(self) -> bool:
        """Return True if all loss terms since the last call of `pop_means` were finite."""
        return bool(self._sums.isfinite().all())

    def skip_to(self, iteration: int) -> None:
        """Continue at this or a later iteration, right after a call of `pop_means`."""
        self._since = iteration

    def pop_means(self) -> dict[str, float]:
        """Return the mean of each loss term over all processes and over the steps since the last call."""
        group, steps = self._state.group, self._state.iteration - self._since
        sums = group.all_sum(self._sums.clone()).tolist()
        self._sums.zero_()
        self._since = self._state.iteration
        return {name: value / (steps * group.size) for name, value in zip(self._names, sums, strict=True)}


def _require_finite_state(state: TrainState, step: _Step, phase: Phase) -> None:
    """Raise if a loss or a weight is not finite; called where the host waits for the device anyway."""
    if not (step.is_finite() and all(bool(p.isfinite().all()) for p in state.network.parameters())):
        raise TrainingError(_divergence_message("a loss or a weight is", state, phase))


def _require_finite_losses(means: dict[str, float], state: TrainState, phase: Phase) -> None:
    """Raise if the mean of a loss term is not finite."""
    not_finite = [name for name, value in means.items() if not math.isfinite(value)]
    if not_finite:
        raise TrainingError(_divergence_message(f"the {not_finite[0]} loss is", state, phase))


def _divergence_message(subject: str, state: TrainState, phase: Phase) -> str:
    return (
        f"{subject} no longer a finite number at iteration {state.iteration} of {phase.stage}. The last "
        f"checkpoint is kept; {state.optimizer.remedy}"
    )
