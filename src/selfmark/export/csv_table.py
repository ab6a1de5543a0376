"""Write plain CSV, a row per landmark: `image,frame,instance,track,landmark,x,y,score`, in original pixels.

Smoothed landmarks have five more columns, `MOTION_COLUMNS`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from selfmark.detector import Prediction
from selfmark.export.output_files import open_output
from selfmark.export.pose_tables import InstanceNumbers
from selfmark.export.trust_entries import get_smoothing_method
from selfmark.model.card import ModelCard
from selfmark.points import Motion

COLUMNS = ("image", "frame", "instance", "track", "landmark", "x", "y", "score")
MOTION_COLUMNS = ("seconds", "speed", "distance", "filled", "smoothing")


def write_csv(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.csv; `InstanceNumbers` explains the column `instance`."""
    path = folder / "landmarks.csv"
    instances = InstanceNumbers()
    with open_output(path, newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(COLUMNS + MOTION_COLUMNS if get_smoothing_method(card) else COLUMNS)
        for refs, _, landmarks in predictions:
            for row, ref in enumerate(refs):
                frame = "" if ref.frame is None else ref.frame
                track = "" if ref.track is None else ref.track
                instance = instances.assign(ref)
                for index, name in enumerate(landmarks.names):
                    x, y = landmarks.xy[row, index]
                    score = landmarks.score[row, index]
                    xy = [_format_number(x), _format_number(y)]
                    values = [ref.path, frame, instance, track, name, *xy, f"{score:.4f}"]
                    writer.writerow(values + _format_motion(landmarks.motion, row, index))
    return path


def _format_number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _format_motion(motion: Motion | None, row: int, index: int) -> list[str]:
    """Return the values of `MOTION_COLUMNS`, or an empty list for landmarks that are not smoothed."""
    if motion is None:
        return []
    speed, distance = _format_number(motion.speed[row, index]), _format_number(motion.distance[row, index])
    is_filled = str(int(motion.is_filled[row, index]))
    return [f"{motion.seconds[row]:.6g}", speed, distance, is_filled, motion.method]
