"""Test trust and verdict in exported files, read back with the library of each format."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
import yaml

from selfmark.detector import Detector, Prediction
from selfmark.export import FORMATS, get_writer
from selfmark.export.onnx_export import write_float32
from selfmark.export.trust_entries import trust_entries
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard
from tests.export.eared_animal import CARD, make_random_prediction

TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"
JUDGED = replace(CARD, trust=(0.91234567, 0.15, 0.5, 0.0), verdict="usable", hidden=(2,))
TRUST = [0.9123, 0.15, 0.0]  # rounded to four decimals, without the hidden landmark
Content = tuple[Any, Any]  # trust and verdict in a file; each is None if the file does not contain it


@pytest.fixture
def predictions(tmp_path: Path) -> list[Prediction]:
    """Frames of a video of 48 x 32 pixels."""
    path = tmp_path / "clip.avi"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (48, 32))
    for _ in range(3):
        video.write(np.zeros((32, 48, 3), np.uint8))
    video.release()
    return [make_random_prediction([ImageRef(path, frame) for frame in range(3)], (48, 32), 0)]


def _read_category(path: Path) -> Content:
    coco = pytest.importorskip("pycocotools.coco")
    with contextlib.redirect_stdout(io.StringIO()):
        data = coco.COCO(str(path))
    (category,) = data.loadCats(data.getCatIds())
    assert len(category["keypoints"]) == 3
    return category.get("trust"), category.get("verdict")


def _read_images_of_results(path: Path) -> Content:
    return _read_category(path.with_name("images.json"))


def _read_cvat(path: Path) -> Content:
    with zipfile.ZipFile(path) as archive:
        (name,) = archive.namelist()
        archive.extract(name, path.parent)
    return _read_category(path.parent / name)


def _read_parquet(path: Path) -> Content:
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(path)
    assert set(table.column("landmark").to_pylist()) == {"nose", "left ear", "tail/tip"}
    metadata = {key.decode(): json.loads(value) for key, value in (table.schema.metadata or {}).items()}
    if metadata:
        assert metadata["selfmark.names"] == ["nose", "left ear", "tail/tip"]
    return metadata.get("selfmark.trust"), metadata.get("selfmark.verdict")


def _read_sleap(path: Path) -> Content:
    sio: Any = pytest.importorskip("sleap_io")
    labels = sio.load_file(str(path))
    assert labels.provenance["source"].startswith("selfmark")
    return labels.provenance.get("trust"), labels.provenance.get("verdict")


def _read_ultralytics(path: Path) -> Content:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values.get("trust"), values.get("verdict")


READERS: dict[str, Callable[[Path], Content]] = {
    "coco": _read_category,
    "coco-results": _read_images_of_results,
    "cvat": _read_cvat,
    "parquet": _read_parquet,
    "sleap": _read_sleap,
    "sleap-analysis": _read_sleap,
    "ultralytics": _read_ultralytics,
}
WITHOUT_TRUST = ("csv", "dlc", "dlc-h5", "lightning-pose")  # formats that cannot store trust
AS_TEXT = ("label-studio", "nwb")  # formats that show trust in hints or descriptions; each has its own test


def test_every_format_is_considered() -> None:
    assert {*READERS, *WITHOUT_TRUST, *AS_TEXT} == FORMATS.keys()


def _write(name: str, predictions: list[Prediction], card: ModelCard, folder: Path) -> Path:
    folder.mkdir()
    return get_writer(name)(predictions, card, folder)


@pytest.mark.parametrize("name", READERS)
def test_trust_of_the_visible_landmarks_is_stored(
    name: str, predictions: list[Prediction], tmp_path: Path
) -> None:
    content = READERS[name](_write(name, predictions, JUDGED, tmp_path / "judged"))
    assert content == (TRUST, "usable")
    unjudged = replace(JUDGED, trust=(), verdict=None)
    assert READERS[name](_write(name, predictions, unjudged, tmp_path / "unjudged")) == (None, None)


@pytest.mark.parametrize("name", ["csv", "dlc", "lightning-pose"])
def test_formats_without_trust_write_the_same_files_for_judged_detectors(
    name: str, predictions: list[Prediction], tmp_path: Path
) -> None:
    judged = _write(name, predictions, JUDGED, tmp_path / "judged")
    unjudged = _write(name, predictions, replace(JUDGED, trust=(), verdict=None), tmp_path / "unjudged")
    assert judged.read_text() == unjudged.read_text()
    assert {path.name for path in judged.parent.iterdir()} == {
        path.name for path in unjudged.parent.iterdir()
    }


def test_pandas_reads_parquet_files_with_trust(predictions: list[Prediction], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    judged = pandas.read_parquet(_write("parquet", predictions, JUDGED, tmp_path / "judged"))
    unjudged = replace(JUDGED, trust=(), verdict=None)
    pandas.testing.assert_frame_equal(
        judged, pandas.read_parquet(_write("parquet", predictions, unjudged, tmp_path / "unjudged"))
    )


def test_nwb_files_state_trust_in_descriptions(predictions: list[Prediction], tmp_path: Path) -> None:
    pynwb = pytest.importorskip("pynwb")
    pytest.importorskip("ndx_pose")
    path = _write("nwb", predictions, JUDGED, tmp_path / "judged")
    assert not pynwb.validate(path=str(path))
    with pynwb.NWBHDF5IO(str(path), "r") as handle:
        pose = handle.read().processing["behavior"]["PoseEstimation"]
        assert pose.description == "Object 1 of clip.avi (48 x 32 pixels), verdict of the run: usable"
        assert pose["nose"].description == "Landmark nose, trust 0.91"
        warning = "Landmark left ear, trust 0.15: do not rely on this landmark"
        assert pose["left ear"].description == warning


def test_label_studio_shows_trust_as_a_hint(predictions: list[Prediction], tmp_path: Path) -> None:
    path = _write("label-studio", predictions, JUDGED, tmp_path / "judged")
    config = path.with_name("label_config.xml")
    labels = ElementTree.parse(config).getroot().findall("KeyPointLabels/Label")
    assert [label.get("hint") for label in labels] == [
        "trust 0.91",
        "trust 0.15: do not rely on this landmark",
        "trust 0.00: do not rely on this landmark",
    ]
    unjudged = replace(JUDGED, trust=(), verdict=None)
    unjudged_files = _write("label-studio", predictions, unjudged, tmp_path / "unjudged")
    labels = (
        ElementTree.parse(unjudged_files.with_name("label_config.xml"))
        .getroot()
        .findall("KeyPointLabels/Label")
    )
    assert [label.get("hint") for label in labels] == [None] * 3
    label_interface: Any = pytest.importorskip("label_studio_sdk.label_interface")
    interface = label_interface.LabelInterface(config.read_text(encoding="utf-8"))
    interface.validate()
    for task in json.loads(path.read_text()):
        assert interface.validate_prediction(task["predictions"][0], return_errors=True) == []


def test_onnx_files_contain_the_trust_of_all_landmarks(tmp_path: Path) -> None:
    """An ONNX file predicts hidden landmarks, too."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    plain = Detector.load(TOY_DETECTOR)
    trust = tuple(index / 16 for index in range(16))
    judged = Detector(plain.psi, replace(plain.card, trust=trust, verdict="failed", hidden=(3,)))

    def read_metadata(detector: Detector) -> dict[str, str]:
        session = onnxruntime.InferenceSession(str(write_float32(detector, tmp_path / "model.onnx")))
        return dict(session.get_modelmeta().custom_metadata_map)

    values = read_metadata(judged)
    np.testing.assert_allclose(json.loads(values["selfmark.trust"]), trust, atol=5e-5)
    assert json.loads(values["selfmark.verdict"]) == "failed"
    assert not {"selfmark.trust", "selfmark.verdict"} & read_metadata(plain).keys()


def test_trust_and_verdict_are_independent() -> None:
    assert trust_entries(replace(CARD, verdict="good")) == {"verdict": "good"}
    assert trust_entries(replace(CARD, trust=(1.0, 0.0, 0.5, 0.25))) == {"trust": [1.0, 0.0, 0.5, 0.25]}
