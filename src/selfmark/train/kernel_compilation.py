"""Compile Triton kernels in parallel while a run prepares its training.

Without this module, Triton compiles each kernel when it is first launched, one after the other. Here, Phi
(the network of Stage 1) runs on the meta device: one forward pass without gradients and one training step.
Nothing is computed there, but the kernel launches are recorded, which shows which kernels are needed. Threads
compile these kernels and store them in Triton's cache on the disk, where the run finds them. A kernel that is
not there yet is compiled by the run itself.

Phi is the network that finds and describes keypoints (Stage 1).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.config.schedule import stage_iterations
from selfmark.images.feed import PixelFeed
from selfmark.model.network import Phi, uses_fused_kernels
from selfmark.train.engine import build_train_state
from selfmark.train.objectives import build_stage1_task, warmup_pair_settings
from selfmark.train.pairs import PairSource
from selfmark.train.point_table import PointTable

if TYPE_CHECKING:
    from selfmark.model.fused_backend import Launch

_META = torch.device("meta")
_MAX_THREADS = 8
# Number of images in the recorded pass. Triton compiles a separate variant of a kernel for integers that are
# multiples of 16. Most passes of a run have such a number of images, so the recorded pass has one too.
_NUM_IMAGES = 16
_DONE = "done"  # name of the file in Triton's cache that records a finished compilation


@contextmanager
def compile_kernels(config: Config, device: torch.device) -> Iterator[None]:
    """Compile the kernels of a run in other threads while the context is open.

    When the context ends, kernels that are not yet being compiled are skipped.

    Nothing happens if the run uses no Triton kernels, if there are too few processors, or if the kernels were
    compiled before. Errors are ignored: the run then compiles the kernels itself.

    Args:
        config: settings of the run.
        device: device of the run.
    """
    num_threads = min(_MAX_THREADS, _count_processors() - 1)
    cache = None
    if num_threads > 1 and _needs_kernels(config, device):
        # This imports Triton, which the run needs anyway. Importing it in two threads at once is not safe.
        with suppress(Exception):
            cache = _find_cache(config, device)
    if cache is None:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(
        target=_compile, args=(config, device, cache, num_threads, stop), name="selfmark-compile"
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _count_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _needs_kernels(config: Config, device: torch.device) -> bool:
    """Return True if the run includes Stage 1 and Phi uses Triton kernels."""
    if device.type != "cuda" or "round" not in stage_iterations(config):
        return False
    with _META:
        phi = Phi(config.network)
    return uses_fused_kernels(phi, device, config.runtime)


def _find_cache(config: Config, device: torch.device) -> Any:
    """Return the place in Triton's cache where this compilation will be recorded.

    Return None if it is already recorded, or if this version of Triton cannot compile in threads.
    """
    import triton
    from triton.runtime.cache import get_cache_manager

    if not hasattr(triton, "AsyncCompileMode"):
        return None
    cache = get_cache_manager(_hash_request(config, device, triton.__version__))
    return cache if cache.get_file(_DONE) is None else None


def _compile(
    config: Config, device: torch.device, cache: Any, num_threads: int, stop: threading.Event
) -> None:
    """Compile the kernels of a run and record in the cache that this is done."""

    def compile_launch(launch: Launch) -> None:
        with torch.cuda.device(device):  # the current device of this thread
            launch.compile()

    with suppress(Exception):  # If a problem persists, it is reported when the run needs the kernels.
        if compile_in_threads(iterate_launches(config), compile_launch, num_threads, stop):
            cache.put("", _DONE, binary=False)


def _hash_request(config: Config, device: torch.device, version: str) -> str:
    """Return a key of everything that the compiled kernels depend on, except for the batch size."""
    from selfmark.model.fused_backend import hash_kernel_sources

    points = config.keypoints.max_points, config.keypoints.outlier_fraction, config.heatmaps.max_points
    settings = config.network, config.images.size, config.augment.border, config.loss, points
    version_parts = (
        version,
        torch.__version__,
        torch.cuda.get_device_capability(device),
        hash_kernel_sources(),
    )
    return hashlib.sha256(repr((settings, version_parts)).encode()).hexdigest()


def compile_in_threads(
    batches: Iterable[list[Launch]],
    compile_launch: Callable[[Launch], None],
    num_threads: int,
    stop: threading.Event,
) -> bool:
    """Compile each variant of the recorded kernels once.

    Args:
        batches: recorded launches; each batch is compiled while the next one is recorded.
        compile_launch: compiles the kernel of a launch.
        num_threads: number of threads that compile.
        stop: no further compilation is started after this event is set.

    Returns:
        True if all kernels were compiled without an error.
    """

    def compile_unless_stopped(launch: Launch) -> bool:
        if not stop.is_set():
            compile_launch(launch)
        return not stop.is_set()

    futures: dict[tuple[Any, ...], Future[bool]] = {}
    with ThreadPoolExecutor(num_threads, "selfmark-compile") as executor:
        for launches in batches:
            for launch in launches:
                variant = launch.variant()
                if variant not in futures:
                    futures[variant] = executor.submit(compile_unless_stopped, launch)
            if stop.is_set():
                break
    return all(future.exception() is None and future.result() for future in futures.values())


# --- a pass and a step on the meta device ------------------------------------------------------------------


def iterate_launches(config: Config) -> Iterator[list[Launch]]:
    """Run Phi on the meta device; yield the launches of a pass without gradients, then of a training step.

    The detector of Stage 2 needs no kernels of its own, since it has the layers of Phi. No random numbers are
    drawn from torch's global generators, which other threads use at the same time.
    """
    from selfmark.model.fused_backend import create_fused_backend, record_launches

    with _META:
        phi = Phi(config.network)
    phi.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    phi.backend = create_fused_backend(is_on_meta_device=True)
    for run in (_describe_keypoints, _train_step):
        with record_launches() as launches:
            run(phi, config)
        yield launches


@torch.no_grad()
def _describe_keypoints(phi: Phi, config: Config) -> None:
    """Run the pass of `correspondence.describe`."""
    size = config.images.size
    maps, _ = phi.forward_with_mirror(_empty(_NUM_IMAGES, 3, size, size))
    phi.describe(maps.features, _empty(_NUM_IMAGES, config.heatmaps.max_points, 2))


def _train_step(phi: Phi, config: Config) -> None:
    """Run a training step of Stage 1."""
    size, pairs = config.images.size, config.runtime.batch
    num_points = max(1, round((1 - config.keypoints.outlier_fraction) * config.keypoints.max_points))
    shape = (_NUM_IMAGES, num_points)
    label = _empty(*shape, dtype=torch.int64)
    table = PointTable(
        _empty(*shape, 2), _empty(*shape, dtype=torch.bool), label, label, torch.arange(_NUM_IMAGES)
    )
    generator = _MetaGenerator()
    # The optimizer owns the bf16 copies of the convolution weights, which the kernels read during training.
    build_train_state(phi, [(phi, 1.0)], config.optimizer, generator)
    feed = PixelFeed(_empty(_NUM_IMAGES, 3, size, size, dtype=torch.uint8), _META)
    source = PairSource(table, warmup_pair_settings(config))
    task = build_stage1_task(phi, feed, source, config, generator, 0)
    pixels = _empty(2 * pairs, 3, size, size, dtype=torch.uint8)
    losses = task.losses(pixels, _empty(3, pairs, dtype=torch.int64))
    losses["total"].backward()  # type: ignore[no-untyped-call]


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)


class _MetaGenerator(torch.Generator):
    """Random generator of the meta device, on which drawing random numbers does nothing."""

    device = _META
