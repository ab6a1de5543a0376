"""Handle Ctrl-C and SIGTERM during training: finish the iteration, save a checkpoint, then exit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def defer_interrupts() -> Iterator[Callable[[], bool]]:
    """Defer the first SIGINT or SIGTERM to the end of the context; a second one interrupts the context.

    Yields:
        A function that returns True once a signal has arrived; the code in the context should then save its
        state and return soon.

    Raises:
        KeyboardInterrupt: at the end of the context, if a signal has arrived.
    """
    if threading.current_thread() is not threading.main_thread():  # Only the main thread receives signals.
        yield lambda: False
        return
    requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True

    # Signals that are already ignored stay ignored, e.g. SIGINT in background jobs of a shell.
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    previous_handlers = {
        number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN
    }
    for number in previous_handlers:
        signal.signal(number, handle)
    try:
        yield lambda: requested
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    if requested:
        raise KeyboardInterrupt
