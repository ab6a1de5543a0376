"""Write DeepLabCut predictions as CSV or HDF5: one row per frame, columns scorer / bodyparts / coords.

Each video gets its own table; all still images share one table. If there are several objects, the header has
a level `individuals` below `scorer`, and the cells of an object that is missing in a frame are empty. If
tracks are known, the individuals are the tracks.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.detector import Prediction
from selfmark.errors import InputError, require_package
from selfmark.export.hdf5_files import save_hdf5
from selfmark.export.output_files import (
    choose_output_paths,
    output_file,
    require_unique_names,
    require_writable,
    spool_folder,
)
from selfmark.export.pose_tables import InstanceNumbers
from selfmark.export.trust_entries import name_scorer
from selfmark.model.card import ModelCard
from selfmark.points import FloatArray
from selfmark.run.guarded_files import make_folders

# Name of the scorer. As in DeepLabCut, it is also part of the file name: VIDEO + SCORER.
SCORER = "DLC_selfmark"
COORDS = ("x", "y", "likelihood")
KEY = "df_with_missing"  # key of the table in an HDF5 file
# Value of the attribute `pandas_version`. pandas 2, which DeepLabCut uses, needs the attribute; pandas 3 no
# longer writes it.
PANDAS_VERSION = "0.15.2"

_CHUNK_ROWS = 1024  # rows in memory at a time

Label = int | str  # label of a row: frame number, or path of an image
_Header = tuple[list[str], list[tuple[str, ...]]]  # names of the header levels, and header of each column


def write_dlc(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `{video}DLC_selfmark.csv` for each video and `imagesDLC_selfmark.csv` for all still images.

    Returns:
        The file, or the folder if there are several files.
    """
    return _write(predictions, card, folder, ".csv", _save_csv)


def write_dlc_h5(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write the tables of `write_dlc` as HDF5 under the key `df_with_missing`, readable by pandas 2 and 3."""
    for package in ("pandas", "tables", "h5py"):  # h5py reads the finished files back
        require_package(package, "pandas tables h5py")

    def save(table: _Table, header: _Header, path: Path) -> None:
        save_hdf5(path, partial(_save_h5, table, header))

    return _write(predictions, card, folder, ".h5", save)


def _write(
    predictions: Iterable[Prediction],
    card: ModelCard,
    folder: Path,
    suffix: str,
    save: Callable[[_Table, _Header, Path], None],
) -> Path:
    require_unique_names(card.names, "DeepLabCut")
    require_writable(folder)
    # The header names all individuals, which are known only after the last prediction. Until then the rows
    # are kept on disk, because they may not fit into memory.
    with spool_folder(folder) as spool, ExitStack() as files:
        tables = _gather_tables(predictions, spool)
        if not tables:
            raise InputError("there is nothing to write: none of the images could be read")
        paths = []
        for source, name in choose_output_paths(list(tables)).items():
            path = folder / name.with_name(f"{name.name}{name_scorer(SCORER, card)}{suffix}")
            make_folders(path.parent, below=folder)
            header = _build_header(tables[source].individuals, card)
            save(tables[source], header, files.enter_context(output_file(path)))
            paths.append(path)
    return paths[0] if len(paths) == 1 else folder


# --- Rows ------------------------------------------------------------------------------------------


class _Table:
    """Rows of one video or of all still images; the values are in a file, labels and indices in memory.

    The file holds one record [K, 3] float32 per object. `_record_row` and `_record_instance` give the row and
    the individual of each record. `individuals` are the names of the individuals; they are set when all
    objects have been added.
    """

    def __init__(self, file: Path, num_landmarks: int) -> None:
        self._file = file
        self._shape = (num_landmarks, len(COORDS))
        self._rows: dict[Label, int] = {}
        self._record_row = array("q")
        self._record_instance = array("q")
        self.individuals: list[str] = []

    @property
    def labels(self) -> list[Label]:
        """Frame numbers in ascending order, or images in the order in which they were predicted."""
        frames = [label for label in self._rows if isinstance(label, int)]
        return list(sorted(frames) or self._rows)

    def add(self, labels: Sequence[Label], instances: Sequence[int], values: FloatArray) -> None:
        """Append objects [N, K, 3] with the label and the instance number of each."""
        for label in labels:
            self._record_row.append(self._rows.setdefault(label, len(self._rows)))
        self._record_instance.extend(instances)
        with open(self._file, "ab") as handle:
            handle.write(values.astype(np.float32).tobytes())

    @property
    def max_instances(self) -> int:
        """Number of individuals that the table needs: the largest instance number plus 1."""
        return max(self._record_instance) + 1

    def chunks(self) -> Iterator[tuple[list[Label], FloatArray]]:
        """Yield labels and values [rows, individuals * K * 3] float64; NaN where an object is missing."""
        labels = self.labels
        sorted_row = {label: row for row, label in enumerate(labels)}
        # Rows are numbered in order of appearance. Find the row of each record in the sorted table.
        row = np.array([sorted_row[label] for label in self._rows])[np.array(self._record_row)]
        instance = np.array(self._record_instance)
        records = np.memmap(self._file, np.float32, "r", shape=(len(row), *self._shape))
        order = np.argsort(row, kind="stable")
        for start in range(0, len(labels), _CHUNK_ROWS):
            chunk = labels[start : start + _CHUNK_ROWS]
            first, end = np.searchsorted(row[order], [start, start + len(chunk)])
            selected = order[first:end]
            values = np.full((len(chunk), len(self.individuals), *self._shape), np.nan)
            values[row[selected] - start, instance[selected]] = records[selected]
            yield chunk, values.reshape(len(chunk), -1)


def _gather_tables(predictions: Iterable[Prediction], spool: Path) -> dict[Path | None, _Table]:
    """Return the table of each video; the key None is the table of all still images."""
    tables: dict[Path | None, _Table] = {}
    instances = InstanceNumbers()
    for refs, _, landmarks in predictions:
        values = np.concatenate([landmarks.xy, landmarks.score[..., None]], axis=2)
        videos = [None if ref.frame is None else ref.path for ref in refs]
        for video, group in groupby(range(len(refs)), key=videos.__getitem__):
            rows = list(group)
            if video not in tables:
                tables[video] = _Table(spool / str(len(tables)), len(landmarks.names))
            group_refs = [refs[row] for row in rows]
            labels = [str(ref.path) if ref.frame is None else ref.frame for ref in group_refs]
            tables[video].add(labels, [instances.assign(ref) for ref in group_refs], values[rows])
    for video, table in tables.items():
        tracks = [f"track_{track}" for track in instances.tracks(video)]
        table.individuals = tracks or [f"individual{number + 1}" for number in range(table.max_instances)]
    return tables


# --- Files -----------------------------------------------------------------------------------------


def _build_header(individuals: Sequence[str], card: ModelCard) -> _Header:
    """Return the names of the header levels and the header of each column.

    A table with a single individual has no level `individuals`.
    """
    if len(individuals) == 1:
        return ["scorer", "bodyparts", "coords"], [
            (name_scorer(SCORER, card), name, coordinate) for name in card.names for coordinate in COORDS
        ]
    return ["scorer", "individuals", "bodyparts", "coords"], [
        (name_scorer(SCORER, card), individual, name, coordinate)
        for individual in individuals
        for name in card.names
        for coordinate in COORDS
    ]


def _save_csv(table: _Table, header: _Header, path: Path) -> None:
    levels, columns = header
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        header_rows = zip(*columns, strict=True)  # one row per level
        writer.writerows([level, *cells] for level, cells in zip(levels, header_rows, strict=True))
        for labels, values in table.chunks():
            for label, numbers in zip(labels, values.tolist(), strict=True):
                cells = ["" if np.isnan(number) else f"{number:.4f}" for number in numbers]
                writer.writerow([label, *cells])


def _save_h5(table: _Table, header: _Header, path: Path) -> None:
    pandas: Any = require_package("pandas", "pandas tables")
    levels, columns = header
    index = pandas.MultiIndex.from_tuples(columns, names=levels)
    # The first chunk fixes the width of the index column. Reserve enough bytes for the longest label.
    label_bytes = max(len(label.encode()) if isinstance(label, str) else 0 for label in table.labels)
    try:
        with pandas.HDFStore(path, mode="w") as store:
            for labels, values in table.chunks():
                frame = pandas.DataFrame(values, index=labels, columns=index)
                min_itemsize = {"index": label_bytes} if label_bytes else None
                store.append(KEY, frame, format="table", min_itemsize=min_itemsize)
            store.get_storer(KEY).attrs.pandas_version = PANDAS_VERSION
    except require_package("tables", "pandas tables").HDF5ExtError as error:
        raise InputError(
            f"HDF5 could not store the table; its header of {len(columns)} columns may be too long: "
            "write CSV with --format dlc"
        ) from error
