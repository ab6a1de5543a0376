"""Start the command line: register the commands and turn errors into exit codes.

Commands import the rest of the package when they run, so `selfmark --help` does not load torch.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from selfmark._version import __version__
from selfmark.cli.check import check
from selfmark.cli.compare import compare
from selfmark.cli.console import print_note, print_result, print_warnings_as_notes
from selfmark.cli.correct import correct
from selfmark.cli.datasets import app as datasets_app
from selfmark.cli.demo import demo
from selfmark.cli.discover import discover
from selfmark.cli.doctor import doctor
from selfmark.cli.evaluate import evaluate
from selfmark.cli.export import export
from selfmark.cli.map import map_points
from selfmark.cli.models import app as models_app
from selfmark.cli.name import name
from selfmark.cli.options import Command
from selfmark.cli.predict import predict
from selfmark.cli.refine import refine
from selfmark.cli.report import report
from selfmark.cli.reproduce import reproduce
from selfmark.cli.watch import watch
from selfmark.cli.weights import weights
from selfmark.errors import InputError, TrainingError, describe_os_error, shorten_message
from selfmark.run.process_tuning import tune_process

app = typer.Typer(
    help="Discover the landmarks of an object category from unlabeled images.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command(cls=Command)(check)
app.command(cls=Command)(discover)
app.command(cls=Command)(watch)
app.command(cls=Command)(predict)
app.command("map", cls=Command)(map_points)
app.command(cls=Command)(name)
app.command(cls=Command)(correct)
app.command(cls=Command)(refine)
app.command(cls=Command)(export)
app.command(cls=Command)(evaluate)
app.command(cls=Command)(compare)
app.command(cls=Command)(demo)
app.command(cls=Command)(reproduce)
app.command(cls=Command)(report)
app.command(cls=Command)(weights)
app.command(cls=Command)(doctor)
app.add_typer(models_app, name="models")
app.add_typer(datasets_app, name="datasets")


def main() -> None:
    """Run the command in `sys.argv`; exit with 2 after bad input and with 1 after a failed training."""
    tune_process()  # before a command imports torch
    signal.signal(signal.SIGTERM, _raise_interrupt)
    print_warnings_as_notes()
    try:
        _require_current_folder()
        # In standalone mode typer prints usage errors itself. It would not escape control characters and
        # markup in the arguments.
        exit_code = app(standalone_mode=False)
    except _UsageError as error:
        _print_usage_error(error)
        sys.exit(error.exit_code)
    except InputError as error:
        _print_error(str(error))
        sys.exit(2)
    except TrainingError as error:
        _print_error(str(error))
        sys.exit(1)
    except OSError as error:
        # Functions turn the errors that they expect into an InputError with advice. Unexpected errors are
        # reported here: for example, a file disappears while it is read, a disk fails, or a name is too long.
        name = f"{error.filename}: " if error.filename is not None else ""
        _print_error(f"{name}{describe_os_error(error)}")
        sys.exit(2)
    if isinstance(exit_code, int):
        sys.exit(exit_code)


def _require_current_folder() -> None:
    """Raise if the current folder was deleted; torch would end the process with a message of its own."""
    try:
        os.getcwd()
    except OSError as error:
        raise InputError("the current folder no longer exists; change to another folder first") from error


# The base class of all usage errors. typer does not export it, so it is taken from a subclass. It has the
# attributes `exit_code`, `ctx` and `format_message`.
_UsageError: Any = typer.BadParameter.__mro__[1]


def _print_usage_error(error: Any) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":  # typer has already printed the help
        return
    command = error.ctx.command_path if error.ctx else "selfmark"
    message = error.format_message().rstrip(".")
    _print_error(f"{message}{' See' if message.endswith('?') else '; see'} '{command} --help'")


def _print_error(problem: str) -> None:
    print_note(f"selfmark: {shorten_message(problem)}", style="red")


def _raise_interrupt(signal_number: int, frame: Any) -> NoReturn:
    """Handle SIGTERM like Ctrl-C, so that commands stop in the same orderly way."""
    raise KeyboardInterrupt


def _print_version(requested: bool) -> None:
    if requested:
        print_result(f"selfmark {__version__}")
        raise typer.Exit


@app.callback()
def _add_global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
