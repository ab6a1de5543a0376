"""Discover landmarks in several views: one run for each view, in a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfmark.errors import InputError
from selfmark.images.shared_reading import share_reading
from selfmark.images.sources import list_images
from selfmark.multiview.view_boxes import (
    View,
    read_view_options,
    read_views,
    require_views_inside_all,
    write_views,
)
from selfmark.run.output_folder import output_folder
from selfmark.tracking.regions import Regions

# The network must see only its own view. A margin or a square around the view could show another view.
VIEW_SETTINGS: dict[str, Any] = {"images.aspect": "stretched", "images.margin": 0.0}


def plan_view(view: View, settings: Mapping[str, Any]) -> tuple[Regions, dict[str, Any]]:
    """Return the crop and the settings, by dotted name, for the run of one view."""
    return Regions(crop=view.box), {**VIEW_SETTINGS, **settings}


def discover_views(
    inputs: Sequence[str | Path],
    views: Sequence[View],
    output: Path,
    every: int,
    resume: bool,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    discover: Callable[..., Any],
) -> list[Path]:
    """Discover landmarks in each view, in the run folders `output`/VIEW.

    Args:
        inputs: Images and videos, see `images.sources.list_images`.
        views: The views; empty to resume with the views stored in `output`.
        output: Folder for the runs and views.json.
        every: Use every n-th frame of each video.
        resume: Whether to continue the runs in `output`; finished runs are kept.
        settings: Mapping from dotted names to the settings of all runs; they override `VIEW_SETTINGS` in new
            runs.
        options: Mapping from names to JSON values: all options of the command. Views that are started later
            must get the same options.
        discover: Runs one discovery; called with `inputs`, `output`, `every`, `regions`, `resume` and
            `settings`.

    Returns:
        The run folders, one for each view.

    Raises:
        InputError: `output` is not empty, there is nothing to resume, the views or options differ from those
            of the resumed runs, a view is not inside an image, or several processes train together.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":  # Every process would create the folder and its views.json.
        raise InputError("--views works in a single process: start selfmark without torchrun")
    stored = read_views(output)
    if resume and not stored:
        raise InputError(f"{output} has no run with views to resume; leave out --resume to start one")
    if resume and views and tuple(views) != stored:
        raise InputError(f"--views cannot change when {output} is resumed; leave it out or start a new run")
    if not resume:
        _require_empty(output)
        require_views_inside_all(views, list_images(inputs, every))
        with output_folder(output):
            _require_empty(output)  # Another command may have started other views here in the meantime.
            write_views(views, output, options)
    chosen = stored if resume else views
    remaining = [view for view in chosen if not (resume and _is_finished(output / view.name))]
    with share_reading([view.box for view in remaining]):
        for view in remaining:
            folder = output / view.name
            is_started = (folder / "run.json").exists()
            if resume and not is_started and not inputs:
                raise InputError(
                    f"the view '{view.name}' of {output} was not started; repeat the whole command with "
                    "--resume"
                )
            if not is_started:
                _require_same_options(read_view_options(output), options, view, output)
            regions, view_settings = plan_view(view, settings)
            discover(
                inputs=inputs,
                output=folder,
                every=every,
                regions=regions,
                resume=is_started,
                settings=settings if is_started else view_settings,
            )
    return [output / view.name for view in chosen]


def _require_empty(output: Path) -> None:
    """Raise if a folder contains files."""
    if output.exists() and any(output.iterdir()):
        raise InputError(f"{output} is not empty; choose another folder with -o, or add --resume")


def _require_same_options(
    stored: Mapping[str, Any], options: Mapping[str, Any], view: View, output: Path
) -> None:
    """Raise if a view would be started with other options than the views before it."""
    for name, value in options.items():
        if stored.get(name, value) != value:
            raise InputError(
                f"the view '{view.name}' of {output} was not started, and {name} was {stored[name]} for the "
                f"other views, not {value}; repeat the original command with --resume"
            )


def _is_finished(folder: Path) -> bool:
    """Return True if the run in a folder has written its report, which is its last step."""
    return (folder / "report" / "index.html").exists()
