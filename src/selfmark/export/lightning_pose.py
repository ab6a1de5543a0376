"""Lightning Pose labels: one row per image, three header rows scorer / bodyparts / coords (x, y)."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from selfmark.detector import ModelCard, Prediction
from selfmark.errors import InputError
from selfmark.export.media import require_distinct, require_writable, writing

SCORER = "selfmark"


def write_lightning_pose(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/CollectedData.csv; image paths stay as given, best relative to its data_dir.

    The format knows one object per image, and labels of image files only.
    """
    require_distinct(card.names, "Lightning Pose")
    require_writable(folder)
    path = folder / "CollectedData.csv"
    seen: set[str] = set()
    with writing(path) as part, open(part, "w", newline="", encoding="utf-8") as handle:
        table = csv.writer(handle)
        table.writerow(["scorer", *[SCORER] * (2 * len(card.names))])
        table.writerow(["bodyparts", *[name for name in card.names for _ in "xy"]])
        table.writerow(["coords", *["x", "y"] * len(card.names)])
        for refs, _, landmarks in predictions:
            for row, ref in enumerate(refs):
                if ref.frame is not None:
                    raise InputError(
                        f"Lightning Pose labels are of image files, and {ref.path} is a video: save the "
                        "frames you want as images, or take --format dlc for predictions of a video"
                    )
                if ref.name in seen:
                    raise InputError(f"Lightning Pose knows one object per image, and {ref.path} has several")
                seen.add(ref.name)
                table.writerow([ref.path, *(f"{value:.3f}" for value in landmarks.xy[row].ravel().tolist())])
    return path
