"""Test that no command replaces one of its own input files, even under another name or through a link."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from selfmark.errors import InputError
from selfmark.images.input_files import require_inputs_kept
from selfmark.inspection.image_check import FILES
from tests.conftest import QUICK_OPTIONS, selfmark
from tests.images.videos import encode_video
from tests.paper.datasets import face_miniatures
from tests.reliability.refusals import read_refusal
from tests.stored_results import read_files

TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"


def _require_refusal(
    folder: Path, capsys: pytest.CaptureFixture[str], replaced: Path, *command: object
) -> None:
    """Assert that a command names the file that it would replace, and changes nothing in the folder."""
    error = read_refusal(folder, capsys, *command)
    assert error.startswith(f"selfmark: the results would replace the input {replaced}")


def _save_image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((64, 48), 60).convert("RGB").save(path)
    return path


def _write_coco(path: Path) -> Path:
    """Write a COCO file with one object in a.png, and this image next to it."""
    _save_image(path.with_name("a.png"))
    image = {"id": 1, "file_name": "a.png", "width": 64, "height": 48}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [5, 5, 30, 30]}
    category = {"id": 1, "name": "x", "keypoints": ["l"]}
    path.write_text(json.dumps({"images": [image], "annotations": [box], "categories": [category]}))
    return path


def test_drawing_does_not_replace_photos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = _save_image(tmp_path / "drawn" / "0.jpg")
    command = ("predict", TOY_DETECTOR, photo.parent, "--draw", "-o", tmp_path)
    _require_refusal(tmp_path, capsys, photo, *command)


def test_drawing_does_not_replace_videos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.mp4", "a_landmarks.mp4"):
        encode_video(tmp_path / name, "mpeg4", frames=3)
    command = ("predict", TOY_DETECTOR, tmp_path, "--draw", "-o", tmp_path)
    _require_refusal(tmp_path, capsys, tmp_path / "a_landmarks.mp4", *command)


def test_outputs_are_checked_before_animals_are_tracked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the video was tracked before the outputs were checked")

    monkeypatch.setattr("selfmark.tracking.regions.track_animals", fail)
    for name in ("a.mp4", "a_landmarks.mp4"):
        encode_video(tmp_path / name, "mpeg4", frames=3)
    command = ("predict", TOY_DETECTOR, tmp_path, "--draw", "-o", tmp_path, "--find-animals=1")
    _require_refusal(tmp_path, capsys, tmp_path / "a_landmarks.mp4", *command)


@pytest.mark.parametrize(
    ("name", "output_format"),
    [
        ("landmarks.json", "coco"),
        ("images.json", "coco-results"),
        ("tasks.json", "label-studio"),
        ("predictions.json", "csv"),
    ],
)
def test_no_format_replaces_a_coco_file(
    name: str, output_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = _write_coco(tmp_path / name)
    command = ("predict", TOY_DETECTOR, labels, "--format", output_format, "-o", tmp_path)
    _require_refusal(tmp_path, capsys, labels, *command)


def test_predictions_do_not_replace_boxes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo, boxes = _save_image(tmp_path / "a.png"), tmp_path / "landmarks.csv"
    boxes.write_text("image,x,y,w,h\na.png,5,5,30,30\n")
    command = ("predict", TOY_DETECTOR, photo, "--boxes", boxes, "-o", tmp_path)
    _require_refusal(tmp_path, capsys, boxes, *command)


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_link_counts_as_the_file_that_it_points_to(
    link: Callable[[Path, Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = _write_coco(tmp_path / "labels.json")
    link(labels, tmp_path / "landmarks.json")
    command = ("predict", TOY_DETECTOR, labels, "--format=coco", "-o", tmp_path)
    _require_refusal(tmp_path, capsys, labels, *command)


def test_earlier_results_are_replaced(tmp_path: Path) -> None:
    labels = _write_coco(tmp_path / "labels.json")
    command = ("predict", TOY_DETECTOR, labels, "--format=coco", "--draw", "-o", tmp_path)
    assert selfmark(*command) == 0
    first = (tmp_path / "landmarks.json").stat()
    assert selfmark(*command) == 0
    assert (tmp_path / "landmarks.json").stat().st_ino != first.st_ino


@pytest.mark.parametrize("name", FILES)
def test_a_check_does_not_replace_its_images_or_labels(
    name: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if path.suffix == ".json":
        _write_coco(path)
    else:
        _save_image(path)
    command = ("check", photos, path, "-o", tmp_path, *QUICK_OPTIONS)
    _require_refusal(tmp_path, capsys, path, *command)


def test_a_check_writes_only_the_files_that_it_announces(photos: Path, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes.csv"
    boxes.write_text("image,x,y,w,h\n" + "".join(f"{path.name},5,5,30,30\n" for path in photos.iterdir()))
    command = ("check", photos, "--boxes", boxes, "-o", tmp_path / "out", *QUICK_OPTIONS)
    assert selfmark(*command) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILES)


def test_an_evaluation_does_not_replace_its_labels(
    quick_run: Path, labeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "metrics.json"
    shutil.copy(labeled / "labels.json", labels)
    for option in ("--labels", "--train-labels"):
        other = labeled / "labels.json"
        given = ("--labels", other) if option == "--train-labels" else ()
        command = ("evaluate", quick_run, labeled / "images", *given, option, labels, "-o", tmp_path)
        _require_refusal(tmp_path, capsys, labels, *command)


def test_a_packed_detector_does_not_replace_the_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(TOY_DETECTOR, tmp_path / "model")
    weights = tmp_path / "model" / "weights.safetensors"
    _require_refusal(tmp_path, capsys, weights, "models", "save", tmp_path / "model", weights)


def test_written_data_sets_do_not_replace_their_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = face_miniatures.make_celeba(tmp_path / "celeba")
    assert selfmark("datasets", "write", "celeba", root, "-o", tmp_path / "coco") == 0
    written = tmp_path / "coco"
    assert selfmark("datasets", "write", "celeba", root, "-o", written) == 0
    _require_refusal(
        tmp_path, capsys, written / "train.json", "datasets", "write", "celeba", written, "-o", written
    )
    points = ("--points", written / "test.json")
    _require_refusal(
        tmp_path, capsys, written / "test.json", "datasets", "write", "celeba", root, *points, "-o", written
    )


@pytest.mark.parametrize("name", ["train.json", "fit.json"])
@pytest.mark.parametrize("content", ["mine", '{"info": {}}', '{"info": ' + "[" * 9000, '{"images": []}'])
def test_written_data_sets_do_not_replace_files_of_others(
    name: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = face_miniatures.make_celeba(tmp_path / "celeba")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text(content)
    before = read_files(tmp_path)
    assert selfmark("datasets", "write", "celeba", root, "-o", tmp_path / "out") == 2
    error = capsys.readouterr().err.strip()
    assert f"{tmp_path / 'out' / name} was not written by 'selfmark datasets write'" in error
    assert "\n" not in error
    assert read_files(tmp_path) == before


def test_folders_and_patterns_and_missing_files_do_not_count_as_input_files(tmp_path: Path) -> None:
    output = tmp_path / "a.csv"
    output.touch()
    require_inputs_kept([output], [tmp_path, tmp_path / "*.csv", tmp_path / "b.csv", "x\0y", None])
    require_inputs_kept([tmp_path / "missing.csv"], [tmp_path / "missing.csv"])
    with pytest.raises(InputError, match=r"would replace the input .*a\.csv: choose another output"):
        require_inputs_kept([output], [output])
