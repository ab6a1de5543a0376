"""Test labeled photos, side-by-side layouts, legends and texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selfmark.detector import Prediction
from selfmark.draw.frame_drawing import DrawnObject
from selfmark.draw.labeled_photos import draw_photos, list_labeled_photo_paths
from selfmark.draw.labeled_video import draw_videos
from selfmark.draw.layout import Layout, build_style, compose_picture
from selfmark.draw.primitives import draw_label, measure_label
from selfmark.image_ref import ImageRef
from selfmark.images.video import probe_video, read_frames
from selfmark.model.card import SMOOTHING
from selfmark.model.colors import landmark_colors, to_rgb
from selfmark.points import Landmarks, Motion
from tests.conftest import selfmark
from tests.export.fakes import CARD, NAMES
from tests.images.videos import encode_video

TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"
POINTS = np.array([[100, 100], [400, 100], [100, 400], [400, 400]], np.float32)
COLORS = np.array([to_rgb(color) for color in landmark_colors(CARD)], int)


def make_predictions(refs: list[ImageRef], xy: np.ndarray) -> list[Prediction]:
    """Return one batch for each of N objects; `xy` [N, K, 2] are the points of the objects."""
    score = np.ones((1, len(NAMES)), np.float32)
    return [
        Prediction((ref,), np.array([[500, 500]]), Landmarks(points[None], score, NAMES))
        for ref, points in zip(refs, xy.astype(np.float32), strict=True)
    ]


def get_pixel(picture: np.ndarray, xy: np.ndarray) -> np.ndarray:
    x, y = np.round(xy).astype(int)
    return picture[y, x].astype(int)


def test_photos_are_drawn_with_all_their_objects(tmp_path: Path) -> None:
    paths = [tmp_path / "in" / "a.png", tmp_path / "in" / "sub" / "b.png"]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (500, 500)).save(path)
    refs = [
        ImageRef(paths[0], None, (0, 0, 200, 200)),
        ImageRef(paths[1]),
        ImageRef(paths[0], None, (9, 9, 90, 90)),
    ]
    xy = np.stack([POINTS, POINTS, POINTS + 40])
    given = make_predictions(refs, xy)
    assert list(draw_photos(iter(given), refs, CARD, tmp_path / "out", Layout())) == given
    first = np.array(Image.open(tmp_path / "out" / "drawn" / "a.jpg"))
    second = np.array(Image.open(tmp_path / "out" / "drawn" / "sub" / "b.jpg"))
    assert first.shape == second.shape == (500, 500, 3)
    for index, color in enumerate(COLORS):
        for picture, points in ((first, xy[0]), (first, xy[2]), (second, xy[1])):
            assert np.abs(get_pixel(picture, points[index]) - color).max() < 60
        assert get_pixel(second, xy[2, index]).max() < 30, "this object is in the first photo only"


def test_a_photo_with_a_skipped_object_is_drawn(tmp_path: Path) -> None:
    Image.new("RGB", (500, 500)).save(tmp_path / "a.png")
    refs = [ImageRef(tmp_path / "a.png", None, box) for box in ((0, 0, 450, 450), (900, 0, 9, 9))]
    predictions = make_predictions(refs[:1], POINTS[None])  # the second box is outside the image
    assert list(draw_photos(predictions, refs, CARD, tmp_path, Layout())) == predictions
    drawn = np.array(Image.open(tmp_path / "drawn" / "a.jpg"))
    for point, color in zip(POINTS, COLORS, strict=True):
        assert np.abs(get_pixel(drawn, point) - color).max() < 60


def test_all_labeled_photos_have_different_names(tmp_path: Path) -> None:
    """If the labeled copy of a.png is called a.png.jpg, that of the photo a.png.jpg needs another name."""
    names = ["a.png", "a.jpg", "a.png.jpg", "a.png.jpg.png", "b.png"]
    copies = list_labeled_photo_paths([ImageRef(Path(name)) for name in names], tmp_path)
    assert len(set(copies.values())) == len(names)
    assert copies[Path("b.png")] == tmp_path / "drawn" / "b.jpg"


def test_a_layout_has_the_plain_picture_on_the_left_and_a_legend_on_the_right() -> None:
    frame = np.zeros((500, 500, 3), np.uint8)
    xy = POINTS.astype(np.float64)
    confidence = np.array([1.0, 0.5, 0.0, 1.0])
    drawn = DrawnObject(xy, np.ones(4), 300.0, "", xy[None], confidence)
    card = replace(CARD, names=("nose", "b", "c", "œil"), skeleton=())
    style = build_style(card, [0, 2, 3, 7], "", Layout("names", has_legend=True, has_before=True))
    picture = compose_picture(frame, [drawn], [], style)
    drawn_left = 500 + 6  # after the plain picture and a gap
    legend_left = drawn_left + 500
    assert picture.shape[0] == 500
    assert picture.shape[1] > legend_left
    for index, color in enumerate(COLORS):
        assert np.abs(get_pixel(picture, xy[index] + (drawn_left, 0)) - color).max() < 5
        assert get_pixel(picture, xy[index]).max() == 0, "the picture on the left has no landmarks"
    legend = picture[:, legend_left:].astype(int)
    rows = [legend[2 + 30 * index : 32 + 30 * index] for index in range(4)]
    for row, color in zip(rows, COLORS, strict=True):
        assert (np.abs(row - color).max(axis=2) < 5).sum() > 100, "a disc of the landmark's color"
    bars = [(row[12:18, -60:].min(axis=2) > 240).any(axis=0).sum() for row in rows]
    assert bars[0] == pytest.approx(bars[1] + 25, abs=2), "a full bar has 50 pixels"
    assert bars[2] == 0
    # Text stands beside the discs: white pixels to the upper right of each landmark.
    for x, y in (xy + np.array([drawn_left, 0])).astype(int).tolist():
        assert (picture[y - 20 : y + 2, x + 10 : x + 60].min(axis=2) > 200).any()


def test_text_beyond_ascii_is_drawn() -> None:
    pytest.importorskip("matplotlib")  # the text is drawn with a font of matplotlib
    canvases = {}
    for text in ("oeil", "œil", "äil"):
        canvas = np.zeros((40, 120, 3), np.uint8)
        draw_label(canvas, text, (5, 30), 20)
        rows, columns = np.nonzero(canvas.max(axis=2) > 128)
        width, height = measure_label(text, 20)
        assert np.ptp(columns) == pytest.approx(width, abs=6)
        assert np.ptp(rows) == pytest.approx(height, abs=6)
        canvases[text] = canvas
    assert (canvases["œil"] != canvases["äil"]).any()


def test_smoothed_videos_show_the_predicted_landmarks_on_the_left(tmp_path: Path) -> None:
    source = encode_video(tmp_path / "clip.mp4", "libx264", frames=3, size=(320, 240), noise=1)
    refs = [ImageRef(source, frame, (0, 0, 300, 200)) for frame in range(3)]
    smooth_points, predicted = POINTS / 2, POINTS / 2 + (40, -20)
    batches = []
    for ref in refs:
        motion = Motion(
            seconds=np.zeros(1),
            speed=np.zeros((1, 4), np.float32),
            distance=np.zeros((1, 4), np.float32),
            predicted=predicted[None].astype(np.float32),
            is_filled=np.zeros((1, 4), bool),
            method="kalman",
        )
        landmarks = Landmarks(smooth_points[None], np.ones((1, 4), np.float32), NAMES, motion)
        batches.append(Prediction((ref,), np.array([[320, 240]]), landmarks))
    card = replace(CARD, provenance={SMOOTHING: "kalman"}, skeleton=())
    list(draw_videos(batches, refs, card, tmp_path, 1, 0, Layout(has_before=True)))
    path = tmp_path / "clip_landmarks.mp4"
    zoom = 3
    assert probe_video(path).size == (2 * 320 * zoom + 6, 240 * zoom)
    ((_, frame),) = read_frames(path, [1])
    for index, color in enumerate(COLORS):
        right = (smooth_points[index] + 0.5) * zoom - 0.5 + (320 * zoom + 6, 0)
        left = (predicted[index] + 0.5) * zoom - 0.5
        assert np.abs(get_pixel(frame, right) - color).max() < 70
        assert np.abs(get_pixel(frame, left) - color).max() < 70


def test_predict_draws_photos(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = [photos / "000.png", photos / "001.png"]
    command = ["predict", TOY_DETECTOR, *images, "-o", tmp_path / "out", "--device=cpu"]
    assert selfmark(*command, "--draw", "--draw-text=numbers", "--legend", "--side-by-side") == 0
    assert f"labeled photos: {tmp_path / 'out' / 'drawn'}" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out" / "drawn").iterdir()) == ["000.jpg", "001.jpg"]
    for options, message in (
        (["--draw", "--draw-text=name"], "Did you mean 'names'?"),
        (["--legend"], "have no effect without --draw"),
        (["--trail=1"], "have no effect without --draw"),
    ):
        assert selfmark(*command, *options) == 2
        assert message in capsys.readouterr().err
