"""Capture a training step as a CUDA graph; replaying the graph takes one launch instead of hundreds."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

_EAGER_CALLS = 3  # after these calls, libraries have chosen their algorithms and allocated permanent buffers

Step = Callable[..., None]


class CapturedStep:
    """A training step that is captured as a CUDA graph after a few calls.

    The first calls run the step eagerly. The next call captures the step as a graph. This call and all later
    calls copy their tensors to the inputs of the graph and replay the graph. All other tensors that the step
    reads must keep their addresses; create a new `CapturedStep` if one of these tensors moves.

    A step that waits for the device or copies from host memory cannot be captured. It then runs eagerly, with
    a warning.
    """

    def __init__(self, step: Step, generator: torch.Generator) -> None:
        """Wrap a step.

        Args:
            step: function of tensors of fixed shapes that writes its results to tensors of its own.
            generator: source of the step's random numbers. A replay advances the state of the generator like
                an eager call. Do not set this state after the first call.
        """
        self._step, self._generator, self._eager_calls_left = step, generator, _EAGER_CALLS
        self._stream = torch.cuda.Stream(generator.device)  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_capturable = True
        self._inputs: tuple[Tensor, ...] = ()

    def __call__(self, *batch: Tensor) -> None:
        """Run the step on one batch."""
        if self._eager_calls_left > 0:
            self._eager_calls_left -= 1
            self._run_eagerly(batch)
            return
        if self._graph is None and self._is_capturable:
            self._graph = self._capture(batch)
        if self._graph is None:
            self._run_eagerly(batch)
            return
        for graph_input, value in zip(self._inputs, batch, strict=True):
            graph_input.copy_(value)
        self._graph.replay()

    def _run_eagerly(self, batch: tuple[Tensor, ...]) -> None:
        """Run the step on the stream of the graph, in order with the current stream."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._step(*batch)
        current.wait_stream(self._stream)

    def _capture(self, batch: tuple[Tensor, ...]) -> torch.cuda.CUDAGraph | None:
        """Capture the graph, or return None if that fails.

        Capturing runs nothing, so the caller must still replay the graph for this batch.
        """
        self._inputs = tuple(value.clone() for value in batch)
        before, current = self._generator.clone_state(), torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        try:
            # "thread_local" lets another thread fetch images during the capture.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._step(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._is_capturable = False
            # After a failed capture, the generator works only within a graph, and the stream of the graph may
            # still be the current stream. Restore both.
            self._generator.graphsafe_set_state(before)
            torch.cuda.set_stream(current)
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"training is slower than usual: its steps cannot be captured as a CUDA graph ({reason})",
                stacklevel=2,
            )
            return None
        return graph
