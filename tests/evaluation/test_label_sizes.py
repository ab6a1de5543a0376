"""Test that unsuitable labels and normalizers are reported before any prediction."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NoReturn

import cv2
import numpy as np
import pytest
from PIL import ExifTags, Image

from selfmark.errors import InputError
from selfmark.evaluation import labeled_run
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.normalizers import keep_measurable
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.images.sources import list_images
from tests.conftest import selfmark


def _write_labels(path: Path, sizes: list[tuple[int, int] | None], points: list[list[float]]) -> Path:
    """Write a COCO file of images 000.png, 001.png, ... with two points a and b each."""
    images: list[dict[str, Any]] = []
    for number, size in enumerate(sizes):
        image = {"id": number, "file_name": f"{number:03d}.png"}
        images.append(image if size is None else image | {"width": size[0], "height": size[1]})
    annotations = [
        {"id": number, "image_id": number, "category_id": 1, "keypoints": keypoints}
        for number, keypoints in enumerate(points)
    ]
    category = {"id": 1, "name": "animal", "keypoints": ["a", "b"]}
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": [category]}))
    return path


KEYPOINTS_INSIDE = [10, 10, 2, 30, 40, 2]


def test_labels_are_refused_if_most_stated_sizes_differ(photos: Path, tmp_path: Path) -> None:
    refs = list_images([photos])  # 64 x 64 pixels
    same_sizes = _write_labels(tmp_path / "same.json", [(64, 64)] * 4, [KEYPOINTS_INSIDE] * 4)
    assert read_ground_truth(same_sizes, refs).notes == ()
    other_sizes = _write_labels(
        tmp_path / "other.json", [(64, 64), *[(640, 480)] * 3], [KEYPOINTS_INSIDE] * 4
    )
    with pytest.raises(
        InputError, match=r"other.json belongs to other images.*3 of 4.*'001.png' is 640 x 480"
    ):
        read_ground_truth(other_sizes, refs)
    # If at most half of the sizes differ, there is only a note.
    one_size_differs = _write_labels(
        tmp_path / "one.json", [*[(64, 64)] * 3, (640, 480)], [KEYPOINTS_INSIDE] * 4
    )
    (note,) = read_ground_truth(one_size_differs, refs).notes
    assert "1 of 4 images checked does not fit its labels; for example, '003.png'" in note


@pytest.mark.parametrize("size", [(640.0, 480.0), ("640", "480"), (640, "480.0")])
def test_sizes_may_be_written_as_other_types(size: Any, photos: Path, tmp_path: Path) -> None:
    path = _write_labels(tmp_path / "other.json", [size] * 4, [KEYPOINTS_INSIDE] * 4)
    with pytest.raises(InputError, match=r"'000.png' is 640 x 480 pixels in the labels"):
        read_ground_truth(path, list_images([photos]))


@pytest.mark.parametrize("value", ["wide", -640, 640.5, True, [640], {}, 1e300, "nan", "inf", 10**400])
def test_sizes_that_are_not_whole_numbers_of_pixels_are_refused(
    value: Any, photos: Path, tmp_path: Path
) -> None:
    path = _write_labels(tmp_path / "other.json", [(64, value)] * 4, [KEYPOINTS_INSIDE] * 4)
    with pytest.raises(InputError, match=r"images\[0\]: 'height' must be a whole number of pixels") as caught:
        read_ground_truth(path, list_images([photos]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 0, "0"])
def test_only_known_sizes_are_compared(value: Any, photos: Path, tmp_path: Path) -> None:
    path = _write_labels(tmp_path / "other.json", [(640, value)] * 4, [KEYPOINTS_INSIDE] * 4)
    assert read_ground_truth(path, list_images([photos])).notes == ()


def test_without_stated_sizes_the_points_must_lie_inside(photos: Path, tmp_path: Path) -> None:
    refs = list_images([photos])
    border = [-3, 10, 2, 66, 40, 2]  # a click at the border can be a little outside the image
    assert (
        read_ground_truth(
            _write_labels(tmp_path / "a.json", [None] * 2, [KEYPOINTS_INSIDE, border]), refs
        ).notes
        == ()
    )
    keypoints_outside = [300, 200, 2, 310, 205, 2]
    with pytest.raises(InputError, match=r"belongs to other images.*point at 300, 200.*64 x 64 pixels"):
        read_ground_truth(
            _write_labels(tmp_path / "b.json", [None] * 2, [keypoints_outside, keypoints_outside]), refs
        )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_labels_in_the_frame_of_the_stored_pixels_are_refused(orientation: int, tmp_path: Path) -> None:
    """Some tools ignore the orientation in the EXIF data of a photo."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (80, 48)).save(folder / f"{number:03d}.png", exif=exif)
    refs, points = list_images([folder]), [KEYPOINTS_INSIDE] * 3
    upright, turned = ((48, 80), (80, 48)) if orientation >= 5 else ((80, 48), (48, 80))
    upright_labels = _write_labels(tmp_path / "upright.json", [upright] * 3, points)
    assert read_ground_truth(upright_labels, refs).notes == ()
    without_sizes = _write_labels(tmp_path / "unknown.json", [None] * 3, points)
    assert read_ground_truth(without_sizes, refs).notes == ()
    turned_labels = _write_labels(tmp_path / "turned.json", [turned] * 3, points)
    with pytest.raises(InputError, match=r"turned.json states width and height of 3 of 3 images") as caught:
        read_ground_truth(turned_labels, refs)
    message = str(caught.value)
    assert f"'000.png' is {turned[0]} x {turned[1]} pixels in the labels" in message
    assert "save the images upright" in message
    assert "\n" not in message


@pytest.mark.parametrize(("num_turned", "is_refused"), [(1, False), (2, True)])
def test_labels_are_refused_if_a_tenth_of_the_photos_is_turned(
    num_turned: int, is_refused: bool, tmp_path: Path
) -> None:
    """Often only some photos are turned, and a tool that ignores EXIF is wrong about all of them."""
    sizes: list[tuple[int, int] | None] = [*[(48, 80)] * num_turned, *[(80, 48)] * (10 - num_turned)]
    for number in range(10):
        Image.new("RGB", (80, 48)).save(tmp_path / f"{number:03d}.png")
    labels = _write_labels(tmp_path / "labels.json", sizes, [KEYPOINTS_INSIDE] * 10)
    refs = list_images([tmp_path / "*.png"])
    if is_refused:
        with pytest.raises(InputError, match="width and height of 2 of 10 images checked in exchanged order"):
            read_ground_truth(labels, refs)
    else:
        (note,) = read_ground_truth(labels, refs).notes
        assert "1 of 10 images checked does not fit its labels; for example, '000.png' is 48 x 80" in note


def test_map_and_evaluate_refuse_turned_labels(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(4):
        Image.new("RGB", (80, 48)).save(photos / f"{number:03d}.jpg", exif=exif)
    labels = _write_labels(tmp_path / "labels.json", [(80, 48)] * 4, [KEYPOINTS_INSIDE] * 4)
    labels.write_text(labels.read_text().replace(".png", ".jpg"))
    for command in (
        ["map", quick_run, photos, "--labels", labels],
        ["evaluate", quick_run, photos, "--labels", labels, "-o", tmp_path / "out"],
    ):
        assert selfmark(*command, "--device=cpu") == 2
        message = " ".join(capsys.readouterr().err.split())
        assert "states width and height of 4 of 4 images checked in exchanged order" in message
    assert not (tmp_path / "out").exists()


def test_objects_without_a_measurable_normalizer_are_left_out_and_counted(
    photos: Path, tmp_path: Path
) -> None:
    points = [KEYPOINTS_INSIDE, [10, 10, 2, 0, 0, 0], KEYPOINTS_INSIDE, [10, 10, 2, 10, 10, 2]]
    truth = read_ground_truth(
        _write_labels(tmp_path / "l.json", [(64, 64)] * 4, points), list_images([photos])
    )
    kept = keep_measurable(truth, "points:a,b")
    assert [ref.path.name for ref in kept.refs] == ["000.png", "002.png"]
    assert "2 of 4 annotations were left out, because the normalizer 'points:a,b'" in kept.notes[-1]
    assert keep_measurable(truth, "side") is truth
    with pytest.raises(InputError, match="cannot be measured for any object"):
        keep_measurable(truth.select([1, 3]), "points:a,b")
    with pytest.raises(InputError, match=r"unknown normalizer 'torsos'.*Did you mean 'torso'"):
        keep_measurable(truth, "torsos")


def test_bodies_without_a_torso_are_left_out_of_a_large_file(tmp_path: Path) -> None:
    """The file has 2,500 bodies; the first 720 lack a shoulder, a hip or both."""
    cv2.imwrite(str(tmp_path / "first.png"), np.zeros((64, 64, 3), np.uint8))
    names = ["left_shoulder", "right_hip", "head"]
    images, annotations = [], []
    for number in range(2_500):
        (tmp_path / f"{number}.png").hardlink_to(tmp_path / "first.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 64, "height": 64})
        shoulder, hip = [(0, 2), (2, 0), (0, 0)][number % 3] if number < 720 else (2, 2)
        keypoints = [10, 10, shoulder, 30, 40, hip, 5, 5, 2]
        annotations.append({"id": number, "image_id": number, "category_id": 1, "keypoints": keypoints})
    categories = [{"id": 1, "name": "body", "keypoints": names}]
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    kept = keep_measurable(read_ground_truth(labels, list_images([tmp_path])), "torso")
    assert [ref.path.stem for ref in kept.refs] == [str(number) for number in range(720, 2_500)]
    assert "720 of 2500 annotations were left out, because the normalizer 'torso'" in kept.notes[-1]
    assert kept.visible[:, :2].all()


def test_everything_is_checked_before_anything_is_predicted(
    quick_run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predict(*_: object) -> NoReturn:
        raise AssertionError("something was predicted")

    monkeypatch.setattr(labeled_run, "load_or_predict", predict)
    labels = _write_labels(tmp_path / "labels.json", [(64, 64)] * 8, [KEYPOINTS_INSIDE] * 8)
    other = _write_labels(tmp_path / "other.json", [(640, 480)] * 8, [KEYPOINTS_INSIDE] * 8)
    for inputs, options, problem in (
        (EvaluationInputs(photos, other), {}, "other.json belongs to other images"),
        (EvaluationInputs(photos, labels, None, other), {}, "other.json belongs to other images"),
        (EvaluationInputs(photos, labels, None, tmp_path / "no.json"), {}, "no.json"),
        (EvaluationInputs(photos, labels), {"normalizer": "torso"}, "does not name the points"),
        (EvaluationInputs(photos, labels), {"by": ["pose"]}, "has no field 'pose'"),
        (EvaluationInputs(photos, labels), {"detectors": ["sfit"]}, "Did you mean 'sift'"),
    ):
        with pytest.raises(InputError, match=problem):
            evaluate_run(quick_run, inputs, EvaluationOptions(**options), tmp_path / "out", "cpu")


def test_the_command_reports_how_many_annotations_it_leaves_out(
    quick_run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [*[KEYPOINTS_INSIDE] * 10, *[[10, 10, 2, 0, 0, 0]] * 2]
    labels = _write_labels(tmp_path / "labels.json", [(64, 64)] * 12, points)
    run = tmp_path / "run"
    shutil.copytree(quick_run, run)  # predictions are stored in the run folder
    options = ["--labels", labels, "--normalizer=points:a,b", "-o", tmp_path / "out", "--device=cpu"]
    assert selfmark("evaluate", run, photos, *options, "--set=draws=1", "--set=num_samples=6") == 0
    assert "2 of 12 annotations were left out" in capsys.readouterr().err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["train_images_used"] + metrics["test_images_used"] == 10
