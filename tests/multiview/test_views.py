"""Test views: invalid options, merged cards, and `discover`, `predict` and other commands with two views."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

import selfmark as selfmark_package
from selfmark.annotations import build_annotated_objects
from selfmark.demo.scene import Scene
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluation.labeled_run import crop_objects
from selfmark.image_ref import ImageRef
from selfmark.multiview.view_boxes import View, parse_views, read_views, require_views_inside_all
from selfmark.multiview.view_detector import merge_cards
from selfmark.multiview.view_runs import VIEW_SETTINGS, discover_views
from tests.conftest import QUICK_OPTIONS, selfmark
from tests.export.fakes import CARD
from tests.images.videos import encode_changing_video

VIEWS = ["--views", "top=0,0,64,64", "bottom=0,64,64,64"]


@pytest.fixture(scope="module")
def two_view_folder(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images whose lower half is another view: the upper half upside down, in other colors."""
    folder = tmp_path_factory.mktemp("mirrored")
    for index, image in enumerate(scene.images[:12]):
        two_views = np.concatenate([image, 255 - image[::-1]])
        cv2.imwrite(str(folder / f"{index:03d}.png"), two_views[..., ::-1])
    return folder


@pytest.fixture(scope="module")
def run(two_view_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("views") / "run"
    assert selfmark("discover", two_view_folder, "-o", output, *VIEWS, *QUICK_OPTIONS) == 0
    return output


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["top=0,0,9,9"], "at least two views"),
        (["top=0,0,9,9", "TOP=9,0,9,9"], "two views are called 'TOP'"),
        (["a=0,0,9,9", "b=8,8,9,9"], "the views 'a' and 'b' overlap"),
        (["a=0,0,9,9", "b=8,8,9"], "not 'b=8,8,9'"),
        (["a=0,0,9,9", "b=9,9,0,5"], "not 'b=9,9,0,5'"),
        (["a=0,0,9,9", "../b=9,9,5,5"], "a name has letters"),
        (["a=0,0,9,9", "b=9,nan,5,5"], "takes NAME=X,Y,WIDTH,HEIGHT"),
    ],
)
def test_unusable_views_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_views(texts)


def test_views_may_touch_but_not_leave_the_image(two_view_folder: Path) -> None:
    refs = [ImageRef(path) for path in sorted(two_view_folder.iterdir())]
    require_views_inside_all(parse_views(["a=0,0,64,64", "b=0,64,64,64"]), refs)
    with pytest.raises(InputError, match=r"'b' \(0,64,64,65\) is not inside .*, which has 64 x 128 pixels"):
        require_views_inside_all(parse_views(["a=0,0,64,64", "b=0,64,64,65"]), refs)


def test_views_need_a_single_process(
    two_view_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert selfmark("discover", two_view_folder, "-o", tmp_path / "run", *VIEWS, "--device=cpu") == 2
    assert "start selfmark without torchrun" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_merged_cards_have_the_landmarks_of_all_views() -> None:
    first = replace(
        CARD, hidden=(1,), trust=(0.1, 0.2, 0.3, 0.4), verdict="good", colors=("#000001", "", "", "")
    )
    second = replace(CARD, names=("landmark_0", "b", "c", "d"), trust=(0.5,) * 4, verdict="usable")
    merged = merge_cards(["top", "side"], [first, second])
    assert merged.names[:1] + merged.names[4:6] == ("top_nose", "side_0", "side_b")
    assert merged.mirror == (0, 1, 3, 2, 4, 5, 7, 6)
    assert merged.skeleton == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert merged.hidden == (1,)
    assert merged.trust == (0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5)
    assert merged.verdict == "usable"
    assert merged.colors[0] == "#000001"
    assert len(set(merged.colors)) == 8, "landmarks of different views have different colors"
    assert merge_cards(["a", "b"], [first, replace(second, trust=(), verdict=None)]).trust == ()


def test_the_landmarks_of_two_views_are_in_one_table(
    run: Path, two_view_folder: Path, tmp_path: Path
) -> None:
    assert read_views(run) == (View("top", (0, 0, 64, 64)), View("bottom", (0, 64, 64, 64)))
    assert selfmark("predict", run, two_view_folder, "-o", tmp_path / "out", "--device=cpu", "--draw") == 0
    with open(tmp_path / "out" / "landmarks.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 12 * 8
    assert {row["instance"] for row in rows} == {"0"}
    names = [f"{view}_{landmark}" for view in ("top", "bottom") for landmark in range(4)]
    assert [row["landmark"] for row in rows[:8]] == names
    # The landmarks of each view are found by its own detector, which sees the view and nothing else.
    for number, view in enumerate(read_views(run)):
        detector = Detector.load(run / view.name)
        box = view.box
        refs = [ImageRef(path, box=box) for path in sorted(two_view_folder.iterdir())]
        (batch,) = detector.predict(refs)
        xy = np.array([(float(row["x"]), float(row["y"])) for row in rows]).reshape(12, 2, 4, 2)[:, number]
        np.testing.assert_allclose(xy, batch.landmarks.xy, atol=1e-3)
        assert (xy[..., 1] >= box[1] - 0.5).all()
        assert (xy[..., 1] <= box[1] + box[3] - 0.5).all(), "landmarks lie within the view"
    assert len(list((tmp_path / "out" / "drawn").iterdir())) == 12


@pytest.mark.parametrize("batch", [1, 2, 64])
@pytest.mark.parametrize("lacking", [(2,), (3, 4), (0, 11), (1, 2, 3, 7)])
def test_views_and_frames_are_not_mixed_up_if_frames_lack_a_view(
    lacking: tuple[int, ...], batch: int, run: Path, tmp_path: Path
) -> None:
    small = (64, 64)  # without the lower view
    sizes = [small if number in lacking else (64, 128) for number in range(1, 12)]
    video = encode_changing_video(tmp_path / "a.mkv", [(64, 128), *sizes])
    frames = [number for number in range(12) if number == 0 or number not in lacking]
    refs = [ImageRef(video, number) for number in range(12)]
    batches = list(selfmark_package.load(run).predict(refs, batch))
    assert [ref.frame for part in batches for ref in part.refs] == frames
    assert all(part.sizes.tolist() == [[64, 128]] * len(part.refs) for part in batches)
    xy = np.concatenate([part.landmarks.xy for part in batches]).reshape(len(frames), 2, 4, 2)
    for number, view in enumerate(read_views(run)):
        expected = Detector.load(run / view.name).predict([ImageRef(video, f, view.box) for f in frames])
        np.testing.assert_allclose(
            # Rounding depends on the batch size. A wrong view or frame would differ by whole pixels.
            xy[:, number],
            np.concatenate([part.landmarks.xy for part in expected]),
            atol=0.1,
        )


def test_frames_without_all_views_are_reported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = encode_changing_video(tmp_path / "a.mkv", [(64, 128), (64, 64), (64, 120), (64, 128)])
    assert selfmark("predict", run, video, "-o", tmp_path / "out", "--device=cpu") == 0
    note = f"2 of 4 frames of {video} could not be read with all views and were left out"
    assert note in capsys.readouterr().err


def test_the_detector_of_one_view_warns_about_uncropped_images(
    run: Path, two_view_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", run / "bottom", next(two_view_folder.iterdir()), "--device=cpu"]
    assert selfmark(*command, "-o", tmp_path / "whole") == 0
    note = capsys.readouterr().err
    assert f"{run / 'bottom'} was trained on the part 0,64,64,64 of every image" in note
    assert f"add --crop 0,64,64,64, or use {run}, which has all views" in note
    assert selfmark(*command, "--crop=0,64,64,64", "-o", tmp_path / "cropped") == 0
    assert "was trained on the part" not in capsys.readouterr().err


def test_a_run_with_views_is_loaded_in_python(run: Path, two_view_folder: Path, tmp_path: Path) -> None:
    detector = selfmark_package.load(run)
    files = sorted(two_view_folder.iterdir())[:3]
    points = detector([str(path) for path in files])
    assert points.xy.shape == (3, 8, 2)
    arrays = [cv2.imread(str(path))[..., ::-1] for path in files]
    np.testing.assert_allclose(detector(arrays).xy, points.xy, atol=1e-3)
    with pytest.raises(InputError, match=r"'bottom' .* is not inside image 1, which has 64 x 64 pixels"):
        detector([arrays[0], arrays[0][:64]])
    detector.save(tmp_path / "copy")
    np.testing.assert_array_equal(selfmark_package.load(tmp_path / "copy")(arrays).xy, detector(arrays).xy)
    with pytest.raises(InputError, match="has a run for each view"):
        selfmark_package.load(run, mapped=True)


def _write_labels(two_view_folder: Path, path: Path) -> None:
    """Annotate two points in the upper view and one in the lower view of every image."""
    names = sorted(image.name for image in two_view_folder.iterdir())
    points = [[10 + i, 20, 2, 40, 30 + i, 2, 12 + i, 90 + i, 2] for i in range(len(names))]
    images = [{"id": i, "file_name": name, "width": 64, "height": 128} for i, name in enumerate(names)]
    annotations = [
        {"id": i, "image_id": i, "category_id": 1, "keypoints": keypoints, "bbox": [5, 10, 50, 110]}
        for i, keypoints in enumerate(points)
    ]
    category = {"id": 1, "name": "animal", "keypoints": ["nose", "tail", "nose_below"]}
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": [category]}))


def test_evaluate_and_report_write_the_results_of_every_view(
    run: Path, two_view_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.json"
    _write_labels(two_view_folder, labels)
    options = ["--labels", labels, "--normalizer=bbox", "--device=cpu", "-o", tmp_path / "out"]
    assert selfmark("evaluate", run, two_view_folder, *options) == 0
    for name, points in (("top", ["nose", "tail"]), ("bottom", ["nose_below"])):
        metrics = json.loads((tmp_path / "out" / name / "metrics.json").read_text())
        assert metrics["points"] == points
        assert (tmp_path / "out" / name / "report" / "index.html").exists()
    printed = capsys.readouterr()
    assert "view top:" in printed.out
    assert "12 of 36 points are outside the crop" in printed.err
    assert selfmark("evaluate", run, two_view_folder, "--device=cpu", "-o", tmp_path / "unlabeled") == 0
    written = json.loads((run / "top" / "metrics.json").read_text())["unlabelled"]
    evaluated = json.loads((tmp_path / "unlabeled" / "top" / "metrics.json").read_text())["unlabelled"]
    assert evaluated["trust"] == pytest.approx(written["trust"], abs=1e-3), "the same crops as in training"
    page = run / "bottom" / "report" / "index.html"
    before = page.stat().st_mtime_ns
    assert selfmark("report", run) == 0
    assert page.stat().st_mtime_ns > before


def test_export_writes_one_file_for_every_view(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    assert selfmark("export", run, "--onnx", "-o", tmp_path) == 0
    assert {path.parent.name for path in tmp_path.rglob("model.onnx")} == {"top", "bottom"}


def test_check_reports_and_draws_every_view(
    two_view_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("selfmark.inspection.run_estimate.MEASURED_SECONDS", 0.0)
    views = ["--views", "top=0,0,64,64", "low=0,64,64,32"]
    assert selfmark("check", two_view_folder, *views, *QUICK_OPTIONS, "--recipe=upright", "-o", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "the network sees squares of 64 pixels, resized to" in printed
    assert "the network sees 64 x 32 pixels of each, stretched to" in printed
    assert "all views together: about" in printed
    for name in ("top", "low"):
        assert (tmp_path / name / "crops.jpg").exists()
        assert (tmp_path / name / "boxes.jpg").exists()


def test_labels_outside_a_crop_are_left_out() -> None:
    truth = build_annotated_objects(
        [ImageRef(Path("a.png")), ImageRef(Path("b.png"))],
        ["low", "high", "nowhere"],
        np.array([[(5.0, 12.0), (5.0, 3.0), (30.0, 2.0)], [(5.0, 3.0), (9.4, 4.0), (9.6, 4.0)]]),
        boxes=np.array([(2.0, 1.0, 20.0, 20.0), (np.nan,) * 4]),
    )
    # Integers are pixel centers, so this crop covers x from -0.5 to 9.5 and y from 1.5 to 9.5.
    cropped = crop_objects(truth, (0, 2, 10, 8))
    assert cropped.names == ("low", "high")
    np.testing.assert_array_equal(cropped.visible, [[False, True], [True, True]])
    np.testing.assert_array_equal(cropped.boxes, [(2, 2, 8, 8), (np.nan,) * 4])
    assert {ref.box for ref in cropped.refs} == {(0, 2, 10, 8)}
    assert "3 of 6 points are outside the crop" in cropped.notes[0]
    assert len(crop_objects(truth, (20, 0, 20, 9))) == 1
    with pytest.raises(InputError, match="no annotated point lies inside the crop 50,50,9,9"):
        crop_objects(truth, (50, 50, 9, 9))


def test_views_that_were_not_started_get_the_options_of_the_others(
    two_view_folder: Path, tmp_path: Path
) -> None:
    """The first view is interrupted; the second one starts when the command is repeated."""
    started: list[tuple[str, bool, object]] = []

    def discover_view(output: Path, resume: bool, settings: object, **_: object) -> None:
        started.append((output.name, resume, settings))
        output.mkdir(exist_ok=True)
        (output / "run.json").write_text("{}")
        if len(started) == 1:
            raise KeyboardInterrupt

    def start(resume: bool, settings: dict[str, int], **options: object) -> None:
        given = {"images": [str(two_view_folder)], "--set": settings} | options
        views = () if resume else parse_views(VIEWS[1:])
        discover_views([two_view_folder], views, tmp_path / "run", 1, resume, settings, given, discover_view)

    with pytest.raises(KeyboardInterrupt):
        start(False, {"M": 8}, **{"--preset": "tiny"})
    with pytest.raises(InputError, match=r"--set was \{'M': 8\} for the other views, not \{\}"):
        start(True, {}, **{"--preset": "tiny"})
    with pytest.raises(InputError, match="--preset was tiny for the other views, not fast"):
        start(True, {"M": 8}, **{"--preset": "fast"})
    start(True, {"M": 8}, **{"--preset": "tiny"})
    first, second = (view.name for view in parse_views(VIEWS[1:]))
    assert started[-2:] == [(first, True, {"M": 8}), (second, False, VIEW_SETTINGS | {"M": 8})]


def test_unsuitable_commands_and_options_are_refused_in_one_line(
    run: Path, two_view_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [
        ["evaluate", run, two_view_folder, "--crop=0,0,9,9"],
        ["name", run],
        ["correct", run],
        ["refine", run],
        ["map", run, "--labels", two_view_folder / "000.png"],
        ["check", two_view_folder, "--crop=0,0,9,9", *VIEWS, "-o", tmp_path / "new"],
        ["check", two_view_folder, "--views", "a=0,0,64,64", "b=0,64,65,64", "-o", tmp_path / "new"],
        ["predict", run, two_view_folder, "--crop=0,0,9,9", "-o", tmp_path / "out"],
        ["predict", run, two_view_folder, "--views", "a=0,0,9,9", "b=9,0,9,9", "-o", tmp_path / "out"],
        ["predict", run / "top", two_view_folder, *VIEWS, "-o", tmp_path / "out"],
        ["discover", two_view_folder, "-o", run, *VIEWS],
        ["discover", two_view_folder, "-o", tmp_path / "new", "--views", "a=0,0,64,64", "b=0,60,64,64"],
        ["discover", two_view_folder, "-o", tmp_path / "new", "--views", "a=0,0,64,64", "b=0,64,65,64"],
        ["discover", two_view_folder, "-o", tmp_path / "new", "--crop=0,0,9,9", *VIEWS],
    ]
    for command in commands:
        capsys.readouterr()
        assert selfmark(*command) == 2, command
        error = capsys.readouterr().err.strip()
        assert error.startswith("selfmark: ")
        assert "\n" not in error
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out").exists()
    assert selfmark("discover", "-o", run, "--resume", "--device=cpu") == 0, "both views are finished"
