"""DeepLabCut's predictions, CSV or HDF5: a row per frame, columns scorer / bodyparts / coords.

Each video has a table of its own, and all still images one. Where there are several objects, the level
`individuals` stands below `scorer`, and objects a frame lacks are empty. Where tracks are known, they are the
individuals.
"""

from __future__ import annotations

import csv
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.detector import Prediction
from selfmark.errors import InputError, need
from selfmark.export.pose_tables import (
    InstanceNumbers,
    atomic_output,
    output_paths,
    require_distinct,
    require_writable,
)
from selfmark.model.card import ModelCard
from selfmark.points import FloatArray

SCORER = "DLC_selfmark"  # stands in file names too, as DeepLabCut has it: VIDEO + SCORER
COORDS = ("x", "y", "likelihood")
KEY = "df_with_missing"
LAYOUT = "0.15.2"  # of pandas' HDF5 tables; pandas 3 no longer says so, and pandas 2, DeepLabCut's, asks

_CHUNK = 1024  # rows in memory at a time

Label = int | str  # frame number, or path of an image


def write_dlc(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write VIDEO`DLC_selfmark.csv` of each video and `imagesDLC_selfmark.csv` of still images.

    Returns:
        The file, or the folder if there are several.
    """
    return _write(predictions, card, folder, ".csv", _save_csv)


def write_dlc_h5(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """The same tables as HDF5 under the key `df_with_missing`, which pandas 2 and 3 can read."""
    need("pandas", "pandas tables")
    need("tables", "pandas tables")
    return _write(predictions, card, folder, ".h5", _save_h5)


def _write(
    predictions: Iterable[Prediction],
    card: ModelCard,
    folder: Path,
    suffix: str,
    save: Callable[[_Table, Sequence[str], Path], None],
) -> Path:
    require_distinct(card.names, "DeepLabCut")
    require_writable(folder)
    # How many individuals the header names is known at the end, so rows wait on the disk, not in memory.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".rows") as waiting, ExitStack() as files:
        tables = _gather(predictions, Path(waiting))
        if not tables:
            raise InputError("there is nothing to write: none of the images could be read")
        paths = []
        for source, name in output_paths(list(tables)).items():
            path = folder / name.with_name(f"{name.name}{SCORER}{suffix}")
            path.parent.mkdir(parents=True, exist_ok=True)
            save(tables[source], card.names, files.enter_context(atomic_output(path)))
            paths.append(path)
    return paths[0] if len(paths) == 1 else folder


# --- rows ------------------------------------------------------------------------------------------


class _Table:
    """Rows of one video or of all still images, of which memory holds only the labels.

    The file has one record per object, [K, 3] float32; `_row` and `_instance` say where it belongs.
    `individuals` are the names of the objects, known at the end.
    """

    def __init__(self, file: Path, landmarks: int) -> None:
        self._file = file
        self._shape = (landmarks, len(COORDS))
        self._rows: dict[Label, int] = {}
        self._row = array("q")
        self._instance = array("q")
        self.individuals: list[str] = []

    @property
    def labels(self) -> list[Label]:
        """Frames in their order, images in the order given."""
        frames = [label for label in self._rows if isinstance(label, int)]
        return list(sorted(frames) or self._rows)

    def add(self, labels: Sequence[Label], instances: Sequence[int], values: FloatArray) -> None:
        """Objects [N, K, 3] of the rows with these labels, and which of the individuals they are."""
        for label in labels:
            self._row.append(self._rows.setdefault(label, len(self._rows)))
        self._instance.extend(instances)
        with open(self._file, "ab") as handle:
            handle.write(values.astype(np.float32).tobytes())

    @property
    def most(self) -> int:
        """Objects of a row, at most."""
        return max(self._instance) + 1

    def chunks(self) -> Iterator[tuple[list[Label], FloatArray]]:
        """Labels of some rows and values [rows, individuals * K * 3] float64, NaN where an object lacks."""
        labels = self.labels
        place = {label: number for number, label in enumerate(labels)}
        row = np.array([place[label] for label in self._rows])[np.array(self._row)]
        instance = np.array(self._instance)
        records = np.memmap(self._file, np.float32, "r", shape=(len(row), *self._shape))
        order = np.argsort(row, kind="stable")
        for start in range(0, len(labels), _CHUNK):
            some = labels[start : start + _CHUNK]
            first, last = np.searchsorted(row[order], [start, start + len(some)])
            chosen = order[first:last]
            values = np.full((len(some), len(self.individuals), *self._shape), np.nan)
            values[row[chosen] - start, instance[chosen]] = records[chosen]
            yield some, values.reshape(len(some), -1)


def _gather(predictions: Iterable[Prediction], waiting: Path) -> dict[Path | None, _Table]:
    """The table of each video, and of still images under None."""
    tables: dict[Path | None, _Table] = {}
    instances = InstanceNumbers()
    for refs, _, landmarks in predictions:
        values = np.concatenate([landmarks.xy, landmarks.score[..., None]], axis=2)
        videos = [None if ref.frame is None else ref.path for ref in refs]
        for video, group in groupby(range(len(refs)), key=videos.__getitem__):
            rows = list(group)
            if video not in tables:
                tables[video] = _Table(waiting / str(len(tables)), len(landmarks.names))
            labels = [str(ref.path) if ref.frame is None else ref.frame for ref in (refs[r] for r in rows)]
            tables[video].add(labels, [instances.number(refs[r]) for r in rows], values[rows])
    for video, table in tables.items():
        tracks = [f"track_{track}" for track in instances.tracks(video)]
        table.individuals = tracks or [f"individual{number + 1}" for number in range(table.most)]
    return tables


# --- files -----------------------------------------------------------------------------------------


def _columns(individuals: Sequence[str], names: Sequence[str]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Names of the header's levels, and the header of each column; one individual needs no name."""
    if len(individuals) == 1:
        return ["scorer", "bodyparts", "coords"], [
            (SCORER, name, coordinate) for name in names for coordinate in COORDS
        ]
    return ["scorer", "individuals", "bodyparts", "coords"], [
        (SCORER, individual, name, coordinate)
        for individual in individuals
        for name in names
        for coordinate in COORDS
    ]


def _save_csv(table: _Table, names: Sequence[str], path: Path) -> None:
    levels, columns = _columns(table.individuals, names)
    with open(path, "w", newline="", encoding="utf-8") as handle:
        rows = csv.writer(handle)
        rows.writerows(
            [level, *heads] for level, heads in zip(levels, zip(*columns, strict=True), strict=True)
        )
        for labels, values in table.chunks():
            for label, numbers in zip(labels, values.tolist(), strict=True):
                rows.writerow([label, *("" if np.isnan(number) else f"{number:.4f}" for number in numbers)])


def _save_h5(table: _Table, names: Sequence[str], path: Path) -> None:
    pandas: Any = need("pandas", "pandas tables")
    levels, columns = _columns(table.individuals, names)
    header = pandas.MultiIndex.from_tuples(columns, names=levels)
    # Later rows must fit the room the first ones are given.
    room = max(len(label.encode()) if isinstance(label, str) else 0 for label in table.labels)
    try:
        with pandas.HDFStore(path, mode="w") as store:
            for labels, values in table.chunks():
                frame = pandas.DataFrame(values, index=labels, columns=header)
                store.append(KEY, frame, format="table", min_itemsize={"index": room} if room else None)
            store.get_storer(KEY).attrs.pandas_version = LAYOUT
    except need("tables", "pandas tables").HDF5ExtError as error:
        raise InputError(
            f"HDF5 could not take the table, whose header of {len(columns)} columns may be too long for it: "
            "write CSV with --format dlc"
        ) from error
