"""Launch Triton kernels, or record their launches to compile them before they are needed.

A kernel that gets tensors of the meta device, which have no data, is not launched. Running a network on the
meta device therefore tells which kernels the network needs, and with which types and sizes, in a fraction of
a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Launch:
    """Recorded launch of a kernel.

    kernel:    function that `triton.jit` returned
    arguments: positional arguments
    keywords:  keyword arguments; those in capitals, and the number of warps, are compiled into the kernel
    """

    kernel: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def variant(self) -> tuple[Any, ...]:
        """Return a key that is equal for two launches for which Triton compiles the same code.

        Triton compiles a kernel for the types of its arguments, for integers that are 1, and for integers
        that are divisible by 16.
        """
        keywords = (
            (name, value if name.isupper() or name.startswith("num_") else _classify(value))
            for name, value in sorted(self.keywords.items())
        )
        return (self.kernel, *map(_classify, self.arguments), *keywords)

    def compile(self) -> None:
        """Compile the kernel and the function that launches it, and store both in Triton's cache on the disk.

        This can run in any thread, since it changes no kernel of this process: it compiles a copy of the
        kernel. A later launch finds the results on the disk.
        """
        import triton
        from triton.runtime import driver

        copy = triton.jit(self.kernel.fn)
        compiled = copy.warmup(*self.arguments, grid=(1,), **self.keywords)
        with suppress(AttributeError):  # Some versions of Triton need no compiled function for the launch.
            driver.active.launcher_cls(compiled.src, compiled.metadata)


def _classify(value: Any) -> Any:
    """Return what Triton compiles a kernel for: the type of an argument and some properties of integers."""
    if isinstance(value, Tensor):
        return value.dtype
    if isinstance(value, int) and not isinstance(value, bool):
        return "int", value == 1, value % 16 == 0, value.bit_length() > 31
    return type(value)


_recorded: ContextVar[list[Launch]] = ContextVar("recorded launches of kernels")


@contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Record the launches of kernels on tensors of the meta device; yield the list of launches."""
    launches: list[Launch] = []
    token = _recorded.set(launches)
    try:
        yield launches
    finally:
        _recorded.reset(token)


class Recordable:
    """Decorator for kernels whose launches can be recorded; write it above `triton.jit`."""

    def __init__(self, kernel: Any) -> None:
        """Wrap a function that `triton.jit` returned. Its first argument must be a tensor."""
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """Return a function that launches the kernel, or records its launch, with the given arguments."""

        def launch(first: Tensor, *arguments: Any, **keywords: Any) -> None:
            if first.is_meta:
                _recorded.get().append(Launch(self._kernel, (first, *arguments), keywords))
            else:
                self._kernel[grid](first, *arguments, **keywords)

        return launch
