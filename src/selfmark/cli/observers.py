"""Observe a discovery: on the watch page (`--watch`) and in TensorBoard (`--logger tensorboard`)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from selfmark.cli.console import print_result
from selfmark.cli.watch import require_web_packages
from selfmark.errors import InputError, suggest

if TYPE_CHECKING:
    from selfmark.run.event_log import Event
    from selfmark.run.folder import Listener
    from selfmark.run.tensorboard_log import TensorBoardLog

LOGGERS = ("tensorboard",)


@dataclass(frozen=True)
class Observers:
    """The observers of one discovery.

    Attributes:
        watch: Whether to serve the watch page.
        tensorboard: Log for TensorBoard; None for no log.
    """

    watch: bool
    tensorboard: TensorBoardLog | None

    def attach(self, stack: ExitStack, folder: Path | None) -> Listener:
        """Return a listener that starts the observers as soon as the run folder is known.

        The listener also passes every event to TensorBoard; the watch page reads the run folder instead.

        Args:
            stack: Exit stack that closes the observers.
            folder: Run folder if its path is known, as in a resumed run; None to wait for an event that names
                the folder of a new run.
        """
        run = folder
        is_started = False

        def listen(event: Event) -> None:
            nonlocal run, is_started
            if run is None and "output" in event:
                run = Path(event["output"])
            if not is_started and run is not None:
                is_started = True
                self._start(stack, run)
            if self.tensorboard is not None:
                self.tensorboard(event)

        return listen

    def _start(self, stack: ExitStack, run: Path) -> None:
        if self.watch:
            from selfmark.watch_page.watch_server import serve_in_background

            stack.enter_context(serve_in_background(run, True, print_result))
        if self.tensorboard is not None:
            self.tensorboard.open(run)
            stack.callback(self.tensorboard.close)
            print_result(f"TensorBoard: tensorboard --logdir {run}")


def parse_observers(watch: bool, logger: str | None) -> Observers:
    """Return the observers for the values of `--watch` and `--logger`.

    Raises:
        InputError: The logger is unknown or a package is missing.
    """
    if logger is not None and logger not in LOGGERS:
        hint = suggest(logger, LOGGERS)
        raise InputError(f"--logger must be one of {', '.join(LOGGERS)}, not '{logger}'.{hint}")
    if watch:
        require_web_packages()
    if logger is None:
        return Observers(watch, None)
    from selfmark.run.tensorboard_log import TensorBoardLog

    return Observers(watch, TensorBoardLog())
