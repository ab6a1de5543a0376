"""Test maps of a trained run, learned from label files of several tools."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.mapping.learning import learn_map
from selfmark.mapping.mapped_detector import MappedDetector, load_mapping


def test_a_map_learned_from_a_coco_file_predicts_where_the_points_are(
    quick_run: Path, labeled: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(quick_run, run)
    labels = labeled / "labels.json"
    with_images = learn_map(run, labels, [labeled / "images"], device="cpu").mapping
    # The run saw whole images, so the boxes of the label file are not used.
    without_images = learn_map(run, labels, device="cpu").mapping
    np.testing.assert_array_equal(with_images.map.weights, without_images.map.weights)

    content = json.loads(labels.read_text())
    names = tuple(content["categories"][0]["keypoints"])
    detector = Detector.load(run)
    mapped = MappedDetector(detector, load_mapping(run, detector))
    predicted = mapped(labeled / "images")
    assert predicted.names == names
    assert predicted.xy.shape == (len(content["images"]), len(names), 2)
    # The quick run is hardly trained, but the map still predicts roughly where the points are.
    truth = np.array([entry["keypoints"] for entry in content["annotations"]]).reshape(-1, len(names), 3)
    distance = np.linalg.norm(predicted.xy - truth[..., :2], axis=2)[truth[..., 2] > 0]
    assert distance.mean() < 0.25 * content["images"][0]["width"]
    assert ((predicted.score >= 0) & (predicted.score <= 1)).all()


def _write_label_studio(content: dict[str, Any], path: Path) -> None:
    """Write the points of a COCO file as a Label Studio export."""
    names = content["categories"][0]["keypoints"]
    tasks = []
    for image, annotation in zip(content["images"], content["annotations"], strict=True):
        size = {"original_width": image["width"], "original_height": image["height"]}
        result = []
        for name, (x, y, v) in zip(names, np.reshape(annotation["keypoints"], (-1, 3)).tolist(), strict=True):
            percent = {"x": (x + 0.5) / image["width"] * 100, "y": (y + 0.5) / image["height"] * 100}
            if v:
                value = {**percent, "keypointlabels": [name]}
                result.append({"type": "keypointlabels", "value": value, **size})
        address = f"/data/local-files/?d=photos/{image['file_name']}"
        tasks.append({"data": {"image": address}, "annotations": [{"result": result}]})
    path.write_text(json.dumps(tasks))


def _write_deeplabcut(content: dict[str, Any], path: Path) -> None:
    """Write the points of a COCO file as a DeepLabCut table."""
    names = content["categories"][0]["keypoints"]
    lines = [["scorer", *["me"] * 2 * len(names)]]
    lines += [["bodyparts", *(name for name in names for _ in "xy")], ["coords", *"xy" * len(names)]]
    for image, annotation in zip(content["images"], content["annotations"], strict=True):
        points = np.reshape(annotation["keypoints"], (-1, 3)).tolist()
        lines.append(
            [image["file_name"], *(repr(value) if v else "" for x, y, v in points for value in (x, y))]
        )
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(lines)


@pytest.mark.parametrize(
    ("name", "write"), [("studio.json", _write_label_studio), ("table.csv", _write_deeplabcut)]
)
def test_labels_of_other_tools_give_the_same_map(
    name: str, write: Any, quick_run: Path, labeled: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(quick_run, run)
    content = json.loads((labeled / "labels.json").read_text())
    category = content["categories"][0]
    # The files of the other tools have no skeleton, mirror partners or boxes, so the COCO file must not
    # have them either.
    content["categories"] = [{"id": category["id"], "keypoints": category["keypoints"]}]
    for annotation in content["annotations"]:
        del annotation["bbox"]
    (tmp_path / "coco.json").write_text(json.dumps(content))
    write(content, tmp_path / name)
    images = [labeled / "images"]
    coco = learn_map(run, tmp_path / "coco.json", images, device="cpu").mapping
    converted = learn_map(run, tmp_path / name, images, device="cpu").mapping
    assert converted.names == coco.names
    np.testing.assert_allclose(converted.map.weights, coco.map.weights, atol=1e-6)
    with pytest.raises(InputError, match="does not name the folder of its images"):
        learn_map(run, tmp_path / name, device="cpu")
