"""Test codecs, containers, frame order, times, rotation and damage: both readers return the same frames."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.images import video_av, video_opencv
from selfmark.images.video import VideoInfo
from tests.images.videos import encode_video, read_frame_number

HIGH_QUALITY = {"crf": "10"}  # options of the encoder
# Display times in milliseconds, with gaps between 10 and 90.
UNEVEN = np.cumsum(np.random.default_rng(0).integers(10, 90, 40)).tolist()
# Mapping from file names to the codec and other arguments of `encode_video`.
FORMATS = {
    "b-frames.mp4": ("libx264", {"options": {"bf": "3", "b_strategy": "0", **HIGH_QUALITY}}),
    "hevc.mp4": ("libx265", {"options": {"x265-params": "log-level=none:crf=10"}}),
    "vp9.webm": ("libvpx-vp9", {}),
    "mpeg4.avi": ("mpeg4", {"options": {"bf": "2", "qmax": "2"}}),
    # The order of B-frames follows from display times, which an AVI file does not have.
    "order.avi": ("libx264", {"options": {"bf": "3", "b_strategy": "0", **HIGH_QUALITY}}),
    "mpeg2.mpg": ("mpeg2video", {"options": {"bf": "2", "qmax": "2"}}),
    "stream.ts": ("libx264", {"options": HIGH_QUALITY}),
    "bare.h264": ("libx264", {"options": HIGH_QUALITY}),
    "prores.mov": ("prores_ks", {"pixels": "yuv422p10le"}),
    "uneven.mp4": ("libx264", {"milliseconds": UNEVEN, "options": HIGH_QUALITY}),
    "uneven.mkv": ("libx264", {"milliseconds": UNEVEN, "options": HIGH_QUALITY}),
    "odd.mkv": ("ffv1", {"size": (63, 47), "pixels": "yuv444p"}),
    "rotated.mp4": ("libx264", {"rotation": 90, "options": HIGH_QUALITY}),
    "upside-down.mp4": ("libx264", {"rotation": 180, "options": HIGH_QUALITY}),
    "phone.mov": ("libx264", {"rotation": -90, "options": HIGH_QUALITY}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_both_readers_agree(name: str, tmp_path: Path) -> None:
    codec, options = FORMATS[name]
    path = encode_video(tmp_path / name, codec, **options)
    with_av, with_opencv = (list(reader.read_frames(path, range(40))) for reader in (video_av, video_opencv))
    for frames in (with_av, with_opencv):
        assert [number for number, _ in frames] == list(range(40))
        assert [read_frame_number(image) for _, image in frames] == list(range(40))
    for (_, av_image), (_, opencv_image) in zip(with_av, with_opencv, strict=True):
        assert av_image.shape == opencv_image.shape
        assert np.abs(av_image.astype(int) - opencv_image).mean() < 2
    height, width, _ = with_av[0][1].shape
    for reader in (video_av, video_opencv):
        info = VideoInfo(*reader.probe_video(path))
        assert info.frames == len(info.seconds) == 40
        assert info.size == (width, height)
        assert (np.diff(info.seconds) > 0).all()


def _set_matrix(path: Path, matrix: tuple[int, int, int, int]) -> Path:
    """Write the upper left part of the display matrix into the header of an MP4 file's only track."""
    content = path.read_bytes()
    assert content[content.index(b"tkhd") + 4] == 0, "version of the track header"
    start = content.index(b"tkhd") + 4 + 40
    a, b, c, d = (number << 16 for number in matrix)
    values = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content[:start] + values + content[start + 36 :])
    return path


@pytest.mark.parametrize("matrix", [(-1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0), (0, -1, -1, 0)])
def test_mirrored_videos_are_mirrored_or_refused(matrix: tuple[int, int, int, int], tmp_path: Path) -> None:
    path = _set_matrix(encode_video(tmp_path / "a.mp4", "libx264", frames=2), matrix)
    (_, image), *_ = video_av.read_frames(path, [0])
    is_transposed = matrix[0] == 0
    assert image.shape == ((64, 48, 3) if is_transposed else (48, 64, 3))
    # The left half is red. It becomes the right half, stays, or becomes the upper or the lower half.
    color = "red" if image[4, 4, 0] > image[4, 4, 2] else "blue"
    assert color == ("blue" if -1 in (matrix[0], matrix[1]) else "red"), "the color at the top left"
    for read in (video_opencv.probe_video, lambda path: next(video_opencv.read_frames(path, [0]))):
        with pytest.raises(
            InputError, match=r"a\.mp4 is mirrored, which OpenCV ignores: run 'pip install av'"
        ):
            read(path)


@pytest.mark.parametrize("matrix", [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)])
def test_rotated_videos_are_not_mirrored(matrix: tuple[int, int, int, int], tmp_path: Path) -> None:
    path = _set_matrix(encode_video(tmp_path / "a.mp4", "libx264", frames=2), matrix)
    (_, image), *_ = video_av.read_frames(path, [0])
    (_, same), *_ = video_opencv.read_frames(path, [0])
    assert image.shape == same.shape
    assert np.abs(image.astype(int) - same).mean() < 4


@pytest.mark.parametrize(
    ("rotation", "corners"),
    # As stored, red is on the left and blue on the right. The display rotates counterclockwise. `corners` are
    # the colors at the top left and at the bottom left after the rotation.
    [(90, ("blue", "red")), (-90, ("red", "blue")), (180, ("blue", "blue"))],
)
def test_rotated_videos_are_upright(rotation: int, corners: tuple[str, str], tmp_path: Path) -> None:
    path = encode_video(tmp_path / "phone.mp4", "libx264", frames=2, rotation=rotation)
    ((_, image), _) = video_av.read_frames(path, [0, 1])
    assert image.shape == ((48, 64, 3) if rotation == 180 else (64, 48, 3))
    actual = tuple("red" if pixel[0] > pixel[2] else "blue" for pixel in (image[4, 4], image[-5, 4]))
    assert actual == corners


def test_times_are_read_from_the_file(tmp_path: Path) -> None:
    path = encode_video(tmp_path / "uneven.mp4", "libx264", milliseconds=UNEVEN)
    seconds = (np.array(UNEVEN) - UNEVEN[0]) / 1000
    np.testing.assert_allclose(VideoInfo(*video_av.probe_video(path)).seconds, seconds, atol=1e-3)


# With yuv444p, the first packet holds parameters without which no later frame can be decoded.
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv444p"])
@pytest.mark.parametrize("name", ["long.mp4", "long.mkv"])
def test_seeking_reaches_the_right_frames(
    name: str, pixels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"bf": "3", "b_strategy": "0", **HIGH_QUALITY}
    path = encode_video(tmp_path / name, "libx264", options=options, pixels=pixels)
    whole = dict(video_av.read_frames(path, range(40)))
    monkeypatch.setattr(video_av, "_MIN_SEEK", 5)
    decoded = []
    original = video_av._frame_number
    monkeypatch.setattr(
        video_av, "_frame_number", lambda *arguments: decoded.append(original(*arguments)) or decoded[-1]
    )
    for numbers in ([2, 30, 38], [38]):
        decoded.clear()
        images = dict(video_av.read_frames(path, numbers))
        assert list(images) == numbers
        assert all((images[number] == whole[number]).all() for number in numbers)
        assert len(decoded) < 30, "too many frames were decoded: seeking must skip most of them"


def test_a_wrong_index_loses_no_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = encode_video(
        tmp_path / "clip.mp4", "libx264", options={"bf": "3", "b_strategy": "0", **HIGH_QUALITY}
    )
    monkeypatch.setattr(video_av, "_MIN_SEEK", 5)
    # With this wrong index, the reader seeks to frames that are no key frames.
    monkeypatch.setattr(video_av, "_key_frame_before", lambda index, frame: frame - 1)
    frames = [(number, read_frame_number(image)) for number, image in video_av.read_frames(path, [2, 19, 38])]
    assert frames == [(2, 2), (19, 19), (38, 38)]


@pytest.mark.parametrize(
    ("name", "codec", "container"),
    [
        ("cut.mp4", "libx264", {"movflags": "faststart"}),
        ("cut.mkv", "libx264", {}),
        ("cut.webm", "libvpx-vp9", {}),
        ("cut.avi", "mjpeg", {}),
    ],
)
def test_frames_missing_from_a_truncated_file_are_counted(
    name: str, codec: str, container: dict[str, str], tmp_path: Path
) -> None:
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = encode_video(tmp_path / name, codec, frames=80, noise=90, pixels=pixels, container=container)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.55)])
    info = VideoInfo(*video_av.probe_video(path))
    assert info.frames == len(info.seconds) == 80
    numbers = [number for number, _ in video_av.read_frames(path, range(80))]
    assert numbers == list(range(len(numbers)))
    assert 30 < len(numbers) < 60


@pytest.mark.parametrize(("name", "codec"), [("late.mkv", "libx264"), ("late.webm", "libvpx-vp9")])
def test_a_start_after_zero_adds_no_frames(name: str, codec: str, tmp_path: Path) -> None:
    """The header states when the video ends. This time already includes the start."""
    times = [5_000 + 40 * number for number in range(20)]
    path = encode_video(tmp_path / name, codec, frames=20, milliseconds=times)
    info = VideoInfo(*video_av.probe_video(path))
    assert info.frames == len(info.seconds) == 20
    assert [number for number, _ in video_av.read_frames(path, range(20))] == list(range(20))


def test_frames_after_a_damaged_part_keep_their_numbers(tmp_path: Path) -> None:
    path = encode_video(tmp_path / "hole.mp4", "libx264", noise=90, gop=8, options=HIGH_QUALITY)
    content = bytearray(path.read_bytes())
    start, length = len(content) // 2, len(content) // 20
    content[start : start + length] = np.random.default_rng(1).bytes(length)
    path.write_bytes(content)
    frames = [(number, read_frame_number(image)) for number, image in video_av.read_frames(path, range(40))]
    assert 20 < len(frames) < 40
    # Frames are intact again after the next key frame. Until then, decoders do not always notice the damage.
    assert frames[-10:] == [(number, number) for number in range(30, 40)]


def test_a_file_cut_off_after_its_header_has_no_frames(tmp_path: Path) -> None:
    path = encode_video(tmp_path / "cut.mp4", "libx264", container={"movflags": "faststart"})
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"mdat") + 4])
    assert VideoInfo(*video_av.probe_video(path)).frames == 0
