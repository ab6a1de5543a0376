"""Measure the speed of each part of a training, and profile joint iterations."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from training.keypoints.adapt import adapt
from training.keypoints.data import draw_shapes, open_drawing_pool
from training.keypoints.network import TrainingNetwork, build_superpoint, fold_norms
from training.keypoints.optimize import Iterate, make_iteration
from training.keypoints.phases import build_joint_step, build_shapes_step
from training.keypoints.settings import Settings

IMAGES = 256  # number of images to draw; more images would not change the speed
ROWS = 25  # number of operations in the profile
LEARNING_RATE = 1e-4  # arbitrary, because the trained weights are discarded


def measure_speed(settings: Settings, count: int, device: torch.device) -> str:
    """Return a report: iterations and views per second, and the slowest operations of joint iterations.

    Args:
        settings: Settings of the training.
        count: Number of measured iterations.
        device: Device to train on.
    """
    generator = torch.Generator(device).manual_seed(settings.seed)
    with open_drawing_pool() as pool:
        data = replace(settings.data, shapes=min(IMAGES, settings.data.shapes))
        shapes = draw_shapes(pool, data, settings.seed).wait(device)
    network = TrainingNetwork().to(device)
    steps = {
        "shapes": build_shapes_step(network, shapes, settings, generator),
        "joint": build_joint_step(network, shapes, shapes, settings, generator),
    }
    rates = {
        name: count
        / _time_iterations(make_iteration(network, step, settings.training, generator), count, device)
        for name, step in steps.items()
    }
    lines = [f"{name}: {rate:.1f} iterations per second" for name, rate in rates.items()]
    superpoint = build_superpoint(fold_norms(network.eval()), device)
    short_settings = replace(settings, adapt=replace(settings.adapt, views=2))
    adapt(superpoint, shapes.images, short_settings, generator)
    seconds = _measure_seconds(lambda: adapt(superpoint, shapes.images, short_settings, generator), device)
    views_per_second = 3 * len(shapes) / seconds  # three passes: the images and two deformed views
    lines.append(f"adaptation: {views_per_second:.0f} views per second")
    total = _estimate_total_seconds(settings, rates, views_per_second)
    lines.append(f"training and adaptation in total: {total:.0f} s, without drawing")
    network.train()
    lines.append(_profile(steps["joint"], count, device))
    return "\n".join(lines)


def _estimate_total_seconds(settings: Settings, rates: dict[str, float], views_per_second: float) -> float:
    """Return the seconds of a whole training, without drawing images.

    Args:
        settings: Settings of the training.
        rates: Iterations per second of the phases "shapes" and "joint".
        views_per_second: Speed of homographic adaptation.
    """
    options, data = settings.training, settings.data
    num_views = (data.scenes + data.animals + data.photographs) * (settings.adapt.views + 1)
    return (
        options.shapes_iterations / rates["shapes"]
        + sum(options.joint_iterations) / rates["joint"]
        + len(options.joint_iterations) * num_views / views_per_second
    )


def _time_iterations(iterate: Iterate, count: int, device: torch.device) -> float:
    """Return the seconds of `count` iterations after warm-up and graph capture."""
    for _ in range(5):
        iterate(LEARNING_RATE)
    return _measure_seconds(lambda: [iterate(LEARNING_RATE) for _ in range(count)], device)


def _measure_seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of a function call, including the GPU operations that it starts."""
    _wait(device)
    before = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - before


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _profile(step: Callable[[], dict[str, torch.Tensor]], count: int, device: torch.device) -> str:
    """Profile losses and gradients without a CUDA graph, and return the profiler's table."""

    def work() -> None:
        for _ in range(count):
            torch.autograd.backward(list(step().values()))
        _wait(device)

    work()
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        work()
    sort_by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    return str(profiler.key_averages().table(sort_by=sort_by, row_limit=ROWS, max_name_column_width=90))
