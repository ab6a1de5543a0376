"""Read labeled videos back and test their frames, times and colors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from selfmark.detector import Prediction
from selfmark.draw import video_writer
from selfmark.draw.frame_drawing import DrawnObject, draw_frame
from selfmark.draw.labeled_video import draw_videos, list_labeled_video_paths
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images import video_opencv
from selfmark.images.video import probe_video, read_frames
from selfmark.model.colors import landmark_colors, to_rgb
from selfmark.points import Landmarks
from tests.export.fakes import CARD, NAMES
from tests.images.videos import av, encode_video

POINTS = np.array([[20, 20], [44, 20], [20, 40], [44, 40]], np.float32)


def _make_predictions(refs: list[ImageRef], xy: np.ndarray | None = None, batch: int = 3) -> list[Prediction]:
    points = np.repeat(POINTS[None], len(refs), axis=0) if xy is None else xy.astype(np.float32)
    predictions = []
    for start in range(0, len(refs), batch):
        rows = slice(start, start + batch)
        count = len(refs[rows])
        landmarks = Landmarks(points[rows], np.ones((count, len(NAMES)), np.float32), NAMES)
        predictions.append(Prediction(tuple(refs[rows]), np.full((count, 2), 64), landmarks))
    return predictions


def _write_dark_clip(path: Path, frames: int = 12, **options: object) -> Path:
    """Write a video of dark frames, so that discs drawn on the frames are visible.

    Each frame is a little brighter than the last. `encode_video` fills red and blue with random integers
    below `noise`; with noise=1, all of them are 0.
    """
    return encode_video(path, "libx264", frames=frames, noise=1, options={"crf": "5"}, **options)  # type: ignore[arg-type]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[DrawnObject]]:
    """Return a list that gets the objects of every frame that is drawn."""
    frames: list[list[DrawnObject]] = []
    monkeypatch.setattr(
        "selfmark.draw.layout.draw_frame", lambda *args: frames.append(list(args[1])) or draw_frame(*args)
    )
    return frames


def test_a_labeled_video_has_the_frames_of_its_source_with_landmarks(tmp_path: Path) -> None:
    source = _write_dark_clip(tmp_path / "clip.mp4")
    refs = [ImageRef(source, frame) for frame in range(2, 10)]
    predictions = _make_predictions(refs)
    yielded = list(draw_videos(predictions, refs, CARD, tmp_path, every=1, trail=0))
    assert len(yielded) == len(predictions)
    assert all(ours is expected for ours, expected in zip(yielded, predictions, strict=True))
    path = tmp_path / "clip_landmarks.mp4"
    with av.open(str(path)) as file:
        (stream,) = file.streams.video
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p"), (
            "browsers must be able to play it"
        )
        assert float(stream.average_rate) == pytest.approx(25)
    info = probe_video(path)
    assert info.frames == 12
    np.testing.assert_allclose(info.seconds, probe_video(source).seconds, atol=1e-3)
    zoom = 3  # small videos are enlarged
    assert info.size == (64 * zoom, 48 * zoom)
    colors = np.array([to_rgb(color) for color in landmark_colors(CARD)], int)
    source_frames = dict(read_frames(source, range(12)))
    for number, frame in read_frames(path, range(12)):
        for point, color in zip((POINTS + 0.5) * zoom - 0.5, colors, strict=True):
            x, y = np.round(point).astype(int)
            pixel = frame[y - 1 : y + 2, x - 1 : x + 2].reshape(-1, 3).mean(axis=0)
            if 2 <= number < 10:
                assert np.abs(pixel - color).max() < 70  # the file stores color at half resolution
            else:
                assert np.abs(pixel - source_frames[number].mean(axis=(0, 1))).max() < 12


def test_odd_sides_become_even_and_large_videos_are_not_enlarged(tmp_path: Path) -> None:
    odd_video = encode_video(tmp_path / "odd.mkv", "ffv1", frames=3, size=(705, 701), pixels="yuv444p")
    refs = [ImageRef(odd_video, frame) for frame in range(3)]
    list(draw_videos(_make_predictions(refs), refs, CARD, tmp_path, every=1, trail=1.0))
    assert probe_video(tmp_path / "odd_landmarks.mp4").size == (706, 702)


def test_every_second_frame_plays_as_fast_as_the_source(tmp_path: Path) -> None:
    uneven = np.cumsum([10, 40, 30, 80, 20, 50, 40, 30, 60, 40, 10, 90]).tolist()
    source = _write_dark_clip(tmp_path / "clip.mp4", milliseconds=uneven)
    refs = [ImageRef(source, frame) for frame in range(0, 12, 2)]
    list(draw_videos(_make_predictions(refs), refs, CARD, tmp_path, every=2, trail=1.0))
    info = probe_video(tmp_path / "clip_landmarks.mp4")
    assert info.frames == 6
    np.testing.assert_allclose(info.seconds, probe_video(source).seconds[::2], atol=2e-3)


def test_trails_belong_to_tracks(tmp_path: Path, drawn: list[list[DrawnObject]]) -> None:
    """Draw two animals whose order alternates: no trail leads from one to the other."""
    source = _write_dark_clip(tmp_path / "clip.mp4")
    refs, xy = [], []
    for frame in range(12):
        for track in (1, 2) if frame % 2 else (2, 1):
            if (frame, track) != (6, 2):  # animal 2 is missing once, so its trail starts again
                refs.append(ImageRef(source, frame, (0, 0, 30, 30), track))
                xy.append(POINTS / 4 + (frame, 30 if track == 2 else 5))
    list(draw_videos(_make_predictions(refs, np.array(xy)), refs, CARD, tmp_path, every=1, trail=0.2))
    del drawn[0]  # the first call only measures the size of the video
    assert len(drawn) == 12
    by_tag = {animal.tag: animal for animal in drawn[11]}
    assert {animal.tag for animal in drawn[3]} == {"1", "2"}
    assert len(by_tag["1"].trail) == 6, "0.2 s at 25 frames per second are 5 steps"
    assert len(by_tag["2"].trail) == 5, "the trail of animal 2 starts again in frame 7"
    for animal in by_tag.values():
        assert np.ptp(animal.trail[..., 1], axis=0).max() < 1, "each animal stays at its own height"
    drawn.clear()
    folder = tmp_path / "without trails"
    list(draw_videos(_make_predictions(refs, np.array(xy)), refs, CARD, folder, every=1, trail=0))
    assert {len(animal.trail) for animals in drawn for animal in animals} == {1}, (
        "a trail is the current position only"
    )


@pytest.mark.parametrize(
    ("predicted", "every", "steps"),
    [
        ([*range(5), *range(8, 12)], 1, 4),  # the animal is missing in frames 5 to 7
        (range(12), 1, 12),
        (range(0, 12, 3), 1, 4),  # only every third frame was predicted, but all frames are written
        (range(0, 12, 3), 3, 4),
        ([0, 2, 4, 8, 10], 2, 2),  # the animal is missing in frame 6
    ],
)
def test_the_trail_of_a_single_animal_starts_again_after_it_was_missing(
    predicted: Iterable[int], every: int, steps: int, tmp_path: Path, drawn: list[list[DrawnObject]]
) -> None:
    source = _write_dark_clip(tmp_path / "clip.mp4")
    refs = [ImageRef(source, frame) for frame in predicted]
    list(draw_videos(_make_predictions(refs), refs, CARD, tmp_path, every=every, trail=10.0))
    *_, (last,) = filter(None, drawn)
    assert len(last.trail) == steps


@pytest.mark.parametrize("every", [1, 5])
def test_frames_in_any_order_are_drawn(every: int, tmp_path: Path, drawn: list[list[DrawnObject]]) -> None:
    """All frames that COCO files list are drawn, in any order.

    The order may be mixed within a batch and between batches. A frame may be listed twice, and frames need
    not be multiples of `every`.
    """
    source = _write_dark_clip(tmp_path / "clip.mp4")
    for name, order in (("sorted", [0, 3, 6, 6, 9, 11]), ("unsorted", [11, 3, 6, 9, 0, 6])):
        refs = [ImageRef(source, frame) for frame in order]
        xy = np.array([POINTS / 4 + frame for frame in order])
        yielded = list(draw_videos(_make_predictions(refs, xy), refs, CARD, tmp_path / name, every, trail=1))
        assert [ref for prediction in yielded for ref in prediction.refs] == refs, "tables keep the order"
        assert [len(objects) for objects in drawn[1:]] == [1, 0, 0, 1, 0, 0, 2, 0, 0, 1, 0, 1]
        for number, objects in enumerate(drawn[1:]):  # the first call only measures the size of the video
            for item in objects:
                np.testing.assert_allclose(item.xy, (POINTS / 4 + number + 0.5) * 3 - 0.5)
        drawn.clear()
    ours, expected = (tmp_path / name / "clip_landmarks.mp4" for name in ("unsorted", "sorted"))
    for (_, picture), (_, reference) in zip(
        read_frames(ours, range(12)), read_frames(expected, range(12)), strict=True
    ):
        # The encoder may compress two files differently.
        assert np.abs(picture.astype(int) - reference).mean() < 1


def test_trails_have_the_given_length_in_seconds(tmp_path: Path, drawn: list[list[DrawnObject]]) -> None:
    source = _write_dark_clip(tmp_path / "clip.mp4")
    refs = [ImageRef(source, frame) for frame in range(0, 12, 2)]
    list(draw_videos(_make_predictions(refs), refs, CARD, tmp_path, every=1, trail=4 / 25))
    *_, (last,) = filter(None, drawn)
    assert len(last.trail) == 3, "the trail has the newest position and those 2 and 4 frames before"


def test_a_single_landmark_has_a_trail(tmp_path: Path, drawn: list[list[DrawnObject]]) -> None:
    source = _write_dark_clip(tmp_path / "clip.mp4")
    refs = [ImageRef(source, frame) for frame in range(12)]
    card = replace(CARD, hidden=(1, 2, 3))
    xy = POINTS / 4 + np.arange(12)[:, None, None]
    list(draw_videos(_make_predictions(refs, xy), refs, card, tmp_path, every=1, trail=10.0))
    assert np.isfinite(drawn[-1][0].trail).all()
    assert drawn[-1][0].size == 3 * 64


def test_hidden_landmarks_are_not_drawn_and_user_colors_are_used(tmp_path: Path) -> None:
    source = _write_dark_clip(tmp_path / "gray.mp4")
    refs = [ImageRef(source, frame) for frame in range(12)]
    card = replace(CARD, hidden=(0,), colors=("", "#00ff00", "", ""), skeleton=())
    list(draw_videos(_make_predictions(refs), refs, card, tmp_path, every=1, trail=0.0))
    (_, frame), *_ = read_frames(tmp_path / "gray_landmarks.mp4", [5])
    zoom = frame.shape[1] // 64
    hidden, green = (
        frame[tuple(np.round((point + 0.5) * zoom - 0.5).astype(int)[::-1])] for point in POINTS[:2]
    )
    assert hidden.astype(int).max() < 60, "the pixel is as dark as the video"
    assert green[1] > 150 > green[[0, 2]].max()


def test_untrusted_landmarks_are_drawn_as_rings(tmp_path: Path) -> None:
    source = encode_video(
        tmp_path / "large.mp4", "libx264", frames=3, size=(320, 240), noise=1, options={"crf": "5"}
    )
    refs = [ImageRef(source, frame, (0, 0, 240, 240)) for frame in range(3)]
    points = np.repeat(POINTS[None] * 5, 3, axis=0)
    frames = {}
    for name, trust in (("without", ()), ("with", (0.1, 0.2, 0.25, 0.9))):
        card = replace(CARD, hidden=(0,), colors=("", "#00ff00", "#00ff00", "#00ff00"), trust=trust)
        out = tmp_path / name
        list(draw_videos(_make_predictions(refs, points), refs, card, out, every=1, trail=1.0))
        ((_, frames[name]),) = read_frames(out / "large_landmarks.mp4", [1])
    zoom = frames["with"].shape[1] // 320

    def get_pixel(name: str, landmark: int, offset: float) -> np.ndarray:
        x, y = np.round((points[1, landmark] + 0.5) * zoom - 0.5 + (offset, 0)).astype(int)
        return frames[name][y, x].astype(int)

    radius = 9  # pixels of the labeled video; the largest radius of a disc or ring
    assert get_pixel("without", 1, 0)[1] > 150, "without trust, all landmarks are discs"
    assert get_pixel("with", 1, 0).max() < 60, "the middle shows the dark frame"
    assert get_pixel("with", 1, radius - 1.5)[1] > 120, "the ring has the color of the landmark"
    for landmark in (2, 3):  # landmarks with a trust of at least 0.25 are drawn as discs
        assert get_pixel("with", landmark, 0)[1] > 150


def test_an_error_or_an_early_stop_leaves_no_video(tmp_path: Path) -> None:
    source = _write_dark_clip(tmp_path / "clip.mp4")
    refs = [ImageRef(source, frame) for frame in range(12)]

    def predict_and_fail() -> Iterator[Prediction]:
        yield from _make_predictions(refs)[:2]
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        list(draw_videos(predict_and_fail(), refs, CARD, tmp_path, every=1, trail=1.0))
    stopped = draw_videos(iter(_make_predictions(refs)), refs, CARD, tmp_path, every=1, trail=1.0)
    next(stopped)
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    assert [path.name for path in tmp_path.iterdir()] == ["clip.mp4"]


def test_without_pyav_videos_are_mpeg4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _write_dark_clip(tmp_path / "clip.mp4")
    monkeypatch.setattr(video_writer, "video_reader", lambda: video_opencv)
    refs = [ImageRef(source, frame) for frame in range(12)]
    list(draw_videos(_make_predictions(refs), refs, CARD, tmp_path, every=1, trail=1.0))
    with av.open(str(tmp_path / "clip_landmarks.mp4")) as file:
        assert file.streams.video[0].codec_context.name == "mpeg4"
    assert probe_video(tmp_path / "clip_landmarks.mp4").frames == 12


def test_labeled_videos_keep_the_folders_of_their_sources(tmp_path: Path) -> None:
    refs = [ImageRef(Path("day1/a.mp4"), 0), ImageRef(Path("day2/a.mp4"), 0), ImageRef(Path("b.jpg"))]
    paths = list_labeled_video_paths(refs, tmp_path)
    assert sorted(paths.values()) == [tmp_path / f"day{n}" / "a_landmarks.mp4" for n in (1, 2)]
    assert list_labeled_video_paths(refs[2:], tmp_path) == {}


def test_a_frame_in_which_only_hidden_landmarks_are_known_is_written_without_drawings(tmp_path: Path) -> None:
    """Smoothing keeps such objects if its caller does not name the shown landmarks."""
    source = _write_dark_clip(tmp_path / "clip.mp4")
    refs = [ImageRef(source, frame) for frame in range(12)]
    xy = np.repeat(POINTS[None], len(refs), axis=0)
    xy[4:7, 1:] = np.nan
    card = replace(CARD, hidden=(0,))
    list(draw_videos(_make_predictions(refs, xy), refs, card, tmp_path, every=1, trail=1.0))
    path = tmp_path / "clip_landmarks.mp4"
    assert probe_video(path).frames == 12
    spread = [float(frame.max() - frame.min()) for _, frame in read_frames(path, range(12))]
    assert max(spread[4:7]) < 100 < min(spread[:4] + spread[7:])
