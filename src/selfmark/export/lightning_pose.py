"""Write Lightning Pose labels: a row per image, three header rows scorer / bodyparts / coords (x, y).

The format has one animal per file and refers only to image files. Each animal therefore gets its own table,
and video frames are saved as images.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from math import isnan
from pathlib import Path
from typing import Any

from selfmark.detector import Prediction
from selfmark.export.frame_files import save_frames
from selfmark.export.output_files import (
    normalize_name,
    number_name,
    open_output,
    require_absent,
    require_unique_names,
    require_writable,
    spool_folder,
)
from selfmark.export.pose_tables import InstanceNumbers
from selfmark.export.trust_entries import name_scorer
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard
from selfmark.run.files import atomic_folder
from selfmark.run.guarded_files import make_folders, open_to_read

SCORER = "selfmark"
FRAMES = "labeled-data"  # folder in which Lightning Pose keeps video frames


def write_lightning_pose(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/CollectedData.csv, or CollectedData_ANIMAL.csv for each of several animals.

    `folder` is the `data_dir` of Lightning Pose. Image paths are written as given, so give them relative to
    `folder`. Video frames become `folder`/labeled-data/VIDEO/img00000012.png.

    Returns:
        The file, or the folder if there are several files.
    """
    require_unique_names(card.names, "Lightning Pose")
    require_writable(folder)
    instances, frames = InstanceNumbers(), _FrameImages(folder / FRAMES)
    with spool_folder(folder) as spool:
        with ExitStack() as files:
            tables: dict[str, Any] = {}
            for refs, _, landmarks in predictions:
                for row, ref in enumerate(refs):
                    number = instances.assign(ref)
                    animal = f"individual{number + 1}" if ref.track is None else f"track_{ref.track}"
                    if animal not in tables:
                        path = Path(spool, animal)
                        handle = files.enter_context(open(path, "w", newline="", encoding="utf-8"))
                        tables[animal] = csv.writer(handle)
                        tables[animal].writerows(_build_header(card))
                    image = ref.path if ref.frame is None else frames.add(ref, ref.frame)
                    xy = landmarks.xy[row].ravel().tolist()
                    cells = ["" if isnan(value) else f"{value:.3f}" for value in xy]
                    tables[animal].writerow([image, *cells])
        frames.save()
        is_single = len(tables) == 1
        paths = {
            animal: folder / ("CollectedData.csv" if is_single else f"CollectedData_{animal}.csv")
            for animal in tables
        }
        for animal, path in paths.items():
            with open_output(path, "wb") as output, open_to_read(Path(spool, animal)) as rows:
                shutil.copyfileobj(rows, output)
    return next(iter(paths.values())) if is_single else folder


def _build_header(card: ModelCard) -> list[list[str]]:
    scorer = name_scorer(SCORER, card)
    return [
        ["scorer", *[scorer] * (2 * len(card.names))],
        ["bodyparts", *[name for name in card.names for _ in "xy"]],
        ["coords", *["x", "y"] * len(card.names)],
    ]


class _FrameImages:
    """Video frames to save as image files, named as Lightning Pose expects."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder_names: dict[Path, str] = {}  # name of the folder of each video
        self._frames: dict[Path, set[int]] = {}  # frame numbers of each video

    def add(self, ref: ImageRef, frame: int) -> str:
        """Add a frame and return its future path, relative to the folder of the tables."""
        if not self._folder_names:
            require_absent(self._folder)
        if ref.path not in self._folder_names:
            used = {normalize_name(Path(name)) for name in self._folder_names.values()}
            self._folder_names[ref.path] = number_name(Path(ref.path.stem), used).name
        self._frames.setdefault(ref.path, set()).add(frame)
        return f"{self._folder.name}/{self._folder_names[ref.path]}/{_make_image_name(frame)}"

    def save(self) -> None:
        """Write the files of all added frames."""
        if not self._folder_names:
            return
        with atomic_folder(self._folder) as temporary:
            for video, name in self._folder_names.items():
                make_folders(temporary / name)
                targets = {frame: temporary / name / _make_image_name(frame) for frame in self._frames[video]}
                save_frames(video, targets)


def _make_image_name(frame: int) -> str:
    return f"img{frame:08d}.png"
