"""Read SLEAP files back with sleap-io, and the analysis file also with h5py, as in SLEAP's examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from selfmark import errors as errors_module
from selfmark.config import Images, Network
from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export.sleap import write_analysis, write_slp
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.model.card import ModelCard
from selfmark.points import Landmarks
from tests.export.eared_animal import CARD, EDGES, NAMES, make_random_prediction

sio = pytest.importorskip("sleap_io")
h5py = pytest.importorskip("h5py")


def _write_clip(path: Path, frames: int = 7) -> Path:
    """Write a video of 48 x 32 pixels whose frames differ in brightness."""
    video = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25.0, (48, 32))
    for number in range(frames):
        video.write(np.full((32, 48, 3), 30 * number, np.uint8))
    video.release()
    return path


def _write_picture(path: Path, size: tuple[int, int]) -> ImageRef:
    Image.new("RGB", size, "white").save(path)
    return ImageRef(path)


def _assert_equal(instance: object, prediction: Prediction, row: int) -> None:
    np.testing.assert_array_equal(instance.numpy(), prediction.landmarks.xy[row])  # type: ignore[attr-defined]
    points = instance.points  # type: ignore[attr-defined]
    np.testing.assert_array_equal(points["score"], prediction.landmarks.score[row])
    assert list(points["name"]) == list(NAMES)


def test_a_skeleton_that_a_project_has_no_room_for_is_refused_with_one_sentence(tmp_path: Path) -> None:
    card = replace(CARD, names=tuple(name * 5_000 for name in NAMES))
    prediction = make_random_prediction([_write_picture(tmp_path / "a.png", (40, 30))], (40, 30), 0)
    with pytest.raises(InputError, match="use shorter names or fewer edges") as caught:
        write_slp([prediction], card, tmp_path)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_slp_keeps_points_scores_and_skeleton(tmp_path: Path) -> None:
    stills = [
        _write_picture(tmp_path / "a.png", (40, 30)),
        _write_picture(tmp_path / "b.png", (64, 50)),
        _write_picture(tmp_path / "c.png", (40, 30)),
    ]
    small_refs = [  # two objects in a.png and one in c.png
        ImageRef(stills[0].path, box=(0, 0, 9, 9)),
        ImageRef(stills[0].path, box=(9, 9, 9, 9)),
        stills[2],
    ]
    small, large = (
        make_random_prediction(small_refs, (40, 30), 1),
        make_random_prediction([stills[1]], (64, 50), 2),
    )
    path = write_slp([small, large], CARD, tmp_path)

    labels = sio.load_slp(str(path))
    (skeleton,) = labels.skeletons
    assert skeleton.node_names == list(NAMES)
    assert [tuple(edge) for edge in skeleton.edge_inds] == list(EDGES)
    assert {frozenset(pair) for pair in skeleton.symmetry_names} == {frozenset(NAMES[1:3])}
    first, second = labels.videos
    assert [Path(name).name for name in first.filename] == ["a.png", "c.png"]
    assert [Path(name).name for name in second.filename] == ["b.png"]
    assert (first.shape, second.shape) == ((2, 30, 40, 3), (1, 50, 64, 3)), (
        "images of the same size form one video"
    )
    stored = [tuple(video.shape) for video in sio.load_slp(str(path), open_videos=False).videos]
    assert stored == [(2, 30, 40, 3), (1, 50, 64, 3)], "sizes are stored, so the images need not be opened"
    assert first[1].shape == (30, 40, 3), "sleap-io finds the image"
    first_frame, second_frame = labels.find(first)
    assert (first_frame.frame_idx, second_frame.frame_idx) == (0, 1)
    for row, instance in enumerate([*first_frame.instances, *second_frame.instances]):
        _assert_equal(instance, small, row)
        assert instance.track is None
        assert instance.score == pytest.approx(float(small.landmarks.score[row].mean()))
    (only_frame,) = labels.find(second)
    _assert_equal(only_frame.instances[0], large, 0)
    assert not list(tmp_path.glob("*.part*"))


def test_slp_keeps_every_second_frame_and_the_tracks_of_a_video(tmp_path: Path) -> None:
    clip = _write_clip(tmp_path / "clip.avi")
    refs = list_images([clip], every=2)
    refs = [ref for ref in refs for _ in range(1 + (ref.frame == 4))]  # two objects in frame 4
    prediction = make_random_prediction(refs, (48, 32), 3)
    xy, score = prediction.landmarks.xy, prediction.landmarks.score
    batches = [
        Prediction(prediction.refs[part], prediction.sizes[part], Landmarks(xy[part], score[part], NAMES))
        for part in (slice(0, 2), slice(2, None))
    ]
    labels = sio.load_slp(str(write_slp(batches, CARD, tmp_path)))
    (video,) = labels.videos
    assert Path(video.filename) == clip.absolute()
    assert video.shape == (7, 32, 48, 3)
    assert [frame.frame_idx for frame in labels.labeled_frames] == [0, 2, 4, 6]
    assert [track.name for track in labels.tracks] == ["track_0", "track_1"]
    instances = [instance for frame in labels.labeled_frames for instance in frame.instances]
    assert [instance.track.name for instance in instances] == ["track_0"] * 3 + ["track_1", "track_0"]
    for row, instance in enumerate(instances):
        _assert_equal(instance, prediction, row)
    assert labels.labeled_frames[1].image.mean() == pytest.approx(60, abs=3), "frame 2 has brightness 60"


def test_analysis_has_one_row_per_frame_of_the_video(tmp_path: Path) -> None:
    clip = _write_clip(tmp_path / "clip.avi")
    refs = [ImageRef(clip, 0), ImageRef(clip, 2), ImageRef(clip, 2, (1, 1, 9, 9)), ImageRef(clip, 4)]
    prediction = make_random_prediction(refs, (48, 32), 4)
    xy, score = prediction.landmarks.xy, prediction.landmarks.score
    path = write_analysis([prediction], CARD, tmp_path)
    assert path.name == "landmarks.000_clip.analysis.h5"

    with h5py.File(path) as file:
        tracks = file["tracks"][:].T  # as in SLEAP's documentation: frame, node, xy, track
        assert tracks.shape == (7, 4, 2, 2)
        np.testing.assert_array_equal(tracks[[0, 2, 4], :, :, 0], xy[[0, 1, 3]])
        np.testing.assert_array_equal(tracks[2, :, :, 1], xy[2])
        assert np.isnan(tracks[[1, 3, 5, 6]]).all()
        np.testing.assert_array_equal(file["point_scores"][:].T[[0, 2, 4], :, 0], score[[0, 1, 3]])
        assert file["track_occupancy"][:].tolist() == [[1, 0], [0, 0], [1, 1], [0, 0], [1, 0], [0, 0], [0, 0]]
        assert [name.decode() for name in file["node_names"]] == list(NAMES)
        assert file["edge_inds"][:].tolist() == [list(edge) for edge in EDGES]
        assert file["video_path"][()].decode() == clip.absolute().as_posix()

    labels = sio.load_file(str(path))
    assert [frame.frame_idx for frame in labels.labeled_frames] == [0, 2, 4]
    _assert_equal(labels.labeled_frames[1].instances[1], prediction, 2)


def test_analysis_writes_one_file_for_each_video(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    lengths = (3, 5)
    paths = (tmp_path / "clip.avi", tmp_path / "other" / "clip.avi")
    clips = [_write_clip(path, frames) for path, frames in zip(paths, lengths, strict=True)]
    parts = [make_random_prediction([ImageRef(clip, 1)], (48, 32), seed) for seed, clip in enumerate(clips)]
    assert write_analysis(parts, CARD, tmp_path) == tmp_path
    for number, part in enumerate(parts):
        with h5py.File(tmp_path / f"landmarks.{number:03d}_clip.analysis.h5") as file:
            assert file["tracks"].shape == (1, 2, 4, lengths[number])  # track, xy, node, frame
            np.testing.assert_array_equal(file["tracks"][0, :, :, 1].T, part.landmarks.xy[0])


def test_analysis_without_edges_is_read(tmp_path: Path) -> None:
    clip = _write_clip(tmp_path / "clip.avi", 2)
    card = ModelCard(NAMES, (0, 1, 2, 3), (), Images(), Network(), "parabola", False, {})
    labels = sio.load_file(
        str(write_analysis([make_random_prediction([ImageRef(clip, 1)], (48, 32), 0)], card, tmp_path))
    )
    assert labels.skeletons[0].edges == []
    assert [frame.frame_idx for frame in labels.labeled_frames] == [1]


def test_errors_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prediction = make_random_prediction([_write_picture(tmp_path / "a.png", (40, 30))], (40, 30), 0)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(InputError, match="still images with --format sleap"):
        write_analysis([prediction], CARD, out)
    with pytest.raises(InputError, match="nothing to write"):
        write_slp([], CARD, out)
    same_names = ModelCard(("a", "b", "a", "c"), (0, 1, 2, 3), (), Images(), Network(), "parabola", False, {})
    with pytest.raises(InputError, match="2 landmarks are called 'a'"):
        write_slp([prediction], same_names, out)
    with pytest.raises(InputError, match=r"cannot write to .*a\.png"):
        write_slp([prediction], CARD, prediction.refs[0].path)

    def fail(_: object, path: str, **__: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("Can't write data (file write failed)")

    monkeypatch.setattr(sio, "save_slp", fail)
    with pytest.raises(InputError, match=r"cannot write .*slp: Can't write"):
        write_slp([prediction], CARD, out)

    def raise_not_installed(package: str) -> None:
        raise ModuleNotFoundError(package)

    monkeypatch.setattr(errors_module.importlib, "import_module", raise_not_installed)
    for write in (write_slp, write_analysis):
        with pytest.raises(InputError, match="sleap_io, which is not installed: pip install sleap-io"):
            write([prediction], CARD, out)
    assert not list(out.iterdir())
