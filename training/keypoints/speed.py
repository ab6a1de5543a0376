"""How fast the parts of a training are here, and what a joint iteration spends its time on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from training.keypoints.adapt import adapt
from training.keypoints.data import draughtsmen, draw_shapes
from training.keypoints.network import Trainee, fold, plain
from training.keypoints.optimize import Iterate, iterations
from training.keypoints.phases import joint_step, shapes_step
from training.keypoints.settings import Settings

IMAGES = 256  # drawn for the purpose; more would change nothing
ROWS = 25  # kernels listed
RATE = 1e-4  # learning rate; what is learnt is thrown away


def measure_speed(settings: Settings, count: int, device: torch.device) -> str:
    """Iterations and images per second, and the operations that take most of `count` joint iterations."""
    generator = torch.Generator(device).manual_seed(settings.seed)
    with draughtsmen() as pool:
        data = replace(settings.data, shapes=min(IMAGES, settings.data.shapes))
        shapes = draw_shapes(pool, data, settings.seed).ready(device)
    network = Trainee().to(device)
    steps = {
        "shapes": shapes_step(network, shapes, settings, generator),
        "joint": joint_step(network, shapes, shapes, settings, generator),
    }
    paces = {
        name: count / _seconds(iterations(network, step, settings.training, generator), count, device)
        for name, step in steps.items()
    }
    lines = [f"{name}: {pace:.1f} iterations per second" for name, pace in paces.items()]
    finder = plain(fold(network.eval()), device)
    few = replace(settings, adapt=replace(settings.adapt, views=2))
    adapt(finder, shapes.images, few, generator)
    seconds = _timed(lambda: adapt(finder, shapes.images, few, generator), device)
    views = 3 * len(shapes) / seconds  # three passes here: the images themselves and two deformations
    lines.append(f"adaptation: {views:.0f} views per second")
    lines.append(f"training and adaptation in all: {_whole(settings, paces, views):.0f} s, without drawing")
    network.train()
    lines.append(_profiled(steps["joint"], count, device))
    return "\n".join(lines)


def _whole(settings: Settings, paces: dict[str, float], views: float) -> float:
    """Seconds of a whole training at these paces."""
    rules, data = settings.training, settings.data
    looks = (data.scenes + data.animals + data.photographs) * (settings.adapt.views + 1)
    return (
        rules.shapes_iterations / paces["shapes"]
        + sum(rules.joint_iterations) / paces["joint"]
        + len(rules.joint_iterations) * looks / views
    )


def _seconds(iterate: Iterate, count: int, device: torch.device) -> float:
    """Of `count` iterations, once everything is chosen and recorded."""
    for _ in range(5):
        iterate(RATE)
    return _timed(lambda: [iterate(RATE) for _ in range(count)], device)


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds, with all that was begun finished."""
    _wait(device)
    before = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - before


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _profiled(step: Callable[[], dict[str, torch.Tensor]], count: int, device: torch.device) -> str:
    """The table of the profiler for losses and gradients, step by step and not recorded."""

    def work() -> None:
        for _ in range(count):
            torch.autograd.backward(list(step().values()))
        _wait(device)

    work()
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        work()
    by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    return str(profiler.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=90))
