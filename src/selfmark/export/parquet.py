"""Write Parquet files with the columns of the plain CSV, for pandas, polars, DuckDB and R."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.detector import Prediction
from selfmark.errors import require_package
from selfmark.export.csv_table import COLUMNS, MOTION_COLUMNS
from selfmark.export.output_files import open_output, require_writable
from selfmark.export.pose_tables import InstanceNumbers
from selfmark.export.trust_entries import get_smoothing_method, trust_entries
from selfmark.model.card import ModelCard
from selfmark.points import Landmarks
from selfmark.run.files import to_json

# Every row group except the last has at least this many rows. One group is in memory at a time.
_MIN_GROUP_ROWS = 1 << 16


def write_parquet(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.parquet.

    `frame` is null for still images, and `track` is null if it is unknown. Positions of smoothed landmarks
    are null in gaps that were not filled. The metadata of the file contain the entries of `trust_entries`.
    """
    arrow, parquet = require_package("pyarrow", "pyarrow"), require_package("pyarrow.parquet", "pyarrow")
    require_writable(folder)
    text, integer, real = arrow.string(), arrow.int32(), arrow.float32()
    types = (text, integer, integer, arrow.int64(), text, real, real, real)
    columns = list(zip(COLUMNS, types, strict=True))
    if get_smoothing_method(card):
        motion_types = (arrow.float64(), real, real, arrow.bool_(), text)
        columns += zip(MOTION_COLUMNS, motion_types, strict=True)
    schema = arrow.schema(columns, metadata=_build_metadata(card))
    path = folder / "landmarks.parquet"
    instances = InstanceNumbers()
    pending: list[Any] = []
    with (
        open_output(path, "wb", verify=_read_back) as output,
        parquet.ParquetWriter(output, schema) as writer,
    ):
        for prediction in predictions:
            values = _build_columns(prediction, instances) | _build_motion_columns(prediction.landmarks)
            arrays = [
                arrow.array(values[field.name], field.type, mask=_find_nan(values[field.name]))
                for field in schema
            ]
            pending.append(arrow.Table.from_arrays(arrays, schema=schema))
            if sum(len(table) for table in pending) >= _MIN_GROUP_ROWS:
                writer.write_table(arrow.concat_tables(pending))
                pending.clear()
        if pending:
            writer.write_table(arrow.concat_tables(pending))
    return path


def _read_back(path: Path) -> None:
    """Raise an OSError if the metadata at the end of the file cannot be read."""
    arrow, parquet = require_package("pyarrow", "pyarrow"), require_package("pyarrow.parquet", "pyarrow")
    try:
        parquet.read_metadata(path)
    except arrow.ArrowException as error:
        raise OSError(0, f"it cannot be read back ({error})") from error


def _build_metadata(card: ModelCard) -> dict[str, str] | None:
    """Return the names and `trust_entries` as JSON, with the same keys as in `onnx_metadata`.

    Return None if `trust_entries` is empty.
    """
    entries = trust_entries(card)
    values = {"names": card.names, **entries} if entries else {}
    return {f"selfmark.{name}": to_json(value) for name, value in values.items()} or None


def _build_columns(prediction: Prediction, instances: InstanceNumbers) -> dict[str, Any]:
    """Return the columns of a batch, one row per landmark.

    Args:
        prediction: The batch.
        instances: Counter that gives the objects of all batches their instance numbers.
    """
    refs, _, landmarks = prediction
    numbers = [instances.assign(ref) for ref in refs]
    count = len(landmarks.names)
    values = (
        [str(ref.path) for ref in refs for _ in range(count)],
        [ref.frame for ref in refs for _ in range(count)],
        np.repeat(np.array(numbers, np.int32), count),
        [ref.track for ref in refs for _ in range(count)],
        list(landmarks.names) * len(refs),
        landmarks.xy[..., 0].ravel(),
        landmarks.xy[..., 1].ravel(),
        landmarks.score.ravel(),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _build_motion_columns(landmarks: Landmarks) -> dict[str, Any]:
    """Return the `MOTION_COLUMNS` of a batch; empty for landmarks that are not smoothed."""
    motion = landmarks.motion
    if motion is None:
        return {}
    count = len(landmarks.names)
    values = (
        np.repeat(motion.seconds, count),
        motion.speed.ravel(),
        motion.distance.ravel(),
        motion.is_filled.ravel(),
        [motion.method] * motion.speed.size,
    )
    return dict(zip(MOTION_COLUMNS, values, strict=True))


def _find_nan(values: Any) -> Any:
    """Return a mask of the NaN values, which become null; None for columns that are not arrays of floats."""
    return np.isnan(values) if isinstance(values, np.ndarray) and values.dtype.kind == "f" else None
