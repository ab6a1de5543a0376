"""Steps of many GPUs simulated event by event, to check the closed formulas of `cost_formulas.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cost_formulas import (
    Assumptions,
    Rates,
    gradient_size,
    layout,
    step_compute,
    sums_size,
    training,
    views,
)

FloatArray = npt.NDArray[np.float64]


def simulate_exchange(
    ready: FloatArray, size: float, given: Assumptions, rng: np.random.Generator
) -> FloatArray:
    """When each GPU has the sum, given when each [nodes, GPUs of a node] was ready: message by message.

    A GPU sends its next part to its neighbour as soon as it has sent the last one and has received what it
    needs; nobody waits for anybody else. Formulas know nothing of this: they count bytes and messages.
    """
    nodes, inside = ready.shape
    within = _Link(given.nvlink, given.hop_nvlink, axis=1)
    between = _Link(given.network, given.hop_network, axis=0)
    ready = _ring(
        ready, inside - 1, size / inside, within, given, rng
    )  # each GPU sums up a share of the node
    ready = _ring(
        ready, 2 * (nodes - 1), size / inside / nodes, between, given, rng
    )  # the share over all nodes
    return _ring(ready, inside - 1, size / inside, within, given, rng)  # shares are handed round the node


@dataclass(frozen=True)
class _Link:
    bandwidth: float
    hop: float
    axis: int


def _ring(
    ready: FloatArray, rounds: int, part: float, link: _Link, given: Assumptions, rng: np.random.Generator
) -> FloatArray:
    for _ in range(rounds):
        factor = np.maximum(rng.normal(1, given.link_jitter, ready.shape), 0.5)
        sent = ready + (link.hop + part / link.bandwidth) * factor
        ready = np.maximum(sent, np.roll(sent, 1, axis=link.axis))
    return ready


def simulate_steps(
    gpus: int, compute: float, size: float, steps: int, given: Assumptions, rng: np.random.Generator
) -> float:
    """Seconds per step when every GPU computes for about `compute` seconds and then all sum `size` bytes."""
    inside, nodes = layout(gpus, given)
    ready = np.zeros((nodes, inside))
    for _ in range(steps):
        factor = rng.normal(1, given.jitter, ready.shape)
        factor += given.hiccup * (rng.random(ready.shape) < given.hiccup_share)
        ready = simulate_exchange(ready + compute * factor, size, given, rng)
    return float(ready.max()) / steps


def simulate_round(
    gpus: int, images: float, rates: Rates, given: Assumptions, rng: np.random.Generator, thinning: int = 50
) -> float:
    """Seconds of one round as built: apply Phi to every image, K-means, assign, train.

    Of steps and iterations that are alike only every `thinning`th is simulated. Lasting differences between
    GPUs are those of many sets of GPUs, averaged.
    """
    slowness = np.maximum(rng.normal(1, given.speed_spread, (200, gpus)), 0.5)
    alone = images / rates.extract + images * rates.recovery_assign_200k / 200_000
    seconds = float((alone / gpus * slowness).max(axis=1).mean())
    each = given.restarts * given.iterations
    compute = max(rates.recovery_fit_200k / gpus / (2 * each), given.iteration_floor)
    for clusters in (given.K, given.M):
        few = each // thinning
        seconds += each * simulate_steps(gpus, compute, sums_size(clusters, given), few, given, rng)
    plan = training(gpus, views(images, given.views, given), rates, given)
    steps = plan.steps / given.recoveries
    few = max(1, int(steps) // thinning)
    compute = step_compute(plan.batch, rates)
    return seconds + steps * simulate_steps(gpus, compute, gradient_size(given), few, given, rng)
