"""Read CSV and COCO files back with the modules csv and json."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from selfmark.config import Images, Network
from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export import get_writer
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard
from selfmark.points import Landmarks

NAMES = ("nose", "tail, long")
CARD = ModelCard(NAMES, (0, 1), ((0, 1),), Images(), Network(), "parabola", False, {})


def _make_predictions() -> list[Prediction]:
    rng = np.random.default_rng(0)

    def predict(refs: list[ImageRef], size: tuple[int, int]) -> Prediction:
        count = len(refs)
        landmarks = Landmarks(
            rng.uniform(0, 100, (count, 2, 2)).astype(np.float32),
            rng.random((count, 2)).astype(np.float32),
            NAMES,
        )
        return Prediction(tuple(refs), np.array([size] * count), landmarks)

    video = Path("clip.mp4")
    return [
        predict([ImageRef(Path('odd "name", x.jpg')), ImageRef(Path("b.jpg"))], (640, 480)),
        predict(
            [ImageRef(video, 0, (0, 0, 9, 9)), ImageRef(video, 0, (9, 9, 9, 9)), ImageRef(video, 1)],
            (320, 200),
        ),
    ]


def test_csv_has_every_landmark_of_every_instance(tmp_path: Path) -> None:
    predictions = _make_predictions()
    path = get_writer("csv")(predictions, CARD, tmp_path)
    with open(path, newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    expected = [
        (
            str(ref.path),
            "" if ref.frame is None else str(ref.frame),
            name,
            prediction.landmarks.xy[row, index],
        )
        for prediction in predictions
        for row, ref in enumerate(prediction.refs)
        for index, name in enumerate(NAMES)
    ]
    assert len(rows) == len(expected) == 10
    for row, (image, frame, name, xy) in zip(rows, expected, strict=True):
        assert (row["image"], row["frame"], row["landmark"]) == (image, frame, name)
        np.testing.assert_allclose([float(row["x"]), float(row["y"])], xy, atol=1e-3)
    assert [row["instance"] for row in rows[4:10:2]] == ["0", "1", "0"]


def test_coco_follows_the_specification(tmp_path: Path) -> None:
    predictions = _make_predictions()
    data = json.loads(get_writer("coco")(predictions, CARD, tmp_path).read_text())
    assert [(i["width"], i["height"]) for i in data["images"]] == [(640, 480)] * 2 + [(320, 200)] * 2
    assert len({i["id"] for i in data["images"]}) == 4
    assert len({a["id"] for a in data["annotations"]}) == 5
    per_image = [sum(a["image_id"] == i["id"] for a in data["annotations"]) for i in data["images"]]
    assert per_image == [1, 1, 2, 1]
    (category,) = data["categories"]
    assert category["keypoints"] == list(NAMES)
    assert category["skeleton"] == [[1, 2]], "COCO counts keypoints from 1"
    xy = np.concatenate([p.landmarks.xy for p in predictions])
    for annotation, points in zip(data["annotations"], xy, strict=True):
        keypoints = np.array(annotation["keypoints"]).reshape(-1, 3)
        np.testing.assert_allclose(keypoints[:, :2], points, atol=1e-3)
        assert (keypoints[:, 2] == 2).all()
        x, y, w, h = annotation["bbox"]
        from_corner = points + 0.5  # boxes are measured from pixel corners
        expected = [*from_corner.min(0), *from_corner.max(0)]
        np.testing.assert_allclose([x, y, x + w, y + h], expected, atol=2e-3)


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(InputError, match="csv, parquet, coco"):
        get_writer("unknown")
