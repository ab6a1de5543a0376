"""Test both video readers, on frames whose green value encodes their number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.images import video, video_av, video_opencv
from selfmark.images.video import count_frames, probe_video, read_frames

WITH_AV = pytest.param(video_av, id="av")
WITH_OPENCV = pytest.param(video_opencv, id="opencv")


@pytest.fixture(params=[WITH_AV, WITH_OPENCV])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run the test with each of the two readers, as if PyAV were installed or not."""
    if request.param is video_av:
        pytest.importorskip("av")
    monkeypatch.setattr(video, "video_reader", lambda: request.param)
    video._probe_video.cache_clear()
    return request.param


def read_frame_number(image: np.ndarray) -> int:
    """Return the frame number that the `write_video` fixture wrote."""
    return round((float(image[..., 1].mean()) - 8) / 6)


@pytest.mark.parametrize(("codec", "suffix"), [("mp4v", ".mp4"), ("MJPG", ".avi"), ("FFV1", ".mkv")])
@pytest.mark.usefixtures("reader")
def test_every_third_frame_is_read(
    tmp_path: Path, write_video: Callable[..., Path], codec: str, suffix: str
) -> None:
    path = write_video(tmp_path / f"clip{suffix}", 30, codec)
    assert count_frames(path) == 30
    frames = list(read_frames(path, range(0, 30, 3)))
    assert [frame for frame, _ in frames] == list(range(0, 30, 3))
    assert [read_frame_number(image) for _, image in frames] == list(range(0, 30, 3))


@pytest.mark.parametrize("name", ["2024-05-01T10:30:00.avi", "cache:other.avi", "http:127.0.0.1:9.avi"])
@pytest.mark.usefixtures("reader")
def test_a_colon_in_a_name_does_not_make_it_a_url(
    name: str, tmp_path: Path, write_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg would take such names for URLs if they were given without a folder."""
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "other.avi", 9, "MJPG")
    write_video(tmp_path / name, 5, "MJPG")
    assert [frame for frame, _ in read_frames(Path(name), range(9))] == list(range(5))


@pytest.mark.usefixtures("reader")
def test_channels_are_red_green_blue(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    """The fixture writes red 200 on the left half and blue 200 on the right half."""
    ((_, image),) = read_frames(write_video(tmp_path / "clip.mkv", 1, "FFV1"), [0])
    assert image.shape == (48, 64, 3)
    assert image.dtype == np.uint8
    np.testing.assert_allclose(image[24, 5], (200, 8, 0), atol=3)
    np.testing.assert_allclose(image[24, 60], (0, 8, 200), atol=3)


@pytest.mark.usefixtures("reader")
def test_frames_are_yielded_once_and_in_order(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    path = write_video(tmp_path / "clip.avi", 12, "MJPG")
    assert [frame for frame, _ in read_frames(path, [7, 2, 7, 0])] == [0, 2, 7]
    assert list(read_frames(path, [])) == []


@pytest.mark.usefixtures("reader")
def test_frames_after_the_end_are_not_yielded(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    path = write_video(tmp_path / "clip.mp4", 10, "mp4v")
    assert [frame for frame, _ in read_frames(path, [8, 9, 10, 99])] == [8, 9]


@pytest.mark.usefixtures("reader")
def test_rate_size_and_times_match_the_file(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    info = probe_video(write_video(tmp_path / "clip.mp4", 10, "mp4v"))
    assert (info.frames, info.rate, info.size) == (10, 25.0, (64, 48))
    np.testing.assert_allclose(info.seconds, np.arange(10) / 25, atol=1e-6)


@pytest.mark.usefixtures("reader")
def test_a_changed_file_is_probed_again(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    assert count_frames(write_video(tmp_path / "clip.mp4", 10, "mp4v")) == 10
    assert count_frames(write_video(tmp_path / "clip.mp4", 20, "mp4v")) == 20


@pytest.mark.usefixtures("reader")
def test_unreadable_videos_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("no video")
    for path in (tmp_path / "a.mp4", tmp_path / "missing.mp4"):
        with pytest.raises(InputError, match=path.name):
            count_frames(path)
        with pytest.raises(InputError, match=path.name):
            list(read_frames(path, [0]))


def test_opencv_counts_the_frames_if_the_header_does_not_state_their_number(
    tmp_path: Path, write_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutHeader:
        """A capture whose header does not give the number of frames."""

        def __init__(self, path: str) -> None:
            self._capture = capture(path)

        def get(self, _: int) -> float:
            return -1.0

        def __getattr__(self, name: str) -> object:
            return getattr(self._capture, name)

    capture = cv2.VideoCapture
    path = write_video(tmp_path / "clip.avi", 11, "MJPG")
    monkeypatch.setattr(cv2, "VideoCapture", WithoutHeader)
    frames, _, _, _ = video_opencv.probe_video(path)
    assert frames == 11


def test_pyav_is_used_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: object() if name == "av" else None)
    assert video.video_reader() is video_av
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    assert video.video_reader() is video_opencv
