"""COCO keypoints, ground-truth form: images, annotations with [x, y, v] per landmark, one category."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.detector import ModelCard, Prediction
from selfmark.run import write_json


def write_coco(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.json; every landmark has v=2, its score stands in `keypoint_scores`."""
    images: dict[str, dict[str, Any]] = {}
    annotations: list[dict[str, Any]] = []
    for refs, sizes, landmarks in predictions:
        for row, ref in enumerate(refs):
            image = images.setdefault(
                ref.name,
                {
                    "id": len(images) + 1,
                    "file_name": str(ref.path),
                    "width": int(sizes[row, 0]),
                    "height": int(sizes[row, 1]),
                    **({} if ref.frame is None else {"frame": ref.frame}),
                },
            )
            xy = np.round(landmarks.xy[row].astype(float), 3)
            low, high = xy.min(axis=0), xy.max(axis=0)
            width, height = (high - low).tolist()
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image["id"],
                    "category_id": 1,
                    "keypoints": [value for x, y in xy.tolist() for value in (x, y, 2)],
                    "num_keypoints": len(xy),
                    # Points are pixel centres, boxes count from pixel corners.
                    "bbox": [low[0] + 0.5, low[1] + 0.5, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    "score": round(float(landmarks.score[row].mean()), 4),
                    "keypoint_scores": np.round(landmarks.score[row].astype(float), 4).tolist(),
                }
            )
    category = {
        "id": 1,
        "name": "object",
        "supercategory": "object",
        "keypoints": list(card.names),
        "skeleton": [[a + 1, b + 1] for a, b in card.skeleton],
        "flip_idx": list(card.mirror),
    }
    path = folder / "landmarks.json"
    write_json({"images": list(images.values()), "annotations": annotations, "categories": [category]}, path)
    return path
