"""The step engine all phases share: precision, optimiser step, learning rate, logging, checkpoints.

Losses are summed on the device and read back only when a line is logged, so steps never wait for the host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selfmark.config import Optimiser, Runtime
from selfmark.errors import TrainingError


@dataclass
class TrainState:
    """Everything a phase changes: what a checkpoint must hold to go on as if nothing had happened."""

    network: nn.Module
    optimiser: torch.optim.RMSprop
    generator: torch.Generator
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
OnLog = Callable[[Phase, int, dict[str, float], float], None]


def autocast(device: torch.device, runtime: Runtime) -> AbstractContextManager[None]:
    """Mixed precision as the settings say: bf16 on CUDA unless told otherwise, fp32 elsewhere."""
    bf16 = runtime.precision == "bf16" or (runtime.precision == "auto" and device.type == "cuda")
    context: AbstractContextManager[None] = torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16)
    return context


def make_state(
    network: nn.Module, shares: list[tuple[nn.Module, float]], settings: Optimiser, generator: torch.Generator
) -> TrainState:
    """RMSprop over parts of the network, each at its share of the learning rate."""
    groups = [{"params": list(part.parameters()), "lr": settings.lr * share} for part, share in shares]
    optimiser = torch.optim.RMSprop(groups, lr=settings.lr, weight_decay=settings.weight_decay)
    for group in optimiser.param_groups:
        group["full_lr"] = group["lr"]
    return TrainState(network, optimiser, generator)


def train(
    state: TrainState,
    phase: Phase,
    losses: Callable[[], Losses],
    optimiser: Optimiser,
    runtime: Runtime,
    on_log: OnLog,
    on_checkpoint: Callable[[], None],
) -> None:
    """Run a phase from wherever the state stands to its end; `losses` draws a batch and returns its terms.

    The entry "total" is minimised, all entries are logged. A checkpoint is written every so many iterations
    and at the end of the phase.
    """
    state.network.train()
    sums: dict[str, Tensor] = {}
    logged, began = state.iteration, time.monotonic()
    while state.iteration < phase.stop:
        _set_learning_rate(state.optimiser, state.iteration, phase.drops)
        terms = losses()
        state.optimiser.zero_grad(set_to_none=True)
        terms["total"].backward()  # type: ignore[no-untyped-call]
        if optimiser.clip_norm > 0:
            nn.utils.clip_grad_norm_(state.network.parameters(), optimiser.clip_norm)
        state.optimiser.step()
        state.iteration += 1
        for name, value in terms.items():
            sums[name] = sums[name] + value.detach() if name in sums else value.detach()
        if state.iteration % runtime.log_every == 0 or state.iteration == phase.stop:
            means = {name: float(value) / (state.iteration - logged) for name, value in sums.items()}
            _require_finite(means, phase, state.iteration)
            on_log(phase, state.iteration, means, time.monotonic() - began)
            sums, logged = {}, state.iteration
        if state.iteration % runtime.checkpoint_every == 0 and state.iteration < phase.stop:
            on_checkpoint()
    on_checkpoint()


def _set_learning_rate(optimiser: torch.optim.Optimizer, iteration: int, drops: tuple[int, ...]) -> None:
    factor = 0.1 ** sum(iteration >= drop for drop in drops)
    for group in optimiser.param_groups:
        group["lr"] = group["full_lr"] * factor


def _require_finite(means: dict[str, float], phase: Phase, iteration: int) -> None:
    bad = [name for name, value in means.items() if not math.isfinite(value)]
    if bad:
        raise TrainingError(
            f"the {bad[0]} loss is no longer a finite number at iteration {iteration} of {phase.stage}: "
            "resume with a lower optimiser.lr or with optimiser.clip_norm set"
        )
