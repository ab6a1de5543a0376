"""Test tracks in every format: animals keep their identity if a file is read back without selfmark.

COCO files are also read back by selfmark.

Animal 7 is missing in one frame, animal 3 in another, and their order changes between frames.
"""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from selfmark.detector import Prediction
from selfmark.export import FORMATS, get_writer
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.points import Landmarks
from tests.export.fakes import CARD, NAMES
from tests.stored_results import read_files

SIZE = (48, 32)
FRAME_RATE = 25.0
VISIBLE = [(0, 7), (0, 3), (1, 3), (1, 7), (2, 3), (3, 7), (3, 3), (4, 7)]  # frame, track
Tracks = dict[tuple[int, int], np.ndarray]  # mapping from (frame, track) to xy [K, 2]


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "arena.avi"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), FRAME_RATE, SIZE)
    for number in range(6):
        video.write(np.full((SIZE[1], SIZE[0], 3), 40 * number, np.uint8))
    video.release()
    return path


@pytest.fixture
def truth() -> Tracks:
    rng = np.random.default_rng(0)
    return {key: (rng.random((len(NAMES), 2)) * 28 + 1).astype(np.float32) for key in VISIBLE}


def _make_predictions(clip: Path, truth: Tracks) -> list[Prediction]:
    """Return batches of tracked objects; the left edge of a box is the number of its track."""
    refs = [ImageRef(clip, frame, (float(track), 1.0, 20.0, 20.0), track) for frame, track in VISIBLE]
    batches = []
    for start in range(0, len(refs), 3):  # batches of 3 end in the middle of frames
        batch = slice(start, start + 3)
        xy = np.stack([truth[key] for key in VISIBLE[batch]])
        score = np.full((len(xy), len(NAMES)), 0.5, np.float32)
        batches.append(
            Prediction(tuple(refs[batch]), np.array([SIZE] * len(xy)), Landmarks(xy, score, NAMES))
        )
    return batches


def _group_rows(rows: list[dict[str, Any]]) -> Tracks:
    """Return the points of each animal and frame from a table with one row for each landmark."""
    result: Tracks = {}
    animals: dict[str, set[str]] = {}
    for row in rows:
        animals.setdefault(str(row["instance"]), set()).add(str(row["track"]))
        points = result.setdefault((int(row["frame"]), int(row["track"])), np.zeros((len(NAMES), 2)))
        points[NAMES.index(row["landmark"])] = float(row["x"]), float(row["y"])
    assert animals == {"0": {"7"}, "1": {"3"}}, "each instance is one animal"
    return result


def _read_csv(path: Path) -> Tracks:
    with open(path, newline="", encoding="utf-8") as handle:
        return _group_rows(list(csv.DictReader(handle)))


def _read_parquet(path: Path) -> Tracks:
    return _group_rows(pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist())


def _get_xy(annotation: dict[str, Any]) -> np.ndarray:
    """Return the points of a COCO annotation, [K, 2]."""
    return np.reshape(annotation["keypoints"], (-1, 3))[:, :2]


def _read_coco(path: Path) -> Tracks:
    coco: Any = pytest.importorskip("pycocotools.coco").COCO(str(path))
    return {
        (coco.imgs[annotation["image_id"]]["frame"], annotation["track_id"]): _get_xy(annotation)
        for annotation in coco.anns.values()
    }


def _read_coco_results(path: Path) -> Tracks:
    coco: Any = pytest.importorskip("pycocotools.coco").COCO(str(path.with_name("images.json")))
    results = coco.loadRes(str(path))
    return {
        (coco.imgs[annotation["image_id"]]["frame"], annotation["track_id"]): _get_xy(annotation)
        for annotation in results.anns.values()
    }


def _read_cvat(path: Path) -> Tracks:
    """Read as CVAT does, which makes tracks from the attribute `track_id`."""
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("annotations/person_keypoints_default.json"))
    frames = {
        image["id"]: int(Path(image["file_name"]).stem.removeprefix("frame_")) for image in data["images"]
    }
    return {
        (frames[annotation["image_id"]], annotation["attributes"]["track_id"]): _get_xy(annotation)
        for annotation in data["annotations"]
    }


def _read_dlc(path: Path) -> Tracks:
    pandas: Any = pytest.importorskip("pandas")
    table = (
        pandas.read_hdf(path, "df_with_missing")
        if path.suffix == ".h5"
        else pandas.read_csv(path, header=[0, 1, 2, 3], index_col=0)
    )
    result = {}
    for frame in table.index:
        for individual in table.columns.unique("individuals"):
            columns = table.xs(("DLC_selfmark", individual), axis=1, level=[0, 1])
            values = columns.loc[frame].to_numpy(float).reshape(-1, 3)
            if not np.isnan(values).any():
                result[frame, int(individual.removeprefix("track_"))] = values[:, :2]
    return result


def _read_dlc_h5(path: Path) -> Tracks:
    pytest.importorskip("tables")
    return _read_dlc(path)


def _read_sleap(path: Path) -> Tracks:
    labels = pytest.importorskip("sleap_io").load_slp(str(path))
    assert [track.name for track in labels.tracks] == ["track_3", "track_7"]
    return {
        (frame.frame_idx, int(instance.track.name.removeprefix("track_"))): instance.numpy()
        for frame in labels
        for instance in frame.instances
    }


def _read_sleap_analysis(path: Path) -> Tracks:
    pytest.importorskip("sleap_io")
    result = {}
    with pytest.importorskip("h5py").File(path) as file:
        names = [name.decode() for name in file["track_names"][:]]
        tracks = file["tracks"][:].T  # [frames, landmarks, 2, tracks]
        for frame, _, _, number in np.argwhere(np.isfinite(tracks[:, :1, :1])):
            result[int(frame), int(names[number].removeprefix("track_"))] = tracks[frame, ..., number]
    return result


def _read_nwb(path: Path) -> Tracks:
    pynwb: Any = pytest.importorskip("pynwb")
    pytest.importorskip("ndx_pose")
    result: Tracks = {}
    with pynwb.NWBHDF5IO(str(path), "r") as handle:
        behavior = handle.read().processing["behavior"]
        for track in (3, 7):
            pose = behavior[f"PoseEstimation_000_track_{track}"]
            assert pose.description.startswith(f"Object track_{track} of arena.avi")
            first = pose[NAMES[0]]
            for row, time in enumerate(first.timestamps[:]):
                points = [pose[name].data[row] for name in NAMES]
                result[round(time * FRAME_RATE), track] = np.array(points)
    return result


def _read_ultralytics(path: Path) -> Tracks:
    """Take the left edge of a box as the number of its track, because the format has no tracks."""
    result = {}
    for file in path.parent.glob("*/labels/*.txt"):
        for line in file.read_text().splitlines():
            row = np.array(line.split(), float)
            left = (row[1] - row[3] / 2) * SIZE[0]
            frame = int(file.stem.split("_frame")[1])
            result[frame, round(left)] = row[5:].reshape(-1, 3)[:, :2] * SIZE - 0.5
    return result


def _read_label_studio(path: Path) -> Tracks:
    interface: Any = pytest.importorskip("label_studio_sdk.label_interface").LabelInterface(
        path.with_name("label_config.xml").read_text(encoding="utf-8")
    )
    result = {}
    for task in json.loads(path.read_text()):
        (prediction,) = task["predictions"]
        assert interface.validate_prediction(prediction, return_errors=True) == []
        picture = path.parent / "frames" / task["data"]["image"].split("/")[-1]
        frame = int(picture.stem.split("_")[-1])
        assert np.array(Image.open(picture)).mean() == pytest.approx(40 * frame, abs=4), (
            "the task shows the image of this frame"
        )
        for box in (region for region in prediction["result"] if region["type"] == "rectanglelabels"):
            points = [
                region["value"] for region in prediction["result"] if region.get("parentID") == box["id"]
            ]
            percent = np.array([(point["x"], point["y"]) for point in points])
            result[frame, int(box["meta"]["text"][0].removeprefix("track "))] = percent * SIZE / 100 - 0.5
    return result


def _read_lightning_pose(folder: Path) -> Tracks:
    io: Any = pytest.importorskip("lightning_pose.utils.io")
    result = {}
    for track in (3, 7):
        labels = io.parse_label_csv(str(folder / f"CollectedData_track_{track}.csv"))
        assert labels.keypoint_names == list(NAMES)
        for name, points in zip(labels.image_names, labels.keypoints.numpy(), strict=True):
            frame = int(Path(name).stem.removeprefix("img"))
            assert np.array(Image.open(folder / name)).mean() == pytest.approx(40 * frame, abs=4)
            result[frame, track] = points
    return result


READERS: dict[str, Callable[[Path], Tracks]] = {
    "csv": _read_csv,
    "parquet": _read_parquet,
    "coco": _read_coco,
    "coco-results": _read_coco_results,
    "cvat": _read_cvat,
    "dlc": _read_dlc,
    "dlc-h5": _read_dlc_h5,
    "sleap": _read_sleap,
    "sleap-analysis": _read_sleap_analysis,
    "nwb": _read_nwb,
    "ultralytics": _read_ultralytics,
    "label-studio": _read_label_studio,
    "lightning-pose": _read_lightning_pose,
}


def test_every_format_has_a_reader() -> None:
    assert set(READERS) == set(FORMATS)


@pytest.mark.filterwarnings("ignore:register_new_resolver")
@pytest.mark.parametrize("name", READERS)
def test_animals_keep_their_identity(name: str, clip: Path, truth: Tracks, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    result = READERS[name](get_writer(name)(_make_predictions(clip, truth), CARD, folder))
    assert set(result) == set(VISIBLE)
    for key, points in result.items():
        np.testing.assert_allclose(points, truth[key], atol=2e-3, err_msg=str(key))


@pytest.mark.parametrize("name", ["label-studio", "lightning-pose", "ultralytics"])
def test_a_folder_of_frames_is_never_overwritten(
    name: str, clip: Path, truth: Tracks, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    get_writer(name)(_make_predictions(clip, truth), CARD, folder)
    before = read_files(folder)
    with pytest.raises(Exception, match="already exists; remove it or choose another output folder"):
        get_writer(name)(_make_predictions(clip, truth), CARD, folder)
    assert read_files(folder) == before


def test_tracks_are_read_back_from_coco(clip: Path, truth: Tracks, tmp_path: Path) -> None:
    path = get_writer("coco")(_make_predictions(clip, truth), CARD, tmp_path)
    assert {(ref.frame, ref.track) for ref in list_images([path])} == set(VISIBLE)
