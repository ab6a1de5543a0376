"""Test files for Label Studio: their content, and whether label-studio-sdk accepts and converts them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from selfmark._version import __version__
from selfmark.errors import InputError
from selfmark.export.label_studio import write_label_studio
from selfmark.image_ref import ImageRef
from selfmark.run.json_schema import is_point_name
from tests.export.fakes import (
    CARD,
    CLIP,
    FRAMES,
    NAMES,
    STILLS,
    TWO_OBJECTS,
    ExpectedObject,
    iterate_expected_objects,
    make_predictions,
)

OBJECTS = [*STILLS, *TWO_OBJECTS]


def _group_by_image(objects: list[ExpectedObject]) -> dict[str, list[ExpectedObject]]:
    images: dict[str, list[ExpectedObject]] = {}
    for obj in objects:
        images.setdefault(str(obj.ref.path), []).append(obj)
    return images


def test_coordinates_are_percent_of_the_image_size(tmp_path: Path) -> None:
    batches = make_predictions(OBJECTS)
    tasks = json.loads(write_label_studio(batches, CARD, tmp_path).read_text())
    images = _group_by_image(list(iterate_expected_objects(batches)))
    assert len(tasks) == len(images) == 5
    for task, (path, expected) in zip(tasks, images.items(), strict=True):
        url = urlparse(task["data"]["image"])
        assert url.path == "/data/local-files/"
        # All images are below the folder "set", so the document root is its parent.
        assert parse_qs(url.query)["d"] == [path]
        (prediction,) = task["predictions"]
        assert prediction["model_version"] == f"selfmark {__version__}"
        assert prediction["score"] == pytest.approx(np.mean([obj.score for obj in expected]), abs=6e-5)
        regions = prediction["result"]
        assert len({region["id"] for region in regions}) == len(regions) == len(expected) * (1 + len(NAMES))
        boxes = [region for region in regions if region["type"] == "rectanglelabels"]
        for box, obj in zip(boxes, expected, strict=True):
            points = [region for region in regions if region.get("parentID") == box["id"]]
            assert [point["value"]["keypointlabels"] for point in points] == [[name] for name in NAMES]
            assert {(p["original_width"], p["original_height"]) for p in [box, *points]} == {obj.size}
            percent = np.array([(point["value"]["x"], point["value"]["y"]) for point in points])
            # Percentages are measured from the image corner, pixels from the center of the first pixel.
            np.testing.assert_allclose(percent * obj.size / 100 - 0.5, obj.xy, atol=6e-4)
            np.testing.assert_allclose([point["score"] for point in points], obj.score, atol=6e-5)
            corner = np.array([box["value"]["x"], box["value"]["y"]])
            np.testing.assert_allclose(corner, percent.min(0))
            extent = np.array([box["value"]["width"], box["value"]["height"]])
            np.testing.assert_allclose(corner + extent, percent.max(0))


def test_label_studio_accepts_the_tasks(tmp_path: Path) -> None:
    label_interface: Any = pytest.importorskip("label_studio_sdk.label_interface")
    tasks = json.loads(write_label_studio(make_predictions(OBJECTS), CARD, tmp_path).read_text())
    interface = label_interface.LabelInterface((tmp_path / "label_config.xml").read_text(encoding="utf-8"))
    interface.validate()
    assert set(interface.get_control("landmarks").labels) == set(NAMES)
    for task in tasks:
        assert interface.validate_prediction(task["predictions"][0], return_errors=True) == []
    wrong_prediction = copy.deepcopy(tasks[0]["predictions"][0])
    wrong_prediction["result"][1]["value"]["keypointlabels"] = ["beak"]
    assert interface.validate_prediction(wrong_prediction, return_errors=True) != [], (
        "a prediction with an unknown label was accepted"
    )


def _convert(tmp_path: Path, output_format: str, objects: Any) -> tuple[list[ExpectedObject], Path]:
    """Accept the predictions unchanged and export them with Label Studio's converter."""
    converter: Any = pytest.importorskip("label_studio_sdk.converter.converter")
    batches = make_predictions(objects)
    tasks = json.loads(write_label_studio(batches, CARD, tmp_path).read_text())
    for number, task in enumerate(tasks, start=1):
        task |= {"id": number, "annotations": [{"id": number, **task.pop("predictions")[0]}]}
    exported = tmp_path / "export.json"
    exported.write_text(json.dumps(tasks))
    for ref, size in objects:
        path = tmp_path / ref.path
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(path)
    output = tmp_path / output_format
    tool = converter.Converter(str(tmp_path / "label_config.xml"), str(tmp_path), download_resources=False)
    convert = {"coco": tool.convert_to_coco, "yolo": tool.convert_to_yolo}[output_format]
    convert(str(exported), str(output), is_dir=False)
    return list(iterate_expected_objects(batches)), output


def test_the_coco_converter_keeps_the_order_of_landmarks(tmp_path: Path) -> None:
    expected, output = _convert(tmp_path, "coco", STILLS)
    data = json.loads((output / "result.json").read_text())
    (names,) = [category["keypoints"] for category in data["categories"] if "keypoints" in category]
    assert names == list(NAMES)
    annotations = [annotation for annotation in data["annotations"] if "keypoints" in annotation]
    for annotation, obj in zip(annotations, expected, strict=True):
        points = np.reshape(annotation["keypoints"], (-1, 3))
        # The converter rounds to whole pixels, measured from the corner.
        np.testing.assert_allclose(points[:, :2], obj.xy + 0.5, atol=0.501)
        assert (points[:, 2] == 2).all()
        (image,) = [image for image in data["images"] if image["id"] == annotation["image_id"]]
        assert (image["width"], image["height"]) == obj.size


def test_the_yolo_converter_keeps_objects_apart(tmp_path: Path) -> None:
    expected, output = _convert(tmp_path, "yolo", TWO_OBJECTS)
    rows = [
        np.array(line.split(), float)
        for path in sorted((output / "labels").iterdir())
        for line in path.read_text().splitlines()
    ]
    ordered = sorted(expected, key=lambda obj: (obj.ref.path, obj.instance))
    assert len(rows) == len(ordered) == 3
    for row, obj in zip(rows, ordered, strict=True):
        points = row[5:].reshape(-1, 3)
        np.testing.assert_allclose(points[:, :2] * obj.size - 0.5, obj.xy, atol=6e-4)


def test_files_are_found_below_the_document_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io: Any = pytest.importorskip("label_studio_sdk._extensions.label_studio_tools.core.utils.io")
    photos = tmp_path / "my photos é & co"
    photos.mkdir()
    objects = [(ImageRef(photos / f"{name}.png"), (9, 9)) for name in ("a+b", "100%", 'c"?#')]
    for ref, size in objects:
        Image.new("RGB", size).save(ref.path)
    tasks = json.loads(write_label_studio(make_predictions(objects), CARD, tmp_path).read_text())
    monkeypatch.setattr(io, "LOCAL_FILES_DOCUMENT_ROOT", str(tmp_path))
    for task, (ref, _) in zip(tasks, objects, strict=True):
        local_path = io.get_local_path(task["data"]["image"], download_resources=False)
        assert Path(local_path).samefile(ref.path)


def test_points_outside_the_image_are_moved_to_its_border(tmp_path: Path) -> None:
    (batch,) = make_predictions(STILLS[:1])
    batch.landmarks.xy[0, 0] = (-7, 1e4)
    (task,) = json.loads(write_label_studio([batch], CARD, tmp_path).read_text())
    values = [region["value"] for region in task["predictions"][0]["result"]]
    assert (values[0]["x"], values[0]["y"]) == (0, 100)


def test_the_interface_lists_every_landmark_once(tmp_path: Path) -> None:
    write_label_studio(make_predictions(STILLS), CARD, tmp_path)
    view = ElementTree.parse(tmp_path / "label_config.xml").getroot()
    labels = view.findall("KeyPointLabels/Label")
    assert [label.get("value") for label in labels] == list(NAMES)
    assert [label.get("model_index") for label in labels] == ["0", "1", "2", "3"]
    assert len({label.get("background") for label in labels}) == len(NAMES)


def test_landmarks_come_before_rectangles(tmp_path: Path) -> None:
    """Label Studio (1.23) selects the first region under a click, which must be the landmark."""
    tasks = json.loads(write_label_studio(make_predictions(TWO_OBJECTS), CARD, tmp_path).read_text())
    for task in tasks:
        kinds = [region["type"] for region in task["predictions"][0]["result"]]
        assert set(kinds) == {"keypointlabels", "rectanglelabels"}
        assert kinds == sorted(kinds)  # "keypointlabels" comes before "rectanglelabels" in the alphabet


def test_rectangles_are_not_filled(tmp_path: Path) -> None:
    """The default fill would dim the object."""
    write_label_studio(make_predictions(STILLS), CARD, tmp_path)
    (boxes,) = ElementTree.parse(tmp_path / "label_config.xml").getroot().findall("RectangleLabels")
    assert boxes.get("fillOpacity") == "0"


def test_a_missing_video_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=CLIP.name):
        write_label_studio(make_predictions(FRAMES), CARD, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_interface_is_valid_with_every_character_that_names_may_have(tmp_path: Path) -> None:
    characters = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x11000), 0x10FFFF)]
    allowed = "".join(filter(is_point_name, characters))
    assert len(characters) - len(allowed) == 31  # 29 control characters, U+FFFE and U+FFFF
    card = replace(CARD, names=(allowed, *NAMES[1:]))
    write_label_studio(make_predictions(OBJECTS), card, tmp_path)
    labels = ElementTree.parse(tmp_path / "label_config.xml").findall("KeyPointLabels/Label")
    assert labels[0].get("value") == allowed
