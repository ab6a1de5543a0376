"""Write predictions in the formats of other tools, one module per format.

Every writer takes predictions batch by batch, so most formats need little memory even for an hour of video.
Packages that only one format needs are imported when that format is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from selfmark.detector import Prediction
from selfmark.errors import InputError, suggest
from selfmark.export.coco_keypoints import write_coco
from selfmark.export.coco_results import write_coco_results
from selfmark.export.csv_table import write_csv
from selfmark.export.cvat import write_cvat
from selfmark.export.dlc import SCORER, write_dlc, write_dlc_h5
from selfmark.export.label_studio import write_label_studio
from selfmark.export.lightning_pose import write_lightning_pose
from selfmark.export.nwb import write_nwb
from selfmark.export.parquet import write_parquet
from selfmark.export.result_record import RECORD
from selfmark.export.sleap import write_analysis, write_slp
from selfmark.export.ultralytics import write_ultralytics
from selfmark.model.card import ModelCard, visible_card, visible_landmarks

# A writer takes predictions, the model card and the output folder, and returns the path it wrote.
Writer = Callable[[Iterable[Prediction], ModelCard, Path], Path]

FORMATS: dict[str, Writer] = {
    "csv": write_csv,
    "parquet": write_parquet,
    "coco": write_coco,
    "coco-results": write_coco_results,
    "cvat": write_cvat,
    "dlc": write_dlc,
    "dlc-h5": write_dlc_h5,
    "label-studio": write_label_studio,
    "lightning-pose": write_lightning_pose,
    "nwb": write_nwb,
    "sleap": write_slp,
    "sleap-analysis": write_analysis,
    "ultralytics": write_ultralytics,
}

# Files that each format may replace in the output folder, as glob patterns. Folders are never replaced.
REPLACED_FILES: dict[str, tuple[str, ...]] = {
    "csv": ("landmarks.csv",),
    "parquet": ("landmarks.parquet",),
    "coco": ("landmarks.json",),
    "coco-results": ("results.json", "images.json"),
    "cvat": ("cvat.zip",),
    "dlc": (f"**/*{SCORER}*.csv",),
    "dlc-h5": (f"**/*{SCORER}*.h5",),
    "label-studio": ("tasks.json", "label_config.xml"),
    "lightning-pose": ("CollectedData*.csv",),
    "nwb": ("landmarks.nwb",),
    "sleap": ("landmarks.slp",),
    "sleap-analysis": ("landmarks.*.analysis.h5",),
    "ultralytics": (),
}


def list_replaced_files(output_format: str, folder: Path) -> list[Path]:
    """Return the existing files of a folder that an export to this folder may replace."""
    patterns = (*REPLACED_FILES[output_format], RECORD)
    return [path for pattern in patterns for path in folder.glob(pattern)]


def get_writer(name: str) -> Writer:
    """Return the writer of a format; it leaves out the landmarks that the model card hides."""
    if name not in FORMATS:
        raise InputError(
            f"unknown format '{name}'; choose one of {', '.join(FORMATS)}.{suggest(name, FORMATS)}"
        )
    return partial(_write_visible, FORMATS[name])


def visible_points(predictions: Iterable[Prediction], card: ModelCard) -> Iterator[Prediction]:
    """Yield the predictions without the landmarks that `card` hides.

    `visible_card(card)` is the card of the remaining landmarks.
    """
    kept = visible_landmarks(card)
    for prediction in predictions:
        yield prediction._replace(landmarks=prediction.landmarks.select(kept))


def _write_visible(write: Writer, predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    return write(visible_points(predictions, card), visible_card(card), folder)
