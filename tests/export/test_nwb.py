"""Read NWB files back and validate them, with pynwb and ndx-pose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from selfmark import errors as errors_module
from selfmark.config import Images, Network
from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export import nwb
from selfmark.export.nwb import write_nwb
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.images.video import VideoInfo
from selfmark.model.card import ModelCard
from selfmark.points import Landmarks
from tests.export.eared_animal import CARD, EDGES, NAMES, make_random_prediction

pynwb = pytest.importorskip("pynwb")
ndx_pose = pytest.importorskip("ndx_pose")


def _write_clip(path: Path, frames: int, rate: float) -> Path:
    video = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), rate, (48, 32))
    for _ in range(frames):
        video.write(np.zeros((32, 48, 3), np.uint8))
    video.release()
    return path


def _assert_equal(pose: Any, prediction: Prediction, rows: list[int], times: list[float]) -> None:
    """Compare the pose that was read back with the given rows of a prediction; `times` are in seconds."""
    assert pose.skeleton.nodes[:].tolist() == list(NAMES)
    assert pose.skeleton.edges[:].tolist() == [list(edge) for edge in EDGES]
    for index, name in enumerate(("nose", "left ear", "right ear", "tail_tip")):
        series = pose[name]
        np.testing.assert_array_equal(series.data[:], prediction.landmarks.xy[rows, index])
        np.testing.assert_array_equal(series.confidence[:], prediction.landmarks.score[rows, index])
        np.testing.assert_allclose(series.timestamps[:], times, atol=1e-9)
        assert series.unit == "pixels"
        assert series.description == f"Landmark {NAMES[index]}"


def test_every_second_frame_of_a_video_is_stored(tmp_path: Path) -> None:
    clip = _write_clip(tmp_path / "clip.avi", 7, 12.5)
    prediction = make_random_prediction(list_images([clip], every=2), (48, 32), 0)
    path = write_nwb([prediction], CARD, tmp_path)
    assert path == tmp_path / "landmarks.nwb"
    assert not list(tmp_path.glob("*.part*"))
    errors = pynwb.validate(path=str(path))
    assert not errors, errors
    with pynwb.NWBHDF5IO(str(path), "r") as handle:
        file = handle.read()
        pose = file.processing["behavior"]["PoseEstimation"]
        _assert_equal(pose, prediction, [0, 1, 2, 3], [frame / 12.5 for frame in (0, 2, 4, 6)])
        video = pose.source_video
        assert video.external_file[:].tolist() == [clip.absolute().as_posix()]
        assert (video.rate, video.num_samples, video.dimension[:].tolist()) == (12.5, 7, [48, 32])
        assert pose.source_software == "selfmark"


def test_objects_videos_and_image_sizes_are_stored_separately(tmp_path: Path) -> None:
    clip = _write_clip(tmp_path / "a:b.avi", 4, 10.0)
    frames = [ImageRef(clip, 0), ImageRef(clip, 2), ImageRef(clip, 2, (1, 1, 9, 9)), ImageRef(clip, 3)]
    stills = [ImageRef(Path("x.png")), ImageRef(Path("y.png"))]
    first, small, large = (
        make_random_prediction(frames, (48, 32), 1),
        make_random_prediction(stills, (40, 30), 2),
        make_random_prediction([ImageRef(Path("z.png"))], (64, 50), 3),
    )
    path = write_nwb([first, small, large], CARD, tmp_path)
    assert not pynwb.validate(path=str(path))
    with pynwb.NWBHDF5IO(str(path), "r") as handle:
        file = handle.read()
        poses = [
            file.processing["behavior"][f"PoseEstimation_{key}"]
            for key in ("000_0", "000_1", "001_0", "002_0")
        ]
        _assert_equal(poses[0], first, [0, 1, 3], [0.0, 0.2, 0.3])
        _assert_equal(poses[1], first, [2], [0.2])
        _assert_equal(poses[2], small, [0, 1], [0.0, 1.0])
        _assert_equal(poses[3], large, [0], [0.0])
        assert poses[1].description == "Object 2 of a:b.avi (48 x 32 pixels)"
        sizes = [pose.source_video.dimension[:].tolist() for pose in poses]
        assert sizes == [[48, 32], [48, 32], [40, 30], [64, 50]]
        names = [Path(name).name for name in poses[2].source_video.external_file[:]]
        assert names == ["x.png", "y.png"]
        assert len(file.acquisition) == 3, "both objects of the video have the same source"


def test_one_landmark_without_edges_is_stored(tmp_path: Path) -> None:
    card = ModelCard(("dot",), (0,), (), Images(), Network(), "parabola", False, {})
    landmarks = Landmarks(np.ones((1, 1, 2), np.float32), np.ones((1, 1), np.float32), ("dot",))
    path = write_nwb([Prediction((ImageRef(Path("x.png")),), np.array([[9, 9]]), landmarks)], card, tmp_path)
    assert not pynwb.validate(path=str(path))
    with pynwb.NWBHDF5IO(str(path), "r") as handle:
        pose = handle.read().processing["behavior"]["PoseEstimation"]
        assert pose.skeleton.edges.shape == (0, 2)
        assert pose["dot"].data[:].tolist() == [[1, 1]]


def test_names_that_a_pose_uses_itself_get_an_underscore(tmp_path: Path) -> None:
    names = (*sorted(nwb._RESERVED_NAMES), *ndx_pose.PoseEstimation.__nwbfields__, "a.b", "...")
    names = tuple(dict.fromkeys(names))
    count = len(names)
    card = ModelCard(names, tuple(range(count)), (), Images(), Network(), "parabola", False, {})
    xy = np.arange(2 * count, dtype=np.float32).reshape(1, count, 2)
    landmarks = Landmarks(xy, np.ones((1, count), np.float32), names)
    path = write_nwb([Prediction((ImageRef(Path("x.png")),), np.array([[9, 9]]), landmarks)], card, tmp_path)
    assert not pynwb.validate(path=str(path))
    with pynwb.NWBHDF5IO(str(path), "r") as handle:
        pose = handle.read().processing["behavior"]["PoseEstimation"]
        assert pose.skeleton.nodes[:].tolist() == list(names)
        for index, name in enumerate(names):
            series = pose[f"{name}_" if name in nwb._RESERVED_NAMES else name]
            assert series.data[:].tolist() == xy[:, index].tolist()
            assert series.description == f"Landmark {name}"


def test_errors_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prediction = make_random_prediction([ImageRef(Path("x.png"))], (40, 30), 0)
    with pytest.raises(InputError, match="nothing to write"):
        write_nwb([], CARD, tmp_path)
    same_names = ModelCard(
        ("a/b", "a:b", "c", "d"), (0, 1, 2, 3), (), Images(), Network(), "parabola", False, {}
    )
    with pytest.raises(InputError, match="2 landmarks are called 'a_b', but NWB"):
        write_nwb([prediction], same_names, tmp_path)
    with pytest.raises(InputError, match=r"cannot write to .*absent"):
        write_nwb([prediction], CARD, tmp_path / "absent")
    without_rate = VideoInfo(1, 0.0, (40, 30), np.zeros(1))
    monkeypatch.setattr(nwb, "probe_video", lambda path: without_rate)
    with pytest.raises(InputError, match="does not state its frame rate"):
        write_nwb(
            [make_random_prediction([ImageRef(tmp_path / "still.avi", 0)], (40, 30), 0)], CARD, tmp_path
        )

    def raise_not_installed(package: str) -> None:
        raise ModuleNotFoundError(package)

    monkeypatch.setattr(errors_module.importlib, "import_module", raise_not_installed)
    with pytest.raises(InputError, match="pynwb, which is not installed: pip install pynwb ndx-pose"):
        write_nwb([prediction], CARD, tmp_path)
    assert not list(tmp_path.iterdir())
