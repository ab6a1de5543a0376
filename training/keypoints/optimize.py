"""Minimize losses with AdamW, a warm-up and a cosine schedule. On a GPU, iterations run as a CUDA graph."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from selfmark.train.cuda_graph import CapturedStep
from training.keypoints.network import TrainingNetwork
from training.keypoints.phases import Step
from training.keypoints.settings import Training

Iterate = Callable[[float], dict[str, Tensor]]


@dataclass
class Log:
    """Events of the run, printed to stderr immediately and kept for log.json."""

    started: float = field(default_factory=time.perf_counter)
    events: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, event: str, **values: Any) -> None:
        """Record and print an event."""
        seconds = round(time.perf_counter() - self.started, 1)
        self.events.append({"event": event, "seconds": seconds, **values})
        shown = "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in values.items()
        )
        print(f"{seconds:7.1f} s  {event}  {shown}", file=sys.stderr, flush=True)


def make_iteration(
    network: TrainingNetwork, step: Step, training: Training, generator: torch.Generator
) -> Iterate:
    """Return a function that does one iteration with a given learning rate.

    The function returns the losses before the update. On a GPU, all but the first few iterations replay a
    CUDA graph: an iteration has about a thousand small operations, and launching them one by one takes longer
    than executing them. `step` must draw its random numbers from `generator`.
    """
    network.train()
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    on_gpu = parameters[0].is_cuda
    rate = torch.zeros((), device=parameters[0].device)
    optimizer = torch.optim.AdamW(
        parameters, rate, weight_decay=training.weight_decay, fused=on_gpu, capturable=on_gpu
    )
    losses: dict[str, Tensor] = {}

    def iterate() -> None:
        current = step()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(list(current.values()))  # gradient of the sum of the losses
        nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        optimizer.step()
        for name, loss in current.items():
            losses.setdefault(name, torch.zeros_like(loss.detach())).copy_(loss.detach())

    run = CapturedStep(iterate, generator) if on_gpu else iterate

    def iterate_at_rate(lr: float) -> dict[str, Tensor]:
        rate.fill_(lr)
        run()
        return losses

    return iterate_at_rate


def compute_learning_rate(done: int, total: int, lr: float, training: Training) -> float:
    """Return the learning rate after `done` of `total` iterations.

    It is a cosine from `lr` to zero over all iterations, multiplied by a factor that rises linearly to 1
    during the warm-up.
    """
    warmup = min(1.0, (done + 1) / max(1.0, training.warmup * total))
    return lr * warmup * 0.5 * (1 + math.cos(math.pi * done / total))


def optimize(
    network: TrainingNetwork,
    step: Step,
    total: int,
    lr: float,
    training: Training,
    generator: torch.Generator,
    phase: str,
    log: Log,
) -> None:
    """Minimize the sum of the losses that `step` returns.

    Args:
        network: Network to train.
        step: Function that draws a batch and returns its losses.
        total: Number of iterations.
        lr: Maximum learning rate.
        training: Settings of the optimizer.
        generator: Random generator of `step`.
        phase: Name of the phase, for the log.
        log: Log of the run.
    """
    iterate = make_iteration(network, step, training, generator)
    last_time, last_iteration = time.perf_counter(), 0
    for iteration in range(1, total + 1):
        losses = iterate(compute_learning_rate(iteration - 1, total, lr, training))
        if iteration % training.log_every == 0 or iteration == total:
            values = {name: float(loss) for name, loss in losses.items()}
            now = time.perf_counter()
            log(
                phase,
                iteration=iteration,
                **values,
                iterations_per_second=(iteration - last_iteration) / (now - last_time),
            )
            last_time, last_iteration = now, iteration
