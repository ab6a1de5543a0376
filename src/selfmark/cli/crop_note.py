"""Note that a command was given whole images, although the run used only a part of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from selfmark.cli.console import print_note
from selfmark.run.files import read_json, read_view_list

if TYPE_CHECKING:
    from selfmark.tracking.regions import Regions


def note_missing_crop(run: Path, regions: Regions) -> None:
    """Print a note if a run was trained on a fixed part of its images, but the images are used whole.

    The images may already be cropped, so this is not an error.
    """
    crop = _read_crop(run)
    if crop is None or any((regions.boxes, regions.crop, regions.animals)):
        return
    numbers = ",".join(f"{number:g}" for number in crop)
    parent = run.resolve().parent
    is_view = any(view["name"] == run.resolve().name for view in read_view_list(parent))
    alternative = f", or use {run.parent}, which has all views" if is_view else ""
    print_note(
        f"note: {run} was trained on the part {numbers} of every image. If your images are not cropped to "
        f"this part, add --crop {numbers}{alternative}"
    )


def _read_crop(run: Path) -> list[float] | None:
    """Return x, y, width and height of --crop or of the view of a run.

    The result is None if the run used whole images, or if the folder is not a run folder.
    """
    if not (run / "run.json").exists():
        return None
    stored = read_json(run / "run.json")
    options = stored.get("options") if isinstance(stored, dict) else None
    crop = options.get("--crop") if isinstance(options, dict) else None
    is_box = isinstance(crop, list) and len(crop) == 4 and all(isinstance(n, (int, float)) for n in crop)
    return crop if is_box else None
