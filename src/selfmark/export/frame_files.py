"""Frames of videos as image files, for formats that know image files only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from selfmark.errors import InputError
from selfmark.images.video import read_frames

_QUALITY = 95  # of JPEG files


def save_frames(video: Path, targets: Mapping[int, Path]) -> None:
    """Write the frames of a video to the files named, whose suffix says in which format."""
    left = dict(targets)
    for frame, pixels in read_frames(video, sorted(targets)):
        Image.fromarray(pixels).save(left.pop(frame), quality=_QUALITY)
    if left:
        raise InputError(f"frame {min(left)} of {video} could not be read a second time; try again")


def require_absent(target: Path) -> None:
    """Say no to a folder that is there: it may hold work of the user's by now."""
    if target.exists():
        raise InputError(f"{target} is there already; remove it or name another folder with -o")


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, renamed when all went well and removed when not."""
    temporary = target.with_name(f"{target.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # of a run that was broken off
    try:
        temporary.mkdir()
        yield temporary
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
