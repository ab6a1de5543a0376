"""Codecs, containers, order, times, turns, damage: the same frames under the same numbers by both readers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from selfmark.images import video_av, video_opencv
from tests.images.videos import encode_video, number_of

FINE = {"crf": "10"}
UNEVEN = np.cumsum(np.random.default_rng(0).integers(10, 90, 40)).tolist()
KINDS = {
    "b-frames.mp4": ("libx264", {"options": {"bf": "3", "b_strategy": "0", **FINE}}),
    "hevc.mp4": ("libx265", {"options": {"x265-params": "log-level=none:crf=10"}}),
    "vp9.webm": ("libvpx-vp9", {}),
    "mpeg4.avi": ("mpeg4", {"options": {"bf": "2", "qmax": "2"}}),
    "order.avi": ("libx264", {"options": {"bf": "3", "b_strategy": "0", **FINE}}),  # no times of showing
    "mpeg2.mpg": ("mpeg2video", {"options": {"bf": "2", "qmax": "2"}}),
    "stream.ts": ("libx264", {"options": FINE}),
    "bare.h264": ("libx264", {"options": FINE}),
    "prores.mov": ("prores_ks", {"pixels": "yuv422p10le"}),
    "uneven.mp4": ("libx264", {"milliseconds": UNEVEN, "options": FINE}),
    "uneven.mkv": ("libx264", {"milliseconds": UNEVEN, "options": FINE}),
    "odd.mkv": ("ffv1", {"size": (63, 47), "pixels": "yuv444p"}),
    "turned.mp4": ("libx264", {"turned": 90, "options": FINE}),
    "upside.mp4": ("libx264", {"turned": 180, "options": FINE}),
    "phone.mov": ("libx264", {"turned": -90, "options": FINE}),
}


@pytest.mark.parametrize("name", KINDS)
def test_both_readers_agree_on_every_kind(name: str, tmp_path: Path) -> None:
    codec, how = KINDS[name]
    path = encode_video(tmp_path / name, codec, **how)
    ours, theirs = (list(reader.read_frames(path, range(40))) for reader in (video_av, video_opencv))
    for frames in (ours, theirs):
        assert [number for number, _ in frames] == list(range(40))
        assert [number_of(image) for _, image in frames] == list(range(40))
    for (_, one), (_, other) in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert np.abs(one.astype(int) - other).mean() < 2
    about = [reader.probe_video(path) for reader in (video_av, video_opencv)]
    assert about[0][0] == about[1][0] == 40
    assert about[0][2] == about[1][2] == (ours[0][1].shape[1], ours[0][1].shape[0])
    for _, seconds in ((one[0], one[3]) for one in about):
        assert len(seconds) == 40
        assert (np.diff(seconds) > 0).all()


@pytest.mark.parametrize(
    ("turned", "corners"),
    # Red is on the left and blue on the right of the picture as stored; turned counterclockwise.
    [(90, ("blue", "red")), (-90, ("red", "blue")), (180, ("blue", "blue"))],
)
def test_turned_films_come_upright(turned: int, corners: tuple[str, str], tmp_path: Path) -> None:
    path = encode_video(tmp_path / "phone.mp4", "libx264", frames=2, turned=turned)
    ((_, image), _) = video_av.read_frames(path, [0, 1])
    assert image.shape == ((48, 64, 3) if turned == 180 else (64, 48, 3))
    found = tuple("red" if place[0] > place[2] else "blue" for place in (image[4, 4], image[-5, 4]))
    assert found == corners


def test_times_are_those_of_the_file(tmp_path: Path) -> None:
    path = encode_video(tmp_path / "uneven.mp4", "libx264", milliseconds=UNEVEN)
    seconds = (np.array(UNEVEN) - UNEVEN[0]) / 1000
    np.testing.assert_allclose(video_av.probe_video(path)[3], seconds, atol=1e-3)


@pytest.mark.parametrize("pixels", ["yuv420p", "yuv444p"])  # the latter needs the first packet to be decoded
@pytest.mark.parametrize("name", ["long.mp4", "long.mkv"])
def test_leaps_to_far_frames_land_on_them(
    name: str, pixels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"bf": "3", "b_strategy": "0", **FINE}
    path = encode_video(tmp_path / name, "libx264", options=options, pixels=pixels)
    whole = dict(video_av.read_frames(path, range(40)))
    monkeypatch.setattr(video_av, "_MIN_SEEK", 5)
    decoded = []
    original = video_av._frame_number
    monkeypatch.setattr(
        video_av, "_frame_number", lambda *given: decoded.append(original(*given)) or decoded[-1]
    )
    for wanted in ([2, 30, 38], [38]):
        decoded.clear()
        found = dict(video_av.read_frames(path, wanted))
        assert list(found) == wanted
        assert all((found[number] == whole[number]).all() for number in wanted)
        assert len(decoded) < 30, "most frames were never decoded"


def test_an_index_that_is_wrong_costs_time_and_no_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode_video(tmp_path / "clip.mp4", "libx264", options={"bf": "3", "b_strategy": "0", **FINE})
    monkeypatch.setattr(video_av, "_MIN_SEEK", 5)
    monkeypatch.setattr(video_av, "_key_frame_before", lambda index, frame: frame - 1)  # no key frame at all
    found = [(number, number_of(image)) for number, image in video_av.read_frames(path, [2, 19, 38])]
    assert found == [(2, 2), (19, 19), (38, 38)]


@pytest.mark.parametrize(
    ("name", "codec", "container"),
    [
        ("cut.mp4", "libx264", {"movflags": "faststart"}),
        ("cut.mkv", "libx264", {}),
        ("cut.webm", "libvpx-vp9", {}),
        ("cut.avi", "mjpeg", {}),
    ],
)
def test_what_a_cut_file_lacks_is_counted(
    name: str, codec: str, container: dict[str, str], tmp_path: Path
) -> None:
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = encode_video(tmp_path / name, codec, frames=80, noise=90, pixels=pixels, container=container)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.55)])
    assert video_av.probe_video(path)[0] == 80
    found = [number for number, _ in video_av.read_frames(path, range(80))]
    assert found == list(range(len(found)))
    assert 30 < len(found) < 60
    assert len(video_av.probe_video(path)[3]) == 80


def test_frames_behind_a_damaged_part_keep_their_numbers(tmp_path: Path) -> None:
    path = encode_video(tmp_path / "hole.mp4", "libx264", noise=90, gop=8, options=FINE)
    content = bytearray(path.read_bytes())
    start, length = len(content) // 2, len(content) // 20
    content[start : start + length] = np.random.default_rng(1).bytes(length)
    path.write_bytes(content)
    found = [(number, number_of(image)) for number, image in video_av.read_frames(path, range(40))]
    assert 20 < len(found) < 40
    # Behind the next key frame all is well again; what a decoder makes of damage it does not always know.
    assert found[-10:] == [(number, number) for number in range(30, 40)]


def test_a_header_without_frames_behind_it(tmp_path: Path) -> None:
    path = encode_video(tmp_path / "cut.mp4", "libx264", container={"movflags": "faststart"})
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"mdat") + 4])
    assert video_av.probe_video(path)[0] == 0
