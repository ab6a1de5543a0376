"""Draw labeled videos while predictions are being made.

Frames that were decoded for the prediction are not kept. Each frame is decoded again, drawn on and encoded
immediately, so that the memory needed does not grow with the length of the video.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from selfmark.detector import Prediction
from selfmark.draw.frame_drawing import DrawnObject, compute_opacity, smooth_trail
from selfmark.draw.layout import Layout, PictureStyle, build_style, compose_picture
from selfmark.draw.video_writer import VideoWriter, open_video_writer
from selfmark.errors import DiskError, InputError, report_write_errors
from selfmark.export.output_files import choose_output_paths
from selfmark.export.trust_entries import get_smoothing_method
from selfmark.image_ref import ImageRef
from selfmark.images.decode import Pixels
from selfmark.images.video import probe_video, read_frames
from selfmark.model.card import ModelCard, visible_card, visible_landmarks
from selfmark.points import FloatArray
from selfmark.run.files import atomic_write
from selfmark.run.guarded_files import make_folders

SUFFIX = "_landmarks.mp4"

# Small videos are enlarged, so that discs and lines look smooth. The factor is the smallest integer for which
# the shorter side has at least _MIN_SIDE pixels, but at most _MAX_ZOOM.
_MIN_SIDE = 700
_MAX_ZOOM = 3
_PLAIN = Layout()
_DEFAULT_RATE = 25.0  # frames per second of a video that does not state its frame rate
_NEW_WEIGHT = 0.02  # weight of the newest frame in the running mean of scores and sizes


def draw_videos(
    predictions: Iterable[Prediction],
    refs: Sequence[ImageRef],
    card: ModelCard,
    folder: Path,
    every: int,
    trail: float,
    layout: Layout = _PLAIN,
) -> Generator[Prediction, None, None]:
    """Yield predictions unchanged, and draw them on each video, into `folder`/VIDEO_landmarks.mp4.

    Hidden landmarks are not drawn. Landmarks of low trust are drawn as rings. If the frames of a video are
    not given in ascending order, its landmarks are kept in memory and drawn at the end.

    Args:
        predictions: Predictions of `refs`, in their order, or ordered by frame.
        refs: All objects that are predicted.
        card: Model card with colors, skeleton, trust and hidden landmarks.
        folder: Output folder.
        every: Write only every n-th frame of each video. If `refs` has other frames of a video, for example
            frames that a COCO file lists, write all frames of this video. In both cases, the labeled video
            plays at the original speed.
        trail: Length of the trails in seconds; 0 draws none.
        layout: What to show besides the landmarks.
    """
    paths = list_labeled_video_paths(refs, folder)
    kept, card = visible_landmarks(card), visible_card(card)
    style = build_style(card, kept, get_smoothing_method(card), layout)
    multi_track_videos = {path for path in paths if len({ref.track for ref in refs if ref.path == path}) > 1}
    frames = _list_frames(refs)
    with ExitStack() as files:
        videos: dict[Path, _LabeledVideo] = {}
        for prediction in predictions:
            for row, ref in enumerate(prediction.refs):
                if ref.frame is None:
                    continue
                if ref.path not in videos:
                    show_tracks = ref.path in multi_track_videos
                    options = _choose_options(frames[ref.path], style, every, trail, show_tracks)
                    videos[ref.path] = _LabeledVideo(ref.path, paths[ref.path], options, files)
                landmarks = prediction.landmarks
                predicted = None if landmarks.motion is None else landmarks.motion.predicted[row, kept]
                videos[ref.path].add(ref, landmarks.xy[row, kept], landmarks.score[row, kept], predicted)
            yield prediction
        for video in videos.values():
            video.finish()


def list_labeled_video_paths(refs: Iterable[ImageRef], folder: Path) -> dict[Path, Path]:
    """Map each video to the path of its labeled video; the folder structure is that of the videos."""
    videos = list(dict.fromkeys(ref.path for ref in refs if ref.frame is not None))
    return {
        video: folder / path.with_name(path.name + SUFFIX)
        for video, path in choose_output_paths(videos).items()
        if video is not None
    }


def _list_frames(refs: Iterable[ImageRef]) -> dict[Path, list[int]]:
    """Map each video to the numbers of its frames, one per object, in the given order."""
    frames: dict[Path, list[int]] = {}
    for ref in refs:
        if ref.frame is not None:
            frames.setdefault(ref.path, []).append(ref.frame)
    return frames


def _choose_options(
    frames: Sequence[int], style: PictureStyle, every: int, trail: float, show_tracks: bool
) -> _VideoOptions:
    """Return the options of a video whose objects are in these frames, in the given order."""
    every = 1 if any(frame % every for frame in frames) else every
    is_ascending = all(before <= after for before, after in pairwise(frames))
    step = max(1, round(_find_step(frames) / every))
    return _VideoOptions(style, every, step, trail, show_tracks, is_ascending)


def _find_step(frames: Iterable[int]) -> int:
    """Return the number of frames from one predicted frame to the next.

    This number is the most frequent step, because animals are missing in some frames.
    """
    values, counts = np.unique(np.diff(sorted(set(frames))), return_counts=True)
    return int(values[counts.argmax()]) if len(values) else 1


@dataclass(frozen=True)
class _VideoOptions:
    """Options of a labeled video.

    Attributes:
        style: Style and layout of the pictures.
        every: Write every n-th frame.
        step: Number of written frames from one predicted frame to the next.
        trail: Length of the trails in seconds.
        show_tracks: Whether the number of an object's track is written beside the object.
        is_ascending: Whether the objects are added in the order of their frames.
    """

    style: PictureStyle
    every: int
    step: int
    trail: float
    show_tracks: bool
    is_ascending: bool


class _PendingObject(NamedTuple):
    """An object that has been added, but whose frame has not been written yet.

    ref:       image reference with frame and track
    xy:        [K, 2] landmarks
    score:     [K] scores
    predicted: [K, 2] landmarks before smoothing; None if they are not smoothed
    """

    ref: ImageRef
    xy: FloatArray
    score: FloatArray
    predicted: FloatArray | None


@dataclass
class _TrackState:
    """Recent positions of an object, and running means of its scores and size.

    Attributes:
        history: [K, 2] landmarks in the last predicted frames, oldest first, pixels of the enlarged frame.
        last_seen: Number of frames that were written before the last frame with the object.
        typical_score: [K] running mean of the scores.
        typical_size: Running mean of the size, pixels of the enlarged frame.
    """

    history: deque[FloatArray]
    last_seen: int
    typical_score: FloatArray
    typical_size: float


class _LabeledVideo:
    """A labeled video that is being written.

    If objects are added in the order of their frames, a frame is written when the first object of a later
    frame is added; otherwise, all frames are written at the end.

    A temporary file is opened at the first frame. The exit stack `files` closes it and, if there was no
    error, renames it to `target`.
    """

    def __init__(self, video: Path, target: Path, options: _VideoOptions, files: ExitStack) -> None:
        info = probe_video(video)
        self._target = target
        self._options = options
        self._files = files
        self._rate = (info.rate or _DEFAULT_RATE) / options.every
        self._seconds = info.seconds
        self._frames = read_frames(video, range(0, info.frames, options.every))
        self._next = next(self._frames, None)  # number and pixels of the next frame to write
        trail_steps = max(1, round(options.trail * self._rate / options.step)) if options.trail > 0 else 0
        self._max_history = trail_steps + 1  # the current frame and those of the trail
        self._zoom = 1
        self._writer: VideoWriter | None = None
        self._num_written = 0
        self._frame_size = (0, 0)  # width and height of the enlarged frames
        self._size = (0, 0)  # width and height of the pictures written
        self._tracks: dict[Any, _TrackState] = {}
        self._pending: list[_PendingObject] = []  # objects of one frame
        self._unordered: list[_PendingObject] = []  # objects to draw at the end

    def add(self, ref: ImageRef, xy: FloatArray, score: FloatArray, predicted: FloatArray | None) -> None:
        """Add an object.

        Args:
            ref: Image reference of the object.
            xy: [K, 2] landmarks.
            score: [K] scores.
            predicted: [K, 2] landmarks before smoothing; None if they are not smoothed.
        """
        if not np.isfinite(xy).any():  # Smoothing left out all visible landmarks in this frame.
            return
        added = _PendingObject(ref, xy, score, predicted)
        if self._options.is_ascending:
            self._add_in_order(added)
        else:
            self._unordered.append(added)

    def _add_in_order(self, added: _PendingObject) -> None:
        """Add an object; if it is the first one of its frame, write all frames before it."""
        if self._pending and self._pending[0].ref.frame != added.ref.frame:
            self._draw_pending()
        self._pending.append(added)

    def finish(self) -> None:
        """Write all frames that are not written yet, with the objects that remain."""
        # The sort is stable, so the objects of a frame keep their order.
        for added in sorted(self._unordered, key=lambda item: item.ref.frame or 0):
            self._add_in_order(added)
        self._draw_pending()
        while self._next is not None:
            self._write(*self._next, objects=[], before=[])
            self._next = next(self._frames, None)

    def _draw_pending(self) -> None:
        """Write all frames up to the frame of the pending objects."""
        target = self._pending[0].ref.frame if self._pending else None
        if target is not None:
            while self._next is not None and self._next[0] < target:
                self._write(*self._next, objects=[], before=[])
                self._next = next(self._frames, None)
            # Objects are skipped if their frame is unreadable.
            if self._next is not None and self._next[0] == target:
                self._open(self._next[1])
                objects = self._build_drawn_objects()
                self._write(*self._next, objects=objects, before=self._build_objects_before(objects))
                self._next = next(self._frames, None)
        self._pending = []

    def _build_drawn_objects(self) -> list[DrawnObject]:
        """Return the pending objects with their trails, and update the state of their tracks."""
        objects = []
        for order, (ref, xy, score, _) in enumerate(self._pending):
            key = order if ref.track is None else ref.track
            enlarged = (xy.astype(np.float64) + 0.5) * self._zoom - 0.5
            extent = np.nanmax(xy, axis=0) - np.nanmin(xy, axis=0)
            # A single landmark has no extent; an object without a box is as large as the frame.
            size = self._zoom * max(ref.box[2:]) if ref.box else self._zoom * float(extent.max())
            size = size or float(max(self._frame_size))
            track = self._tracks.get(key)
            if track is None:
                history: deque[FloatArray] = deque(maxlen=self._max_history)
                track = _TrackState(history, self._num_written, score.astype(np.float64), size)
                self._tracks[key] = track
            # A trail ends if the object was missing in a predicted frame. It does not end at an unreadable
            # frame, which is not written, nor at the frames between two predicted frames.
            if self._num_written - track.last_seen > self._options.step:
                track.history.clear()
            track.last_seen = self._num_written
            track.typical_score = (1 - _NEW_WEIGHT) * track.typical_score + _NEW_WEIGHT * score
            track.typical_size = (1 - _NEW_WEIGHT) * track.typical_size + _NEW_WEIGHT * size
            track.history.append(enlarged)
            trail = smooth_trail(track.history, track.typical_size)
            tag = str(ref.track) if self._options.show_tracks and ref.track is not None else ""
            opacity = compute_opacity(score, track.typical_score)
            confidence = np.clip(score / np.maximum(track.typical_score, 1e-6), 0.0, 1.0)
            objects.append(DrawnObject(enlarged, opacity, track.typical_size, tag, trail, confidence))
        return objects

    def _build_objects_before(self, objects: Sequence[DrawnObject]) -> list[DrawnObject]:
        """Return the objects before smoothing, without trails; empty if landmarks are not smoothed."""
        before = []
        for drawn, pending in zip(objects, self._pending, strict=True):
            if pending.predicted is not None:
                predicted = (pending.predicted.astype(np.float64) + 0.5) * self._zoom - 0.5
                before.append(replace(drawn, xy=predicted, trail=predicted[None]))
        return before

    def _read_back(self, path: Path) -> None:
        """Raise if frames are missing in the written video, because OpenCV does not report a full disk."""
        try:
            frames = probe_video(path).frames
        except InputError:
            frames = 0
        if frames != self._num_written:
            raise DiskError(
                f"cannot write {self._target}: only {frames} of {self._num_written} frames can be read back; "
                "is the disk full?"
            )

    def _open(self, frame: Pixels) -> VideoWriter:
        """Return the writer. At the first frame, choose the size of the video and create its file."""
        if self._writer is None:
            height, width = frame.shape[:2]
            self._zoom = int(np.clip(math.ceil(_MIN_SIDE / min(height, width)), 1, _MAX_ZOOM))
            self._frame_size = (width * self._zoom, height * self._zoom)
            height, width = compose_picture(self._enlarge(frame), [], [], self._options.style).shape[:2]
            self._size = (width + width % 2, height + height % 2)  # encoders need even sides
            with report_write_errors(self._target):
                make_folders(self._target.parent)
                file = atomic_write(self._target, keep_suffix=True, verify=self._read_back)
                temporary = self._files.enter_context(file)
                self._writer = open_video_writer(temporary, self._size, self._rate)
            self._files.callback(self._writer.close)
        return self._writer

    def _write(
        self, number: int, frame: Pixels, objects: Sequence[DrawnObject], before: Sequence[DrawnObject]
    ) -> None:
        writer = self._open(frame)
        drawn = compose_picture(self._enlarge(frame), objects, before, self._options.style)
        writer.write(_fit(drawn, self._size), float(self._seconds[number]))
        self._num_written += 1

    def _enlarge(self, frame: Pixels) -> Pixels:
        """Enlarge a frame, then cut or pad it to the size of the first frame, in case the sizes differ."""
        height, width = frame.shape[:2]
        if self._zoom > 1:
            size = (width * self._zoom, height * self._zoom)
            frame = np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC), dtype=np.uint8)
        return _fit(frame, self._frame_size)


def _fit(frame: Pixels, size: tuple[int, int]) -> Pixels:
    """Cut or pad a picture at its right and lower edge to this width and height."""
    right, below = size[0] - frame.shape[1], size[1] - frame.shape[0]
    frame = frame[: size[1], : size[0]]
    padding = ((0, max(below, 0)), (0, max(right, 0)), (0, 0))
    return np.ascontiguousarray(np.pad(frame, padding, mode="edge") if right or below else frame)
