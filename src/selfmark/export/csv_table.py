"""Plain CSV, one row per landmark: `image,frame,instance,track,landmark,x,y,score`, in original pixels."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from selfmark.detector import Prediction
from selfmark.export.pose_tables import InstanceNumbers
from selfmark.model.card import ModelCard
from selfmark.run.files import atomic_write

COLUMNS = ("image", "frame", "instance", "track", "landmark", "x", "y", "score")


def write_csv(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.csv; `InstanceNumbers` explains the column `instance`."""
    path = folder / "landmarks.csv"
    instances = InstanceNumbers()
    with atomic_write(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(COLUMNS)
        for refs, _, landmarks in predictions:
            for row, ref in enumerate(refs):
                frame = "" if ref.frame is None else ref.frame
                track = "" if ref.track is None else ref.track
                instance = instances.assign(ref)
                for index, name in enumerate(landmarks.names):
                    x, y = landmarks.xy[row, index]
                    score = landmarks.score[row, index]
                    writer.writerow(
                        [ref.path, frame, instance, track, name, f"{x:.3f}", f"{y:.3f}", f"{score:.4f}"]
                    )
    return path
