"""A labeled video of every video predicted, made while the predictions pass by.

Each frame is decoded a second time, drawn upon and encoded at once, so an hour of video needs no more memory
than a minute.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import cv2
import numpy as np

from selfmark.detector import Prediction
from selfmark.draw.frame_drawing import DrawingStyle, DrawnObject, draw_frame, landmark_opacity, smooth_trail
from selfmark.draw.video_writer import VideoWriter, open_video_writer
from selfmark.errors import InputError
from selfmark.export.output_files import output_paths
from selfmark.image_ref import ImageRef
from selfmark.images.decode import Pixels
from selfmark.images.video import probe_video, read_frames
from selfmark.model.card import ModelCard, visible_card, visible_landmarks
from selfmark.model.colors import landmark_colors, to_rgb
from selfmark.points import FloatArray

SUFFIX = "_landmarks.mp4"

_SHARP = 700  # frames are enlarged by a whole number until the shorter side has so many pixels, so that
_LARGEST = 3  # discs and lines are smooth on small videos too; but not more than this
_STEADY = 0.02  # share of the newest frame in what a score or a size usually is


def draw_videos(
    predictions: Iterable[Prediction],
    refs: Sequence[ImageRef],
    card: ModelCard,
    folder: Path,
    every: int,
    trail: float,
) -> Iterator[Prediction]:
    """The same predictions; on the way their videos are drawn into `folder`/VIDEO_landmarks.mp4.

    Args:
        predictions: of `refs`, in their order.
        refs: all objects that are predicted.
        every: the film has every so manyth frame of the video, and plays as fast.
        trail: seconds a landmark's trail lasts; 0 for none.
    """
    names = labeled_video_paths(refs, folder)
    kept, card = visible_landmarks(card), visible_card(card)  # hidden landmarks are in no film
    tagged = {path for path in names if len({ref.track for ref in refs if ref.path == path}) > 1}
    with ExitStack() as films:
        open_films: dict[Path, _Film] = {}
        for prediction in predictions:
            for row, ref in enumerate(prediction.refs):
                if ref.frame is None:
                    continue
                if ref.path not in open_films:
                    film = _Film(ref.path, names[ref.path], card, every, trail, ref.path in tagged)
                    open_films[ref.path] = films.enter_context(film)
                found = prediction.landmarks
                open_films[ref.path].add(ref, found.xy[row, kept], found.score[row, kept])
            yield prediction


def labeled_video_paths(refs: Iterable[ImageRef], folder: Path) -> dict[Path, Path]:
    """The film of each video, laid out as the videos are."""
    videos = list(dict.fromkeys(ref.path for ref in refs if ref.frame is not None))
    if not videos:
        raise InputError("--draw makes labeled videos, and there is no video among the inputs")
    return {
        video: folder / name.with_name(name.name + SUFFIX)
        for video, name in output_paths(videos).items()
        if video is not None
    }


@dataclass
class _Animal:
    """What is remembered of one object: its last places, and what its scores and size usually are."""

    history: deque[FloatArray]
    usual: FloatArray
    size: float


class _Film:
    """The film of one video. Objects come in the order of their frames."""

    def __init__(
        self, video: Path, target: Path, card: ModelCard, every: int, trail: float, tagged: bool
    ) -> None:
        about = probe_video(video)
        self._target = target
        self._part = target.with_name(f"{target.stem}.part{target.suffix}")
        self._rate = (about.rate or 25.0) / every
        self._seconds = about.seconds
        self._frames = read_frames(video, range(0, about.frames, every))
        self._head = next(self._frames, None)  # the frame to be shown next
        self._style = DrawingStyle(
            np.array([to_rgb(color) for color in landmark_colors(card)], np.uint8), card.skeleton
        )
        self._steps = max(1, round(trail * self._rate))
        self._tagged = tagged
        self._zoom = 1
        self._sink: VideoWriter | None = None
        self._shape = (0, 0)
        self._animals: dict[Any, _Animal] = {}
        self._waiting: list[tuple[ImageRef, FloatArray, FloatArray]] = []

    def __enter__(self) -> _Film:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._draw_waiting()
                while self._head is not None:  # behind the last object
                    self._show(*self._head, objects=[])
                    self._head = next(self._frames, None)
        finally:
            if self._sink is not None:
                self._sink.close()
                if error is None:
                    os.replace(self._part, self._target)
            self._part.unlink(missing_ok=True)

    def add(self, ref: ImageRef, xy: FloatArray, score: FloatArray) -> None:
        if self._waiting and self._waiting[0][0].frame != ref.frame:
            self._draw_waiting()
        self._waiting.append((ref, xy, score))

    def _draw_waiting(self) -> None:
        """Frames up to that of the objects that wait, the last with them."""
        target = self._waiting[0][0].frame if self._waiting else None
        if target is not None:
            while self._head is not None and self._head[0] < target:
                self._show(*self._head, objects=[])
                self._head = next(self._frames, None)
            if self._head is not None and self._head[0] == target:  # it is not where frames come out of order
                self._open(self._head[1])
                self._show(*self._head, objects=self._seen())
                self._head = next(self._frames, None)
        self._waiting = []

    def _seen(self) -> list[DrawnObject]:
        objects, present = [], set()
        for order, (ref, xy, score) in enumerate(self._waiting):
            key = order if ref.track is None else ref.track
            places = (xy.astype(np.float64) + 0.5) * self._zoom - 0.5
            size = self._zoom * (max(ref.box[2:]) if ref.box else float(np.ptp(xy, axis=0).max()))
            animal = self._animals.get(key)
            if animal is None:
                history: deque[FloatArray] = deque(maxlen=self._steps + 1)
                animal = self._animals[key] = _Animal(history, score.astype(np.float64), size)
            animal.usual = (1 - _STEADY) * animal.usual + _STEADY * score
            animal.size = (1 - _STEADY) * animal.size + _STEADY * size
            animal.history.append(places)
            trail = smooth_trail(animal.history, animal.size)
            tag = str(ref.track) if self._tagged and ref.track is not None else ""
            objects.append(
                DrawnObject(places, landmark_opacity(score, animal.usual), animal.size, tag, trail)
            )
            present.add(key)
        for key in self._animals.keys() - present:
            self._animals[key].history.clear()  # a trail does not bridge a gap
        return objects

    def _open(self, frame: Pixels) -> None:
        if self._sink is None:
            height, width = frame.shape[:2]
            self._zoom = int(np.clip(-(-_SHARP // min(height, width)), 1, _LARGEST))
            width, height = width * self._zoom, height * self._zoom
            self._shape = (width + width % 2, height + height % 2)  # encoders want even sides
            try:
                self._target.parent.mkdir(parents=True, exist_ok=True)
                self._sink = open_video_writer(self._part, self._shape, self._rate)
            except OSError as error:
                raise InputError(f"cannot write {self._target}: {error.strerror or error}") from error

    def _show(self, number: int, frame: Pixels, objects: Sequence[DrawnObject]) -> None:
        self._open(frame)
        assert self._sink is not None
        self._sink.write(
            draw_frame(self._enlarged(frame), objects, self._style), float(self._seconds[number])
        )

    def _enlarged(self, frame: Pixels) -> Pixels:
        height, width = frame.shape[:2]
        if self._zoom > 1:
            size = (width * self._zoom, height * self._zoom)
            frame = np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC), dtype=np.uint8)
        # One row or column more where a side is odd; frames of another size than the first are cut or padded.
        right, below = self._shape[0] - frame.shape[1], self._shape[1] - frame.shape[0]
        frame = frame[: self._shape[1], : self._shape[0]]
        padding = ((0, max(below, 0)), (0, max(right, 0)), (0, 0))
        return np.ascontiguousarray(np.pad(frame, padding, mode="edge") if right or below else frame)
