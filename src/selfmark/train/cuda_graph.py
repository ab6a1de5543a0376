"""A training step recorded once as a CUDA graph and replayed: one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_PLAIN_CALLS = 3  # enough for libraries to choose algorithms and for lasting buffers to be made

Step = Callable[..., None]


class CapturedStep:
    """`step`, a function of tensors of fixed shapes that leaves its results in tensors of its own.

    The first calls run plainly and are real steps. The next one records, and from then on each call copies
    its tensors to where the recording reads them and replays it. Random numbers come from `generator`, whose
    state moves on as in plain calls; set it before the first call. What the step reads besides its arguments
    must stay where it is: make a new `CapturedStep` when it moves.
    """

    def __init__(self, step: Step, generator: torch.Generator) -> None:
        self._step, self._generator, self._plain = step, generator, _PLAIN_CALLS
        self._stream = torch.cuda.Stream(generator.device)  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()

    def __call__(self, *batch: Tensor) -> None:
        if self._plain > 0:
            self._plain -= 1
            here = torch.cuda.current_stream()
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                self._step(*batch)
            here.wait_stream(self._stream)
            return
        if self._graph is None:
            self._record(batch)
        for static, given in zip(self._inputs, batch, strict=True):
            static.copy_(given)
        if self._graph is not None:
            self._graph.replay()

    def _record(self, batch: tuple[Tensor, ...]) -> None:
        """Recording runs nothing, so the caller's batch is still to be worked on afterwards."""
        self._inputs = tuple(given.clone() for given in batch)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        # Only this thread is held to what may be recorded: another one may be fetching images meanwhile.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._step(*self._inputs)
        self._graph = graph
