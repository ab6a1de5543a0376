"""Parquet with the columns of the plain CSV, typed: for pandas, polars, DuckDB and R."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.detector import Prediction
from selfmark.errors import need
from selfmark.export.csv_table import COLUMNS
from selfmark.export.pose_tables import InstanceNumbers, atomic_output, require_writable
from selfmark.model.card import ModelCard

_GROUP = 1 << 16  # rows of a row group, at least; one is in memory at a time


def write_parquet(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.parquet; `frame` is null for still images, `track` where it is not known."""
    arrow, parquet = need("pyarrow", "pyarrow"), need("pyarrow.parquet", "pyarrow")
    require_writable(folder)
    words, whole_number, real = arrow.string(), arrow.int32(), arrow.float32()
    types = (words, whole_number, whole_number, whole_number, words, real, real, real)
    schema = arrow.schema(list(zip(COLUMNS, types, strict=True)))
    path = folder / "landmarks.parquet"
    instances = InstanceNumbers()
    waiting: list[Any] = []
    with atomic_output(path) as part, parquet.ParquetWriter(part, schema) as writer:
        for prediction in predictions:
            waiting.append(arrow.table(_columns(prediction, instances), schema=schema))
            if sum(len(table) for table in waiting) >= _GROUP:
                writer.write_table(arrow.concat_tables(waiting))
                waiting.clear()
        if waiting:
            writer.write_table(arrow.concat_tables(waiting))
    return path


def _columns(prediction: Prediction, instances: InstanceNumbers) -> dict[str, Any]:
    """One row per landmark; `instances` numbers the objects over all batches."""
    refs, _, landmarks = prediction
    numbers = [instances.number(ref) for ref in refs]
    each = len(landmarks.names)
    values = (
        [str(ref.path) for ref in refs for _ in range(each)],
        [ref.frame for ref in refs for _ in range(each)],
        np.repeat(np.array(numbers, np.int32), each),
        [ref.track for ref in refs for _ in range(each)],
        list(landmarks.names) * len(refs),
        landmarks.xy[..., 0].ravel(),
        landmarks.xy[..., 1].ravel(),
        landmarks.score.ravel(),
    )
    return dict(zip(COLUMNS, values, strict=True))
