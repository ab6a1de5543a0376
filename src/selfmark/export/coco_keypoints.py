"""Write predictions in COCO's annotation format; `coco_results` writes COCO's results format.

A file contains images, annotations with [x, y, v] per landmark, and one category.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from selfmark.detector import Prediction
from selfmark.export.output_files import open_output, require_writable
from selfmark.export.trust_entries import trust_entries
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard
from selfmark.run.files import to_json

CATEGORY = 1  # id of the only category
VISIBLE = 2  # the value of v for a labeled, visible keypoint
ABSENT = 0  # v of a keypoint without a position; its x and y are 0


class ExportedImage(NamedTuple):
    """An image or a frame, with the id that annotations use for it."""

    id: int
    ref: ImageRef
    width: int
    height: int


def write_coco(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.json; scores are in `keypoint_scores`.

    Every landmark has v=2, with one exception: smoothed landmarks in gaps that were not filled have v=0.
    """
    require_writable(folder)
    path = folder / "landmarks.json"
    with open_output(path) as handle:
        write_coco_annotations(predictions, card, handle, get_original_file_names)
    return path


def write_coco_annotations(
    predictions: Iterable[Prediction],
    card: ModelCard,
    handle: TextIO,
    file_names: Callable[[Sequence[ImageRef]], list[str]],
) -> None:
    """Write annotations as they arrive, then the images.

    Only the names and sizes of the images are kept in memory.

    Args:
        predictions: Predictions, batch by batch.
        card: Names, skeleton and mirror partners of the landmarks.
        handle: Text file to write to.
        file_names: Function that returns the `file_name` of each image.
    """
    images: dict[str, ExportedImage] = {}
    handle.write('{"annotations": ')
    write_list(_build_annotations(predictions, images), handle)
    handle.write(',\n"images": ')
    write_list(build_image_entries(images, file_names), handle)
    handle.write(f',\n"categories": {to_json([build_category(card)])}}}\n')


def get_original_file_names(refs: Sequence[ImageRef]) -> list[str]:
    """Return the paths of the images, unchanged."""
    return [str(ref.path) for ref in refs]


class ExportedObject(NamedTuple):
    """One object: its image, its track (None if unknown), xy [K, 2] in pixels and score [K]."""

    image: ExportedImage
    track: int | None
    xy: Any
    score: Any


def iterate_objects(
    predictions: Iterable[Prediction], images: dict[str, ExportedImage]
) -> Iterator[ExportedObject]:
    """Yield every object; add images that appear for the first time to `images`, with ids from 1."""
    for refs, sizes, landmarks in predictions:
        for row, ref in enumerate(refs):
            width, height = sizes[row].tolist()
            image = images.setdefault(ref.name, ExportedImage(len(images) + 1, ref, width, height))
            xy, score = np.round(landmarks.xy[row].astype(float), 3), landmarks.score[row].astype(float)
            yield ExportedObject(image, ref.track, xy, score)


def build_keypoint_entries(xy: Any, visibility: int) -> list[float]:
    """Return x, y and v of landmarks [K, 2] as a flat list; zeros for a landmark without a position (NaN)."""
    entries: list[float] = []
    for x, y in xy.tolist():
        entries += (0.0, 0.0, ABSENT) if np.isnan(x) else (x, y, visibility)
    return entries


def build_track_entries(track: int | None) -> dict[str, Any]:
    """Return the entries for a track: `track_id` for most readers, `attributes` for CVAT."""
    return {} if track is None else {"track_id": track, "attributes": {"track_id": track}}


def build_image_entries(
    images: dict[str, ExportedImage], file_names: Callable[[Sequence[ImageRef]], list[str]]
) -> Iterator[dict[str, Any]]:
    """Yield the entries of the list `images`; the entry `frame` is the number of a video frame."""
    names = file_names([image.ref for image in images.values()])
    for image, name in zip(images.values(), names, strict=True):
        yield {
            "id": image.id,
            "file_name": name,
            "width": image.width,
            "height": image.height,
            **({} if image.ref.frame is None else {"frame": image.ref.frame}),
        }


def build_category(card: ModelCard) -> dict[str, Any]:
    """Return the only category: names, skeleton (indices from 1) and mirror partners (indices from 0).

    The mirror partners (`flip_idx`) are not part of COCO. Neither are the entries of `trust_entries`: the
    trust in each landmark, the verdict of the run and the smoothing method. Programs that read COCO files
    ignore them.
    """
    return {
        "id": CATEGORY,
        "name": "object",
        "supercategory": "object",
        "keypoints": list(card.names),
        "skeleton": [[a + 1, b + 1] for a, b in card.skeleton],
        "flip_idx": list(card.mirror),
        **trust_entries(card),
    }


def write_list(entries: Iterable[Any], handle: TextIO) -> None:
    """Write a JSON list, one entry per line, without holding it in memory."""
    handle.write("[")
    for index, entry in enumerate(entries):
        handle.write(",\n" if index else "\n")
        handle.write(to_json(entry))
    handle.write("\n]")


def _build_annotations(
    predictions: Iterable[Prediction], images: dict[str, ExportedImage]
) -> Iterator[dict[str, Any]]:
    for number, (image, track, xy, score) in enumerate(iterate_objects(predictions, images), start=1):
        low, high = np.nanmin(xy, axis=0), np.nanmax(xy, axis=0)
        width, height = (high - low).tolist()
        yield {
            "id": number,
            "image_id": image.id,
            "category_id": CATEGORY,
            "keypoints": build_keypoint_entries(xy, VISIBLE),
            "num_keypoints": int(np.isfinite(xy[:, 0]).sum()),
            # Integers are pixel centers in the coordinates of points, but pixel corners in those of boxes.
            "bbox": [low[0] + 0.5, low[1] + 0.5, width, height],
            "area": width * height,
            "segmentation": [],  # required by some readers, such as CVAT
            "iscrowd": 0,
            "score": round(float(score.mean()), 4),
            "keypoint_scores": np.round(score, 4).tolist(),
            **build_track_entries(track),
        }
