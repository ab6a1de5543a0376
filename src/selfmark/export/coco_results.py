"""Write COCO keypoint results: a list of scored detections, and a file that lists the detections' images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from selfmark.detector import Prediction
from selfmark.export.coco_keypoints import (
    CATEGORY,
    ExportedImage,
    build_category,
    build_image_entries,
    build_keypoint_entries,
    get_original_file_names,
    iterate_objects,
    write_list,
)
from selfmark.export.output_files import open_output, require_writable
from selfmark.model.card import ModelCard
from selfmark.run.files import to_json


def write_coco_results(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/results.json, and `folder`/images.json, which lists the image of each `image_id`.

    As in `write_coco`, the images that could be read have the ids 1, 2, 3, ... in the given order. If all
    images could be read, a ground-truth file with the same ids can therefore be used to evaluate the results.
    The score of an object is the mean score of its landmarks.
    """
    require_writable(folder)
    images: dict[str, ExportedImage] = {}
    path = folder / "results.json"
    with open_output(path) as results_file, open_output(folder / "images.json") as images_file:
        write_list(_build_results(predictions, images), results_file)
        images_file.write('{"images": ')
        write_list(build_image_entries(images, get_original_file_names), images_file)
        images_file.write(f',\n"annotations": [],\n"categories": {to_json([build_category(card)])}}}\n')
    return path


def _build_results(
    predictions: Iterable[Prediction], images: dict[str, ExportedImage]
) -> Iterator[dict[str, Any]]:
    for image, track, xy, score in iterate_objects(predictions, images):
        yield {
            "image_id": image.id,
            "category_id": CATEGORY,
            # Visibility has no meaning in results; the specification asks for 1.
            "keypoints": build_keypoint_entries(xy, 1),
            "score": round(float(score.mean()), 4),
            **({} if track is None else {"track_id": track}),
        }
