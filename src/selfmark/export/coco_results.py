"""COCO keypoints, results form: a list of scored detections, and beside it the images they count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from selfmark.detector import Prediction
from selfmark.export.coco_keypoints import (
    CATEGORY,
    ExportedImage,
    build_category,
    image_entries,
    iterate_objects,
    names_as_given,
    write_list,
)
from selfmark.export.pose_tables import atomic_output, require_writable
from selfmark.model.card import ModelCard


def write_coco_results(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/results.json, and images.json that says which image each `image_id` is.

    Ids count images in the order given, as `write_coco` does, so results of a detector can be evaluated
    against a ground-truth file made from the same images. An object's score is the mean of its landmarks'.
    """
    require_writable(folder)
    images: dict[str, ExportedImage] = {}
    path = folder / "results.json"
    with atomic_output(path) as part, atomic_output(folder / "images.json") as companion:
        with open(part, "w", encoding="utf-8") as handle:
            write_list(_results(predictions, images), handle)
        with open(companion, "w", encoding="utf-8") as handle:
            handle.write('{"images": ')
            write_list(image_entries(images, names_as_given), handle)
            handle.write(f',\n"annotations": [],\n"categories": {json.dumps([build_category(card)])}}}\n')
    return path


def _results(predictions: Iterable[Prediction], images: dict[str, ExportedImage]) -> Iterator[dict[str, Any]]:
    for image, track, xy, score in iterate_objects(predictions, images):
        yield {
            "image_id": image.id,
            "category_id": CATEGORY,
            # The third number has no meaning in results; the specification asks for 1.
            "keypoints": [value for x, y in xy.tolist() for value in (x, y, 1)],
            "score": round(float(score.mean()), 4),
            **({} if track is None else {"track_id": track}),
        }
