"""Lightning Pose labels: one row per image, three header rows scorer / bodyparts / coords (x, y).

The format knows one animal per file, and image files only. So each animal has a file of its own, and frames
of a video are written as images.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from selfmark.detector import Prediction
from selfmark.export.frame_files import atomic_folder, require_absent, save_frames
from selfmark.export.pose_tables import InstanceNumbers, require_distinct, require_writable
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard

SCORER = "selfmark"
FRAMES = "labeled-data"  # where Lightning Pose keeps frames of videos


def write_lightning_pose(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/CollectedData.csv, or CollectedData_ANIMAL.csv of each animal; `folder` is its data_dir.

    Paths of images stay as given, best relative to `folder`. Frames of a video become
    `folder`/labeled-data/VIDEO/img00000012.png.

    Returns:
        The file, or the folder if there are several.
    """
    require_distinct(card.names, "Lightning Pose")
    require_writable(folder)
    instances, frames = InstanceNumbers(), _Frames(folder / FRAMES)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".rows") as waiting:
        with ExitStack() as files:
            tables: dict[str, Any] = {}
            for refs, _, landmarks in predictions:
                for row, ref in enumerate(refs):
                    number = instances.number(ref)
                    animal = f"individual{number + 1}" if ref.track is None else f"track_{ref.track}"
                    if animal not in tables:
                        table = files.enter_context(_table(Path(waiting, animal)))
                        tables[animal] = csv.writer(table)
                        tables[animal].writerows(_header(card))
                    image = ref.path if ref.frame is None else frames.path(ref, ref.frame)
                    points = (f"{value:.3f}" for value in landmarks.xy[row].ravel().tolist())
                    tables[animal].writerow([image, *points])
        frames.save()
        alone = len(tables) == 1
        paths = {name: folder / f"CollectedData{'' if alone else f'_{name}'}.csv" for name in tables}
        for animal, path in paths.items():
            os.replace(Path(waiting, animal), path)
    return next(iter(paths.values())) if alone else folder


def _table(path: Path) -> Any:
    return open(path, "w", newline="", encoding="utf-8")


def _header(card: ModelCard) -> list[list[str]]:
    return [
        ["scorer", *[SCORER] * (2 * len(card.names))],
        ["bodyparts", *[name for name in card.names for _ in "xy"]],
        ["coords", *["x", "y"] * len(card.names)],
    ]


class _Frames:
    """The frames of videos that are to be image files, as Lightning Pose likes them named."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._videos: dict[Path, str] = {}  # to the name of the folder of its frames
        self._wanted: dict[Path, set[int]] = {}

    def path(self, ref: ImageRef, frame: int) -> str:
        """Where a frame will be, from the folder of the tables."""
        if not self._videos:
            require_absent(self._folder)
        if ref.path not in self._videos:
            taken = ref.path.stem in self._videos.values()
            self._videos[ref.path] = f"{ref.path.stem}_{len(self._videos)}" if taken else ref.path.stem
        self._wanted.setdefault(ref.path, set()).add(frame)
        return f"{self._folder.name}/{self._videos[ref.path]}/{_file(frame)}"

    def save(self) -> None:
        if not self._videos:
            return
        with atomic_folder(self._folder) as temporary:
            for video, name in self._videos.items():
                (temporary / name).mkdir()
                frames = {frame: temporary / name / _file(frame) for frame in self._wanted[video]}
                save_frames(video, frames)


def _file(frame: int) -> str:
    return f"img{frame:08d}.png"
