"""Test smoothed predictions: their order, filled frames, every format, and `predict --smooth`."""

from __future__ import annotations

import csv
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from selfmark.config import Smoothing
from selfmark.detector import Detector, Prediction
from selfmark.errors import InputError
from selfmark.export import FORMATS, get_writer
from selfmark.image_ref import ImageRef
from selfmark.points import Landmarks
from selfmark.trajectories.smoothed_predictions import check_smoothable, record_smoothing, smooth_predictions
from tests.conftest import selfmark
from tests.export.fakes import CARD, NAMES

TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"
SIZE, RATE, FRAMES = (64, 48), 10, 12
SETTINGS = Smoothing(max_gap=0.2)  # 0.2 seconds are two frames.
MISSING = {1: {4}, 2: {7, 8, 9}}  # mapping from the track to the frames in which it has no box
LOW_LANDMARK, LOW_FRAMES = 3, range(1, 6)  # In track 1, this landmark has low scores in these frames.


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), RATE, SIZE)
    for number in range(FRAMES):
        writer.write(np.full((SIZE[1], SIZE[0], 3), 20 * number, np.uint8))
    writer.release()
    return path


def compute_true_xy(frame: int, track: int) -> np.ndarray:
    """Return the landmarks [K, 2] of an animal, which move by the same step in every frame."""
    start = np.array([[5, 6], [12, 9], [20, 4], [9, 16]]) + 15 * (track - 1)
    return start + frame * np.array([[1, 0], [0, 1], [1, 1], [0.5, 0.5]])


def make_predictions(clip: Path) -> Iterator[Prediction]:
    """Yield the objects of two tracks in batches of five; in each frame, track 2 comes first."""
    objects = [(frame, track) for frame in range(FRAMES) for track in (2, 1) if frame not in MISSING[track]]
    for batch in (objects[start : start + 5] for start in range(0, len(objects), 5)):
        score = np.full((len(batch), 4), 0.9, np.float32)
        for row, (frame, track) in enumerate(batch):
            if track == 1 and frame in LOW_FRAMES:
                score[row, LOW_LANDMARK] = 0.1
        xy = np.stack([compute_true_xy(*item) for item in batch]).astype(np.float32)
        refs = tuple(ImageRef(clip, frame, (frame, 2.0, 20.0, 20.0), track) for frame, track in batch)
        yield Prediction(refs, np.tile(np.array(SIZE), (len(batch), 1)), Landmarks(xy, score, NAMES))


def test_short_gaps_are_filled_with_new_frames(clip: Path) -> None:
    batches = list(smooth_predictions(make_predictions(clip), SETTINGS))
    refs = [ref for batch in batches for ref in batch.refs]
    expected = [(frame, track) for frame in range(FRAMES) for track in (2, 1)]
    expected = [item for item in expected if item not in {(7, 2), (8, 2), (9, 2)}]  # This gap is too long.
    assert [(ref.frame, ref.track) for ref in refs] == expected
    (added,) = (ref for ref in refs if (ref.frame, ref.track) == (4, 1))
    assert added.box == pytest.approx((4.0, 2.0, 20.0, 20.0))
    landmarks = batches[0].landmarks
    assert landmarks.motion is not None
    for row, (frame, track) in enumerate(expected):
        truth = compute_true_xy(frame, track)
        if track == 1 and frame in LOW_FRAMES:
            assert np.isnan(landmarks.xy[row, LOW_LANDMARK]).all()
            truth[LOW_LANDMARK] = np.nan
        np.testing.assert_allclose(landmarks.xy[row], truth, atol=1e-3)
        assert landmarks.motion.is_filled[row].any() == ((frame, track) == (4, 1))
    np.testing.assert_allclose(landmarks.motion.seconds, [frame / RATE for frame, _ in expected], atol=1e-6)
    np.testing.assert_allclose(landmarks.motion.speed[:, 0], RATE, atol=0.01)


def test_objects_without_tracks_are_refused(clip: Path) -> None:
    twins = [ImageRef(clip, 3, (0, 0, 5, 5)), ImageRef(clip, 3, (9, 0, 5, 5))]
    with pytest.raises(InputError, match="needs the track of each object, but frame 3 of"):
        check_smoothable(twins)
    with pytest.raises(InputError, match="is an image"):
        check_smoothable([ImageRef(Path("a.png"))])
    check_smoothable([ImageRef(clip, 3, None, 1), ImageRef(clip, 3, None, 2), ImageRef(clip, 4, None, 1)])


# Mapping from the format to a function that reads how the landmarks of a written file were smoothed.
STATEMENTS: dict[str, Callable[[Path], Any]] = {
    "csv": lambda path: next(csv.DictReader(path.read_text().splitlines()))["smoothing"],
    "parquet": lambda path: (
        pytest.importorskip("pyarrow.parquet").read_schema(path).metadata[b"selfmark.smoothing"]
    ),
    "coco": lambda path: json.loads(path.read_text())["categories"][0]["smoothing"],
    "coco-results": lambda path: json.loads(path.with_name("images.json").read_text())["categories"][0][
        "smoothing"
    ],
    "cvat": lambda path: json.loads(zipfile.ZipFile(path).read("annotations/person_keypoints_default.json"))[
        "categories"
    ][0]["smoothing"],
    "dlc": lambda path: path.name + path.read_text().splitlines()[0],
    "dlc-h5": lambda path: pytest.importorskip("pandas").read_hdf(path).columns[0][0],
    "label-studio": lambda path: json.loads(path.read_text())[0]["predictions"][0]["model_version"],
    "lightning-pose": lambda folder: (folder / "CollectedData_track_1.csv").read_text().splitlines()[0],
    "nwb": lambda path: (
        pytest.importorskip("pynwb")
        .NWBHDF5IO(str(path), "r")
        .read()
        .processing["behavior"]["PoseEstimation_000_track_1"]
        .description
    ),
    "sleap": lambda path: pytest.importorskip("sleap_io").load_slp(str(path)).provenance["smoothing"],
    "sleap-analysis": lambda path: pytest.importorskip("h5py").File(path)["provenance"][()],
    "ultralytics": lambda path: path.read_text(),
}
PACKAGES = {"parquet": "pyarrow", "dlc-h5": "tables", "nwb": "ndx_pose", "sleap": "sleap_io"}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_that_landmarks_are_smoothed(name: str, clip: Path, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES.get(name.removesuffix("-analysis"), "numpy"))
    folder = tmp_path / "out"
    folder.mkdir()
    predictions = smooth_predictions(make_predictions(clip), SETTINGS)
    path = get_writer(name)(predictions, record_smoothing(CARD, SETTINGS), folder)
    assert "kalman" in str(STATEMENTS[name](path))
    text = b"".join(
        file.read_bytes() for file in folder.rglob("*") if file.suffix in (".csv", ".json", ".txt")
    )
    assert b"nan" not in text.lower().replace(b"nano", b""), "unknown positions are empty or marked as absent"


def test_tables_have_speed_and_distance(clip: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    tables = []
    for name in ("csv", "parquet"):
        predictions = smooth_predictions(make_predictions(clip), SETTINGS)
        path = get_writer(name)(predictions, record_smoothing(CARD, SETTINGS), tmp_path)
        rows = (
            list(csv.DictReader(path.read_text().splitlines()))
            if name == "csv"
            else parquet.read_table(path).to_pylist()
        )
        tables.append(rows)
    for text, typed in zip(*tables, strict=True):
        for column in ("x", "y", "speed", "distance"):
            number = None if text[column] == "" else float(text[column])
            assert number == (None if typed[column] is None else pytest.approx(typed[column], abs=1e-3))
        assert (text["filled"] == "1") == typed["filled"]
        assert float(text["seconds"]) == pytest.approx(typed["seconds"])
    last = [row for row in tables[1] if row["track"] == 1 and row["landmark"] == "nose"][-1]
    assert last["distance"] == pytest.approx(11, abs=0.01), "one pixel per frame"
    assert any(row["x"] is None for row in tables[1])


def test_predict_smooths_and_names_the_method_in_the_table(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def predict(*options: str) -> int:
        return selfmark("predict", TOY_DETECTOR, clip, "-o", tmp_path / "out", "--device=cpu", *options)

    def read() -> list[dict[str, str]]:
        with open(tmp_path / "out" / "landmarks.csv", newline="") as handle:
            return list(csv.DictReader(handle))

    assert predict("--smooth=median", "--draw", "--set=smoothing.min_relative_score=0") == 0
    smooth = read()
    assert {row["smoothing"] for row in smooth} == {"median"}
    assert len(smooth) == 16 * FRAMES
    assert (tmp_path / "out" / "clip_landmarks.mp4").is_file()
    capsys.readouterr()
    for options, message in (
        (["--smooth=kalmann"], "Did you mean 'kalman'?"),
        (["--smooth=auto", "--set=smoothing.window=-1"], "smoothing.window must be greater than 0"),
        (
            ["--smooth=kalman", "--set=smoothing.time_constant=1e-80"],
            "smoothing.time_constant must be between 0.0001 and 5",
        ),
        (
            ["--smooth=kalman", "--set=smoothing.max_rate=1e-300"],
            "smoothing.max_rate must be between 0.001 and 1,000,000",
        ),
        (["--set=images.size=64"], "--set images.size has no effect on predictions"),
        (["--set=smoothing.max_gap=1"], "--set smoothing.max_gap belongs to --smooth, which is missing"),
        (["--set=smoothing.max_gap=1", "--smooth=none"], "belongs to --smooth, which is missing"),
        (
            ["--set=min_contrast=20"],
            "--set tracking.min_contrast belongs to --find-animals, which is missing",
        ),
    ):
        assert predict(*options) == 2
        error = capsys.readouterr().err.strip()
        assert message in error
        assert "\n" not in error


def test_a_single_landmark_without_boxes_has_no_limit_for_jumps(clip: Path) -> None:
    """A box around one point has no size, so it cannot tell a jump from a movement."""
    x = 5 + np.arange(FRAMES) + 3 * (np.arange(FRAMES) % 2)  # a zigzag is never the median of its neighbors
    xy = np.stack([x, np.full(FRAMES, 20)], axis=1)[:, None].astype(np.float32)
    refs = tuple(ImageRef(clip, frame) for frame in range(FRAMES))
    landmarks = Landmarks(xy, np.full((FRAMES, 1), 0.9, np.float32), NAMES[:1])
    prediction = Prediction(refs, np.tile(np.array(SIZE), (FRAMES, 1)), landmarks)
    smooth = list(smooth_predictions(iter([prediction]), SETTINGS))
    assert sum(len(batch.refs) for batch in smooth) == FRAMES
    for batch in smooth:
        assert np.isfinite(batch.landmarks.xy).all()
        assert batch.landmarks.motion is not None
        assert not batch.landmarks.motion.is_filled.any()


def test_smoothing_that_leaves_no_position_is_refused(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file claims to have results, and the message names the setting that left all positions out."""
    for number, name in enumerate(FORMATS):
        options = ["--smooth=auto", "--set=smoothing.min_score=1", "--device=cpu", "--format", name]
        options += ["--draw"] if number == 0 else []
        assert selfmark("predict", TOY_DETECTOR, clip, "-o", tmp_path / "out", *options) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"--smooth leaves no position of any landmark in {clip}: the highest score is 0." in error
        assert error.endswith("and smoothing.min_score is 1; lower smoothing.min_score")
        assert not (tmp_path / "out").exists()


def test_positions_of_hidden_landmarks_do_not_count(clip: Path) -> None:
    settings = replace(SETTINGS, min_score=0.5)
    rows = [
        (refs, sizes, replace(points, score=points.score * [1, 0.1, 0.1, 0.1]))
        for refs, sizes, points in make_predictions(clip)
    ]
    assert list(smooth_predictions([Prediction(*row) for row in rows], settings, [0, 1]))
    with pytest.raises(InputError, match=r"the highest score is 0\.09, and smoothing\.min_score is 0\.5"):
        list(smooth_predictions([Prediction(*row) for row in rows], settings, [1, 2, 3]))


def test_frames_in_which_only_hidden_landmarks_have_positions_are_left_out(clip: Path) -> None:
    """Formats with a box around the landmarks could not describe such an object."""
    batches = smooth_predictions(make_predictions(clip), SETTINGS, [LOW_LANDMARK])
    frames = [ref.frame for batch in batches for ref in batch.refs if ref.track == 1]
    assert frames == [0, *range(6, FRAMES)]


def test_videos_without_any_object_are_noted_and_not_drawn(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One video has only low scores, another one cannot be read: both are noted, and neither is drawn."""
    other_video, broken_video = tmp_path / "other.avi", tmp_path / "broken.avi"
    shutil.copy(clip, other_video)
    broken_video.write_bytes(b"no video")
    predict = Detector.predict

    def lower_scores(self: Detector, refs: Sequence[ImageRef], batch: int) -> Iterator[Prediction]:
        for prediction in predict(self, refs, batch):
            low = np.array([ref.path == other_video for ref in prediction.refs])[:, None]
            points = prediction.landmarks
            yield prediction._replace(landmarks=replace(points, score=np.where(low, 0.0, points.score)))

    monkeypatch.setattr(Detector, "predict", lower_scores)
    options = ["--smooth=auto", "--set=smoothing.min_score=0.000001", "--draw", "--device=cpu"]
    options += ["--set=smoothing.min_relative_score=0", "-o", str(tmp_path / "out")]
    assert selfmark("predict", TOY_DETECTOR, tmp_path, *options) == 0
    out, error = (" ".join(text.replace("\n", "").split()) for text in capsys.readouterr())
    drawn = [path.name for path in (tmp_path / "out").glob("*.mp4")]
    assert drawn == ["clip_landmarks.mp4"]
    assert out.count("labeled video: ") == 1
    assert "clip_landmarks.mp4" in out
    assert f"--smooth leaves no position of any landmark in {other_video}: the highest score is 0" in error
    assert f"1 of 1 frame of {broken_video} could not be read" in error
