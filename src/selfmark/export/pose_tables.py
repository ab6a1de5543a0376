"""Collect predictions into one table per video, for the files of pose tools (NWB and SLEAP).

Pose tools store the objects of each video together, and all frames of a video have one size. Still images are
therefore grouped by size, and each group is treated like a video.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PoseTable:
    """The N objects of one video, or of all still images of one size, sorted by frame.

    Attributes:
        paths: The video, or the images.
        is_video: True for a video, False for still images.
        size: Width and height of every frame, in pixels.
        frame: [N] frame number in the video, or index of the image in `paths`.
        instance: [N] number of the object, from 0; see `InstanceNumbers`.
        tracks: Track of each instance; empty if tracks are unknown.
        xy: [N, K, 2] pixels, pixel centers at integers.
        score: [N, K].
    """

    paths: tuple[Path, ...]
    is_video: bool
    size: tuple[int, int]
    frame: IntArray
    instance: IntArray
    tracks: tuple[int, ...]
    xy: FloatArray
    score: FloatArray


class InstanceNumbers:
    """Counter that gives objects their instance numbers, which start at 0.

    If tracks are known, each track of a video has one number, so a number is the same animal in every frame.
    Otherwise the objects of each image are numbered in the order given.
    """

    def __init__(self) -> None:
        """Start without any objects."""
        self._instances: dict[Path | None, dict[int, int]] = {}  # for each source: track -> number
        self._counts: Counter[str] = Counter()  # image name -> number of its objects so far

    def assign(self, ref: ImageRef) -> int:
        """Return the instance number of an object; the tracks of all still images are numbered together."""
        if ref.track is not None:
            instances = self._instances.setdefault(None if ref.frame is None else ref.path, {})
            return instances.setdefault(ref.track, len(instances))
        number = self._counts[ref.name]
        self._counts[ref.name] += 1
        return number

    def tracks(self, source: Path | None) -> tuple[int, ...]:
        """Return the track of each instance in the video `source`, or in all still images if that is None.

        The result is empty if tracks are unknown.
        """
        return tuple(self._instances.get(source, ()))


@dataclass
class _Rows:
    """Rows of a `PoseTable` that is still being collected."""

    images: dict[Path, int] = field(default_factory=dict)  # index of each path
    frame: list[int] = field(default_factory=list)
    instance: list[int] = field(default_factory=list)
    xy: list[npt.NDArray[np.floating]] = field(default_factory=list)
    score: list[npt.NDArray[np.floating]] = field(default_factory=list)


_Key = tuple[Path | None, int, int]  # the video, or None for still images; width; height


def gather_tables(predictions: Iterable[Prediction]) -> list[PoseTable]:
    """Collect predictions into one table per video or image size, in order of first appearance.

    Raises:
        InputError: There are no predictions.
    """
    collected: dict[_Key, _Rows] = {}
    instances = InstanceNumbers()
    for refs, sizes, landmarks in predictions:
        for index, ref in enumerate(refs):
            video = None if ref.frame is None else ref.path
            rows = collected.setdefault((video, int(sizes[index, 0]), int(sizes[index, 1])), _Rows())
            image = rows.images.setdefault(ref.path, len(rows.images))
            rows.frame.append(image if ref.frame is None else ref.frame)
            rows.instance.append(instances.assign(ref))
            rows.xy.append(landmarks.xy[index])
            rows.score.append(landmarks.score[index])
    if not collected:
        raise InputError("there is nothing to write: none of the images could be read")
    return [_build_table(key, rows, instances.tracks(key[0])) for key, rows in collected.items()]


def _build_table(key: _Key, rows: _Rows, tracks: tuple[int, ...]) -> PoseTable:
    video, width, height = key
    frame, instance = np.array(rows.frame, dtype=np.int64), np.array(rows.instance, dtype=np.int64)
    order = np.lexsort((instance, frame))
    return PoseTable(
        paths=tuple(rows.images),
        is_video=video is not None,
        size=(width, height),
        frame=frame[order],
        instance=instance[order],
        tracks=tracks,
        xy=np.stack(rows.xy)[order].astype(np.float32),
        score=np.stack(rows.score)[order].astype(np.float32),
    )
