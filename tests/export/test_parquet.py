"""Read Parquet files back with pyarrow, and compare them with the CSV file of the same predictions."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.export import parquet as parquet_module
from selfmark.export.csv_table import COLUMNS, write_csv
from selfmark.export.parquet import write_parquet
from tests.export.fakes import (
    CARD,
    CROWD,
    FRAMES,
    NAMES,
    STILLS,
    TWO_OBJECTS,
    iterate_expected_objects,
    make_predictions,
)

parquet: Any = pytest.importorskip("pyarrow.parquet")

EVERYTHING = [*STILLS, *TWO_OBJECTS, *FRAMES, *CROWD]


def test_values_keep_their_types(tmp_path: Path) -> None:
    batches = make_predictions(EVERYTHING)
    table = parquet.read_table(write_parquet(batches, CARD, tmp_path))
    assert table.column_names == list(COLUMNS)
    types = ["string", "int32", "int32", "int64", "string", "float", "float", "float"]
    assert [str(field.type) for field in table.schema] == types
    expected = list(iterate_expected_objects(batches))
    rows = table.to_pylist()
    assert len(rows) == len(expected) * len(NAMES)
    for number, row in enumerate(rows):
        obj, index = expected[number // len(NAMES)], number % len(NAMES)
        assert (row["image"], row["frame"], row["instance"], row["landmark"]) == (
            str(obj.ref.path),
            obj.ref.frame,
            obj.instance,
            NAMES[index],
        )
        x, y = obj.xy[index]
        assert (row["x"], row["y"], row["score"]) == (x, y, obj.score[index]), "values are not rounded"


def test_values_equal_those_of_the_csv_file(tmp_path: Path) -> None:
    batches = make_predictions(EVERYTHING)
    with open(write_csv(batches, CARD, tmp_path), newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    table = parquet.read_table(write_parquet(batches, CARD, tmp_path)).to_pylist()
    for row, typed in zip(rows, table, strict=True):
        text = {key: "" if value is None else str(value) for key, value in typed.items()}
        assert {key: row[key] for key in COLUMNS[:5]} == {key: text[key] for key in COLUMNS[:5]}
        np.testing.assert_allclose([float(row[key]) for key in "xy"], [typed[key] for key in "xy"], atol=6e-4)


def test_rows_are_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_module, "_MIN_GROUP_ROWS", 3 * len(NAMES))
    path = write_parquet(make_predictions(EVERYTHING, batch=2), CARD, tmp_path)
    file = parquet.ParquetFile(path)
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    # Batches of two objects are collected until a group has at least three; there are 15 objects.
    assert sizes == [4 * len(NAMES)] * 3 + [3 * len(NAMES)]
