"""Read COCO files back with pycocotools and faster-coco-eval."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.detector import Prediction
from selfmark.export.coco_keypoints import write_coco
from selfmark.export.coco_results import write_coco_results
from tests.export.fakes import (
    CARD,
    CROWD,
    FRAMES,
    NAMES,
    STILLS,
    TWO_OBJECTS,
    iterate_expected_objects,
    make_predictions,
)

EVERYTHING = [*STILLS, *TWO_OBJECTS, *FRAMES, *CROWD]


def _import_pycocotools() -> tuple[Any, Any]:
    coco = pytest.importorskip("pycocotools.coco")
    return coco.COCO, pytest.importorskip("pycocotools.cocoeval").COCOeval


def _import_faster_coco_eval() -> tuple[Any, Any]:
    package = pytest.importorskip("faster_coco_eval")
    return package.COCO, package.COCOeval_faster


READERS = [
    pytest.param(_import_pycocotools, id="pycocotools"),
    pytest.param(_import_faster_coco_eval, id="faster-coco-eval"),
]


def _open(reader: Any, path: Path) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return reader(str(path))


@pytest.mark.parametrize("tools", READERS)
def test_ground_truth_files_are_read_back(tools: Callable[[], Any], tmp_path: Path) -> None:
    reader, _ = tools()
    batches = make_predictions(EVERYTHING)
    data = _open(reader, write_coco(batches, CARD, tmp_path))
    (category,) = data.loadCats(data.getCatIds())
    assert category["keypoints"] == list(NAMES)
    assert category["skeleton"] == [[1, 2], [3, 4]], "COCO counts keypoints from 1"
    assert category["flip_idx"] == [0, 1, 3, 2]
    expected = list(iterate_expected_objects(batches))
    assert len(data.getImgIds()) == len({obj.ref.name for obj in expected}) == 11
    annotations = data.loadAnns(sorted(data.getAnnIds()))
    for annotation, obj in zip(annotations, expected, strict=True):
        (image,) = data.loadImgs(annotation["image_id"])
        assert (image["file_name"], image.get("frame")) == (str(obj.ref.path), obj.ref.frame)
        assert (image["width"], image["height"]) == obj.size
        points = np.array(annotation["keypoints"]).reshape(-1, 3)
        np.testing.assert_allclose(points[:, :2], obj.xy, atol=6e-4)
        assert (points[:, 2] == 2).all()
        assert annotation["num_keypoints"] == len(NAMES)
        np.testing.assert_allclose(annotation["keypoint_scores"], obj.score, atol=6e-5)
        assert annotation["score"] == pytest.approx(obj.score.mean(), abs=6e-5)
        # Boxes are measured from pixel corners, points from pixel centers.
        x, y, width, height = annotation["bbox"]
        np.testing.assert_allclose([x, y], obj.xy.min(0) + 0.5, atol=6e-4)
        np.testing.assert_allclose([x + width, y + height], obj.xy.max(0) + 0.5, atol=2e-3)


@pytest.mark.parametrize("tools", READERS)
def test_results_are_evaluated_against_ground_truth(tools: Callable[[], Any], tmp_path: Path) -> None:
    """Identical points have an average precision of 1; shifted points do not."""
    reader, evaluate = tools()
    batches = make_predictions(EVERYTHING)
    moved = [
        batch._replace(landmarks=type(batch.landmarks)(batch.landmarks.xy + 40, batch.landmarks.score, NAMES))
        for batch in batches
    ]
    truth = _open(reader, write_coco(batches, CARD, tmp_path))
    precision = []
    for number, results in enumerate((batches, moved)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with contextlib.redirect_stdout(io.StringIO()):
            path = write_coco_results(results, CARD, folder)
            run = evaluate(truth, truth.loadRes(str(path)), "keypoints")
            run.params.kpt_oks_sigmas = np.full(len(NAMES), 0.05)
            run.evaluate()
            run.accumulate()
            run.summarize()
        precision.append(run.stats[0])
    assert precision[0] == pytest.approx(1)
    assert precision[1] < 0.5


def test_results_refer_to_the_images_in_images_json(tmp_path: Path) -> None:
    batches = make_predictions(EVERYTHING)
    path = write_coco_results(batches, CARD, tmp_path)
    results = json.loads(path.read_text())
    companion = json.loads((tmp_path / "images.json").read_text())
    images = {image["id"]: image for image in companion["images"]}
    assert companion["categories"][0]["keypoints"] == list(NAMES)
    for result, obj in zip(results, iterate_expected_objects(batches), strict=True):
        assert set(result) == {"image_id", "category_id", "keypoints", "score"}
        image = images[result["image_id"]]
        assert (image["file_name"], image.get("frame")) == (str(obj.ref.path), obj.ref.frame)
        assert (image["width"], image["height"]) == obj.size
        np.testing.assert_allclose(np.reshape(result["keypoints"], (-1, 3))[:, :2], obj.xy, atol=6e-4)
        assert result["score"] == pytest.approx(obj.score.mean(), abs=6e-5)


def test_no_predictions_give_an_empty_file(tmp_path: Path) -> None:
    empty: list[Prediction] = []
    data = json.loads(write_coco(empty, CARD, tmp_path).read_text())
    assert data["images"] == data["annotations"] == []
