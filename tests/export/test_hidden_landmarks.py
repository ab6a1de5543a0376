"""Test that every format leaves hidden landmarks out; independent readers read the files back."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
import yaml

from selfmark.config import Images, Network
from selfmark.detector import Prediction
from selfmark.export import FORMATS, get_writer, visible_points
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard, visible_card
from selfmark.model.colors import landmark_colors, palette
from selfmark.points import Landmarks

NAMES = ("nose", "left ear", "right ear", "left foot", "right foot", "tail")
CARD = ModelCard(
    names=NAMES,
    mirror=(0, 2, 1, 4, 3, 5),
    skeleton=((0, 1), (0, 2), (3, 5), (1, 4), (4, 5)),
    images=Images(),
    network=Network(),
    refine="parabola",
    flip_test=False,
    provenance={},
    colors=("", "#e69f00", "", "", "#000000", ""),
    hidden=(0, 3),
    confirmed=(1, 2, 3),
)
KEPT = ["left ear", "right ear", "right foot", "tail"]  # landmarks 1, 2, 4 and 5
EDGES = {("left ear", "right foot"), ("right foot", "tail")}
PAIRS = {frozenset({"left ear", "right ear"})}  # the partner of right foot is hidden


@pytest.fixture
def predictions(tmp_path: Path) -> list[Prediction]:
    """Predictions for two frames of a video, and for two still images of different sizes."""
    video = tmp_path / "clip.mp4"
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 48))
    for level in (30, 90):
        writer.write(np.full((48, 64, 3), level, np.uint8))
    writer.release()
    for name, size in (("a.png", (48, 64)), ("b.png", (50, 70))):
        cv2.imwrite(str(tmp_path / name), np.zeros((*size, 3), np.uint8))
    points = np.array([[5.0, 6], [11, 8], [17, 10], [23, 12], [29, 14], [35, 16]], np.float32)

    def predict(*refs: ImageRef) -> Prediction:
        xy = points + np.arange(len(refs), dtype=np.float32)[:, None, None]
        sizes = np.array([(70, 50) if ref.path.name == "b.png" else (64, 48) for ref in refs], np.int64)
        score = np.tile(np.linspace(0.1, 0.6, 6, dtype=np.float32), (len(refs), 1))
        return Prediction(refs, sizes, Landmarks(xy, score, NAMES))

    return [
        predict(ImageRef(video, 0), ImageRef(video, 1)),
        predict(ImageRef(tmp_path / "a.png"), ImageRef(tmp_path / "b.png")),
    ]


# The content of a file: landmark names in order, edges and mirror pairs as pairs of names (None if the format
# does not store them), and the x coordinates of the first object.
Content = tuple[list[str], set[tuple[str, str]] | None, set[frozenset[str]] | None, list[float]]


def _read_category(category: dict[str, object], x: list[float]) -> Content:
    names, skeleton, flip = category["keypoints"], category["skeleton"], category["flip_idx"]
    assert isinstance(names, list)
    assert isinstance(skeleton, list)
    assert isinstance(flip, list)
    edges = {(names[a - 1], names[b - 1]) for a, b in skeleton}
    return names, edges, {frozenset({names[a], names[b]}) for a, b in enumerate(flip) if a != b}, x


def _read_coco(path: Path) -> Content:
    content = json.loads(path.read_text())
    return _read_category(content["categories"][0], content["annotations"][0]["keypoints"][::3])


def _read_coco_results(path: Path) -> Content:
    companion = json.loads(path.with_name("images.json").read_text())
    return _read_category(companion["categories"][0], json.loads(path.read_text())[0]["keypoints"][::3])


def _read_cvat(path: Path) -> Content:
    with zipfile.ZipFile(path) as archive:
        content = json.loads(archive.read(archive.namelist()[0]))
    return _read_category(content["categories"][0], content["annotations"][0]["keypoints"][::3])


def _read_csv(path: Path) -> Content:
    with open(path, newline="") as handle:
        rows = list(csv.DictReader(handle))
    first = [row for row in rows if (row["image"], row["frame"]) == (rows[0]["image"], rows[0]["frame"])]
    return [row["landmark"] for row in first], None, None, [float(row["x"]) for row in first]


def _read_parquet(path: Path) -> Content:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(path).to_pylist()[: len(KEPT)]
    return [row["landmark"] for row in rows], None, None, [row["x"] for row in rows]


def _read_dlc(path: Path) -> Content:
    with open(path, newline="") as handle:
        rows = list(csv.reader(handle))
    columns = [column for column in range(1, len(rows[1])) if rows[2][column] == "x"]
    return [rows[1][column] for column in columns], None, None, [float(rows[3][column]) for column in columns]


def _read_dlc_h5(path: Path) -> Content:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables")
    table = pandas.read_hdf(path)
    columns = [column for column in table.columns if column[2] == "x"]
    x = [float(table.iloc[0][column]) for column in columns]
    return [column[1] for column in columns], None, None, x


def _read_label_studio(path: Path) -> Content:
    (task, *_) = json.loads(path.read_text())
    points = [region for region in task["predictions"][0]["result"] if region["type"] == "keypointlabels"]
    interface = ElementTree.parse(path.with_name("label_config.xml"))
    labels = [label.attrib for label in interface.getroot().findall("KeyPointLabels/Label")]
    assert [label["value"] for label in labels] == KEPT
    default = palette(len(NAMES))  # landmarks keep their colors although their numbers change
    assert [label["background"] for label in labels] == ["#e69f00", default[2], "#000000", default[5]]
    x = [point["value"]["x"] / 100 * point["original_width"] - 0.5 for point in points]
    return [point["value"]["keypointlabels"][0] for point in points], None, None, x


def _read_nwb(path: Path) -> Content:
    pynwb = pytest.importorskip("pynwb")
    pytest.importorskip("ndx_pose")
    with pynwb.NWBHDF5IO(path, "r", load_namespaces=True) as io:
        file = io.read()
        module = file.processing["behavior"]
        pose = next(
            item for item in module.data_interfaces.values() if item.neurodata_type == "PoseEstimation"
        )
        names = [str(name) for name in pose.skeleton.nodes[:]]
        edges = {(names[a], names[b]) for a, b in pose.skeleton.edges[:]}
        x = [float(pose.pose_estimation_series[_find_series_name(pose, name)].data[0, 0]) for name in names]
        assert len(pose.pose_estimation_series) == len(names)
    return names, edges, None, x


def _find_series_name(pose: object, name: str) -> str:
    (series_name,) = [key for key in pose.pose_estimation_series if name in key]  # type: ignore[attr-defined]
    return str(series_name)


def _read_sleap(path: Path) -> Content:
    sio = pytest.importorskip("sleap_io")
    labels = sio.load_slp(str(path), open_videos=False)
    skeleton = labels.skeletons[0]
    pairs = {frozenset(node.name for node in symmetry.nodes) for symmetry in skeleton.symmetries}
    edges = {(edge.source.name, edge.destination.name) for edge in skeleton.edges}
    return skeleton.node_names, edges, pairs, labels[0].instances[0].numpy()[:, 0].tolist()


def _read_sleap_analysis(path: Path) -> Content:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        names = [name.decode() for name in file["node_names"][:]]
        edges = {(names[a], names[b]) for a, b in file["edge_inds"][:]}
        tracks = np.asarray(file["tracks"][:])
    node_axis = tracks.shape.index(len(names))
    first = np.moveaxis(tracks, node_axis, 0).reshape(len(names), -1)[:, 0]
    return names, edges, None, first.tolist()


def _read_ultralytics(path: Path) -> Content:
    values = yaml.safe_load(path.read_text())
    names = values["kpt_names"][0]
    assert values["kpt_shape"] == [len(names), 3]
    edges = {(names[a], names[b]) for a, b in values["skeleton"]}
    pairs = {frozenset({names[a], names[b]}) for a, b in enumerate(values["flip_idx"]) if a != b}
    (label, *_) = sorted((path.parent / "train" / "labels").iterdir())
    numbers = np.array(label.read_text().split()[5:], float).reshape(-1, 3)
    image_width = 64  # the first image is a frame of the video
    return names, edges, pairs, (numbers[:, 0] * image_width - 0.5).tolist()


READERS: dict[str, Callable[[Path], Content]] = {
    "csv": _read_csv,
    "parquet": _read_parquet,
    "coco": _read_coco,
    "coco-results": _read_coco_results,
    "cvat": _read_cvat,
    "dlc": _read_dlc,
    "dlc-h5": _read_dlc_h5,
    "label-studio": _read_label_studio,
    "lightning-pose": _read_dlc,
    "nwb": _read_nwb,
    "sleap": _read_sleap,
    "sleap-analysis": _read_sleap_analysis,
    "ultralytics": _read_ultralytics,
}
# Formats tested with only the still images or only the video; all others are tested with both together.
TESTED_WITH_STILLS = ("label-studio", "lightning-pose", "cvat")
TESTED_WITH_VIDEO = ("sleap-analysis", "dlc", "dlc-h5", "nwb")


def test_every_format_has_a_reader() -> None:
    assert READERS.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_hidden_landmarks_are_left_out(name: str, predictions: list[Prediction], tmp_path: Path) -> None:
    if name in TESTED_WITH_STILLS:
        predictions = predictions[1:]
    elif name in TESTED_WITH_VIDEO:
        predictions = predictions[:1]
    out = tmp_path / "out"
    out.mkdir()
    path = get_writer(name)(predictions, CARD, out)
    names, edges, pairs, x = READERS[name](path)
    assert names == KEPT
    assert edges is None or edges == EDGES
    assert pairs is None or pairs == PAIRS
    assert x == pytest.approx([11, 17, 29, 35], abs=0.01)


def test_points_and_card_leave_out_the_same_landmarks(predictions: list[Prediction]) -> None:
    card = visible_card(CARD)
    for before, after in zip(predictions, visible_points(predictions, CARD), strict=True):
        assert after.landmarks.names == card.names
        assert after.refs == before.refs
        assert after.sizes is before.sizes
        np.testing.assert_array_equal(after.landmarks.xy, before.landmarks.xy[:, [1, 2, 4, 5]])
        np.testing.assert_array_equal(after.landmarks.score, before.landmarks.score[:, [1, 2, 4, 5]])
    assert card.mirror == (1, 0, 2, 3)
    assert card.confirmed == (0, 1)
    assert list(landmark_colors(card)) == [landmark_colors(CARD)[index] for index in (1, 2, 4, 5)]


def test_nothing_changes_without_hidden_landmarks(predictions: list[Prediction]) -> None:
    card_without_hidden = replace(CARD, hidden=())
    assert visible_card(card_without_hidden) == card_without_hidden
    for before, after in zip(predictions, visible_points(predictions, card_without_hidden), strict=True):
        np.testing.assert_array_equal(before.landmarks.xy, after.landmarks.xy)
