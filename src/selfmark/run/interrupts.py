"""Ctrl-C and SIGTERM while training: finish the step, save, then end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def defer_interrupts() -> Iterator[Callable[[], bool]]:
    """Within, a first request to end is only noted, and a second one ends at once.

    Yields:
        Whether the end was asked for: what works inside should save and return soon.

    Raises:
        KeyboardInterrupt: at the end of the block, if it was asked for meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one is told of signals
        yield lambda: False
        return
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    # Signals that are ignored, as of a program in the background, stay so.
    before = {one: signal.getsignal(one) for one in _ENDING if signal.getsignal(one) is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, note)
    try:
        yield lambda: asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    if asked:
        raise KeyboardInterrupt
