"""Simulate steps on many GPUs message by message, to check the formulas in `cost_formulas.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cost_formulas import (
    Assumptions,
    Rates,
    compute_step_seconds,
    count_gradient_bytes,
    count_sum_bytes,
    count_views,
    plan_training,
    split_into_nodes,
)

FloatArray = npt.NDArray[np.float64]


def simulate_exchange(
    ready: FloatArray, size: float, assumptions: Assumptions, rng: np.random.Generator
) -> FloatArray:
    """Simulate an all-reduce message by message; return the time at which each GPU has the sum.

    A GPU sends its next part to its neighbor as soon as it has sent the previous part and received one from
    its other neighbor. It waits for no other GPU. The formulas ignore this timing: they only count bytes and
    messages.

    Args:
        ready: Time at which each GPU can start, [nodes, GPUs per node], in seconds.
        size: Bytes to sum.
        assumptions: Bandwidths, latencies and their variation.
        rng: Random generator for the message times.

    Returns:
        Times in seconds, [nodes, GPUs per node].
    """
    nodes, gpus_per_node = ready.shape
    link_in_node = _Link(assumptions.nvlink, assumptions.hop_nvlink, axis=1)
    link_between_nodes = _Link(assumptions.network, assumptions.hop_network, axis=0)
    # Each GPU sums one part over its node, then over all nodes. Then the GPUs of a node exchange the parts.
    ready = _ring(ready, gpus_per_node - 1, size / gpus_per_node, link_in_node, assumptions, rng)
    ready = _ring(ready, 2 * (nodes - 1), size / gpus_per_node / nodes, link_between_nodes, assumptions, rng)
    return _ring(ready, gpus_per_node - 1, size / gpus_per_node, link_in_node, assumptions, rng)


@dataclass(frozen=True)
class _Link:
    bandwidth: float  # B/s
    latency: float  # s per message
    axis: int  # axis of [nodes, GPUs per node] along which neighbors are connected


def _ring(
    ready: FloatArray,
    rounds: int,
    part: float,
    link: _Link,
    assumptions: Assumptions,
    rng: np.random.Generator,
) -> FloatArray:
    """Pass `part` bytes to the next GPU of the ring `rounds` times; return the time at which each is done."""
    for _ in range(rounds):
        factor = np.maximum(rng.normal(1, assumptions.link_jitter, ready.shape), 0.5)
        sent = ready + (link.latency + part / link.bandwidth) * factor
        ready = np.maximum(sent, np.roll(sent, 1, axis=link.axis))
    return ready


def simulate_steps(
    gpus: int, compute: float, size: float, steps: int, assumptions: Assumptions, rng: np.random.Generator
) -> float:
    """Return the mean seconds per step.

    In a step, each GPU computes for about `compute` seconds; then all GPUs sum `size` bytes.
    """
    gpus_per_node, nodes = split_into_nodes(gpus, assumptions)
    ready = np.zeros((nodes, gpus_per_node))
    for _ in range(steps):
        factor = rng.normal(1, assumptions.jitter, ready.shape)
        factor += assumptions.stall * (rng.random(ready.shape) < assumptions.stall_fraction)
        ready = simulate_exchange(ready + compute * factor, size, assumptions, rng)
    return float(ready.max()) / steps


def simulate_round(
    gpus: int,
    images: float,
    rates: Rates,
    assumptions: Assumptions,
    rng: np.random.Generator,
    thinning: int = 50,
) -> float:
    """Return the seconds of one round: describe every image, fit K-means, assign clusters, train.

    Only one of `thinning` identical steps or iterations is simulated. Describing and assigning take as long
    as the slowest GPU, averaged over 200 random sets of GPUs.
    """
    slowness = np.maximum(rng.normal(1, assumptions.speed_spread, (200, gpus)), 0.5)
    single_gpu = images / rates.extract + images * rates.recovery_assign_200k / 200_000
    seconds = float((single_gpu / gpus * slowness).max(axis=1).mean())
    iterations_per_fit = assumptions.restarts * assumptions.iterations
    compute = max(rates.recovery_fit_200k / gpus / (2 * iterations_per_fit), assumptions.iteration_floor)
    for clusters in (assumptions.K, assumptions.M):
        simulated = iterations_per_fit // thinning
        seconds += iterations_per_fit * simulate_steps(
            gpus, compute, count_sum_bytes(clusters, assumptions), simulated, assumptions, rng
        )
    plan = plan_training(
        gpus, count_views(images, assumptions.min_views_stage1, assumptions), rates, assumptions
    )
    # The formulas divide the training by the number of recoveries, so the final clustering counts as a round.
    steps = plan.steps / assumptions.recoveries
    simulated = max(1, int(steps) // thinning)
    compute = compute_step_seconds(plan.batch, rates)
    return seconds + steps * simulate_steps(
        gpus, compute, count_gradient_bytes(assumptions), simulated, assumptions, rng
    )
