"""Check the paths on the command line.

Importing torch, OpenCV and SciPy takes seconds. These checks run before the imports, so that a wrong path is
reported immediately. The functions that use the paths check them again, with the same messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from selfmark.errors import InputError
from selfmark.images.input_files import require_input, require_readable
from selfmark.model.card import is_packaged, model_folder, read_card
from selfmark.run.files import require_run, view_folders
from selfmark.run.guarded_files import require_no_links
from selfmark.run.output_folder import require_own_output


def check_inputs(inputs: Iterable[str | Path] | None) -> None:
    """Raise if an input does not exist; glob patterns are not checked.

    Under torchrun, do nothing: every process would report the same problem. The inputs are checked later.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return
    for item in inputs or ():
        require_input(item)


def check_files(*paths: Path | None) -> None:
    """Raise if a file cannot be read; skip options that were not given (None)."""
    for path in paths:
        if path is not None:
            require_readable(path)


def check_output(output: Path | None, run: Path) -> None:
    """Raise if `output`, or its subfolder for a view of `run`, cannot be used; None is allowed.

    An output must not lie in another run, and the subfolder of a view must not be a link.
    """
    if output is None:
        return
    require_own_output(output, run)
    for view in view_folders(run):
        require_no_links(output / view.name, below=output)
        require_own_output(output / view.name, run)


def require_readable_model(folder: Path) -> None:
    """Raise if a run folder or model folder contains no model that this version can read."""
    read_card(model_folder(folder))


def check_models(folder: Path) -> None:
    """Raise if a run folder has no readable model; a run with views must have one for each view."""
    for part in view_folders(folder) or [folder]:
        require_readable_model(part)


def require_finished_run(folder: Path) -> None:
    """Raise if a folder is not a finished run; in a run with views, all views must be finished."""
    if is_packaged(folder):
        raise InputError(
            f"'{folder}' is the detector inside selfmark, not a run; make one with 'selfmark demo'"
        )
    for part in view_folders(folder) or [folder]:
        require_run(part)
        require_readable_model(part)
