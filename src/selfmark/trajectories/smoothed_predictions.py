"""Smooth the predictions of videos: collect the track of each object, smooth it, and yield new batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from selfmark.config import Smoothing
from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.image_ref import Box, ImageRef
from selfmark.images.video import probe_video
from selfmark.model.card import SMOOTHING, ModelCard
from selfmark.points import Landmarks, Motion
from selfmark.trajectories.track_smoothing import SmoothTrack, Track, scale_times, smooth_track

_BATCH = 256  # objects per batch of the result


def record_smoothing(card: ModelCard, settings: Smoothing) -> ModelCard:
    """Return a copy of the card with the name of the smoothing method, which exported files then state."""
    return replace(card, provenance={**card.provenance, SMOOTHING: settings.method})


def check_smoothable(refs: Sequence[ImageRef]) -> None:
    """Raise if the objects do not form tracks in videos.

    Raises:
        InputError: If there is a still image, or if a frame has several objects that are not tracked.
    """
    seen: set[tuple[Path, int, int | None]] = set()
    for ref in refs:
        if ref.frame is None:
            raise InputError(f"--smooth smooths landmarks of videos over time, but {ref.path} is an image")
        key = (ref.path, ref.frame, ref.track)
        if key in seen:
            raise InputError(
                f"--smooth needs the track of each object, but frame {ref.frame} of {ref.path} has several "
                "objects without a track: use --find-animals, or boxes with tracks"
            )
        seen.add(key)


def smooth_predictions(
    predictions: Iterable[Prediction],
    settings: Smoothing,
    shown: Sequence[int] | None = None,
    on_note: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Prediction]:
    """Yield smoothed predictions of videos, ordered by video, frame and object.

    The landmarks of all videos are kept in memory, but no pixels. In short gaps of its track, an object is
    added with interpolated landmarks, an interpolated box and scores of 0. An object is left out of frames in
    which none of its shown landmarks has a position after smoothing.

    Args:
        predictions: Predictions of objects that `check_smoothable` accepts.
        settings: How to smooth.
        shown: Indices of the landmarks that are not hidden; None for all landmarks.
        on_note: Called with a sentence about each video in which no shown landmark has a position left.

    Raises:
        InputError: No shown landmark has a position left in any video.
    """
    tracks: dict[tuple[Path, int | None], _Rows] = {}
    names: tuple[str, ...] = ()
    for refs, sizes, landmarks in predictions:
        names = landmarks.names
        for row, ref in enumerate(refs):
            rows = tracks.setdefault((ref.path, ref.track), _Rows([], [], [], []))
            rows.refs.append(ref)
            rows.sizes.append(sizes[row])
            rows.xy.append(landmarks.xy[row])
            rows.score.append(landmarks.score[row])
    videos = {path: number for number, path in enumerate(dict.fromkeys(path for path, _ in tracks))}
    columns = list(range(len(names)) if shown is None else shown)
    objects = [smoothed for rows in tracks.values() for smoothed in _smooth_rows(rows, columns, settings)]
    _report_empty_videos(tracks, objects, columns, settings, on_note)
    # The sort is stable, so the tracks of a frame keep their order.
    objects.sort(key=lambda item: (videos[item.ref.path], item.ref.frame))
    for start in range(0, len(objects), _BATCH):
        yield _build_batch(objects[start : start + _BATCH], names, settings)


def _report_empty_videos(
    tracks: Mapping[tuple[Path, int | None], _Rows],
    objects: Iterable[_SmoothedObject],
    columns: Sequence[int],
    settings: Smoothing,
    on_note: Callable[[str], None],
) -> None:
    """Report each video in which these landmarks have no position left; raise if there is no other video."""
    scores: dict[Path, list[npt.NDArray[np.floating]]] = {}
    for (path, _), rows in tracks.items():
        scores.setdefault(path, []).extend(score[columns] for score in rows.score)
    known = {item.ref.path for item in objects}
    empty = [path for path in scores if path not in known]
    if empty and not known:
        video = str(empty[0]) if len(empty) == 1 else f"{empty[0]} and {len(empty) - 1} more"
        reason = _explain_left_out([score for path in empty for score in scores[path]], settings)
        raise InputError(f"--smooth leaves no position of any landmark in {video}: {reason}")
    for path in empty:
        reason = _explain_left_out(scores[path], settings)
        on_note(f"--smooth leaves no position of any landmark in {path}: {reason}")


def _explain_left_out(scores: Sequence[npt.NDArray[np.floating]], settings: Smoothing) -> str:
    """Return which setting leaves out all positions with these scores [K], and what to do."""
    highest = float(np.max(scores))
    if highest < settings.min_score:
        return (
            f"the highest score is {highest:.4g}, and smoothing.min_score is {settings.min_score:g}; lower "
            "smoothing.min_score"
        )
    return (
        "all positions have low scores or jump; lower smoothing.min_relative_score "
        f"({settings.min_relative_score:g}) or smoothing.min_score ({settings.min_score:g}), or raise "
        f"smoothing.max_jump ({settings.max_jump:g})"
    )


@dataclass(frozen=True)
class _Rows:
    """The objects of one track, one per row, while they are being collected.

    Attributes:
        refs: Image references.
        sizes: [2] width and height of each frame.
        xy: [K, 2] landmarks of each row.
        score: [K] scores of each row.
    """

    refs: list[ImageRef]
    sizes: list[npt.NDArray[np.int64]]
    xy: list[npt.NDArray[np.floating]]
    score: list[npt.NDArray[np.floating]]


class _SmoothedObject(NamedTuple):
    """One object in one frame: the size of the frame, and the K landmarks with the fields of `Motion`."""

    ref: ImageRef
    size: npt.NDArray[np.int64]
    xy: npt.NDArray[np.float64]
    score: npt.NDArray[np.float64]
    seconds: float
    speed: npt.NDArray[np.float64]
    distance: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]
    is_filled: npt.NDArray[np.bool_]


def _smooth_rows(rows: _Rows, columns: Sequence[int], settings: Smoothing) -> list[_SmoothedObject]:
    """Smooth one track, and return the object in every frame in which one of these landmarks is known."""
    path = rows.refs[0].path
    order = np.argsort([_get_frame_number(ref) for ref in rows.refs], kind="stable")
    frames = np.array([_get_frame_number(rows.refs[row]) for row in order])
    steps, counts = np.unique(np.diff(frames), return_counts=True)
    common_step = int(steps[counts.argmax()]) if len(steps) else 1  # the most frequent step
    # The grid has frames at equal steps from the first given frame to the last. Given frames between
    # these steps are added, for instance if the user listed single frames.
    grid = np.union1d(frames, np.arange(frames[0], frames[-1] + 1, common_step))
    grid_row = np.searchsorted(grid, frames)  # row of each given frame in the grid
    num_landmarks = len(rows.score[0])
    xy, score = np.full((len(grid), num_landmarks, 2), np.nan), np.zeros((len(grid), num_landmarks))
    xy[grid_row], score[grid_row] = np.stack(rows.xy)[order], np.stack(rows.score)[order]
    refs = [rows.refs[row] for row in order]
    video = probe_video(path)
    seconds = video.seconds[grid]
    track = Track(xy, score, seconds, _compute_object_size(refs, xy))
    smooth = smooth_track(track, scale_times(settings, video.rate))
    grid_refs = _build_refs(refs, grid, grid_row)
    # Each frame of the grid gets the size of the last given frame that is not after it.
    last_given = np.maximum(np.searchsorted(frames, grid, "right") - 1, 0)
    sizes = [rows.sizes[order[row]] for row in last_given]
    return [
        _build_object(ref, size, track, smooth, row)
        for row, (ref, size) in enumerate(zip(grid_refs, sizes, strict=True))
        if np.isfinite(smooth.xy[row, columns]).any()
    ]


def _build_object(
    ref: ImageRef,
    size: npt.NDArray[np.int64],
    track: Track,
    smooth: SmoothTrack,
    row: int,
) -> _SmoothedObject:
    return _SmoothedObject(
        ref,
        size,
        smooth.xy[row],
        track.score[row],
        float(track.seconds[row]),
        smooth.speed[row],
        smooth.distance[row],
        track.xy[row],
        smooth.is_filled[row],
    )


def _build_refs(
    refs: Sequence[ImageRef], grid: npt.NDArray[np.int64], grid_row: npt.NDArray[np.int64]
) -> list[ImageRef]:
    """Return a reference for every frame of the grid; boxes are interpolated if all given frames have one.

    Args:
        refs: references of the given frames.
        grid: [T] frame numbers, ascending.
        grid_row: row of each given frame in the grid.
    """
    boxes: list[Box | None] = [refs[0].box] * len(grid)
    if all(ref.box is not None for ref in refs):
        known = np.array([ref.box for ref in refs], dtype=np.float64)
        columns = [np.interp(grid, grid[grid_row], known[:, column]) for column in range(4)]
        boxes = [(x, y, w, h) for x, y, w, h in np.stack(columns, axis=1).tolist()]
    result = [
        ImageRef(refs[0].path, int(frame), box, refs[0].track)
        for frame, box in zip(grid.tolist(), boxes, strict=True)
    ]
    for row, ref in zip(grid_row.tolist(), refs, strict=True):
        result[row] = ref
    return result


def _compute_object_size(refs: Sequence[ImageRef], xy: npt.NDArray[np.float64]) -> float:
    """Return the size of an object in pixels: the median of the longer side of its boxes.

    If some reference has no box, tight boxes around the landmarks [T, K, 2] are used instead, without frames
    in which a landmark is unknown. The size is infinite if there are no such boxes, or if their size is 0:
    a box around a single landmark says nothing about the object.
    """
    if all(ref.box is not None for ref in refs):
        return float(np.median([max(ref.box[2:]) for ref in refs if ref.box is not None]))
    known = xy[np.isfinite(xy).all(axis=(1, 2))]
    size = float(np.median(np.ptp(known, axis=1).max(axis=1))) if len(known) else 0.0
    return size if size > 0 else float("inf")


def _get_frame_number(ref: ImageRef) -> int:
    assert ref.frame is not None, "check_smoothable accepts video frames only"
    return ref.frame


def _build_batch(
    objects: Sequence[_SmoothedObject], names: tuple[str, ...], settings: Smoothing
) -> Prediction:
    refs, sizes, xy, score, seconds, speed, distance, predicted, is_filled = zip(*objects, strict=True)
    motion = Motion(
        np.array(seconds),
        np.stack(speed).astype(np.float32),
        np.stack(distance).astype(np.float32),
        np.stack(predicted).astype(np.float32),
        np.stack(is_filled),
        settings.method,
    )
    landmarks = Landmarks(np.stack(xy).astype(np.float32), np.stack(score).astype(np.float32), names, motion)
    return Prediction(tuple(refs), np.stack(sizes), landmarks)
