"""What the formats of pose tools have in common: one table of objects per video, and whole files.

Pose tools know one thing with frames, of one size: a video. Still images become such a thing by size, so that
images of mixed sizes keep theirs.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

STILLS = "images"  # what a file of still images is called


@dataclass(frozen=True)
class PoseTable:
    """The N objects found in one video, or in all still images of one size; frame by frame, in order.

    paths:    the video alone, or the images
    is_video: which of the two
    size:     width and height of every frame
    frame:    [N] frame number in the video, or the number of the image in `paths`
    instance: [N] which object, from 0: of its video where tracks are known, else of its frame
    tracks:   the track of each instance; empty where none is known
    xy:       [N, K, 2] pixels, centers at integers
    score:    [N, K]
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
    """Numbers objects from 0 as they come: by track where it is known, else in the order within their image.

    So an instance is the same animal in every frame wherever that is known.
    """

    def __init__(self) -> None:
        self._tracks: dict[Path | None, dict[int, int]] = {}
        self._seen: Counter[str] = Counter()

    def number(self, ref: ImageRef) -> int:
        """The number of the next object; still images count as one source."""
        if ref.track is not None:
            tracks = self._tracks.setdefault(None if ref.frame is None else ref.path, {})
            return tracks.setdefault(ref.track, len(tracks))
        number = self._seen[ref.name]
        self._seen[ref.name] += 1
        return number

    def tracks(self, source: Path | None) -> tuple[int, ...]:
        """The track of each instance of a video, or with None of all still images; empty if not known."""
        return tuple(self._tracks.get(source, ()))


@dataclass
class _Found:
    """A `PoseTable` that still grows."""

    images: dict[Path, int] = field(default_factory=dict)  # path to its number
    frame: list[int] = field(default_factory=list)
    instance: list[int] = field(default_factory=list)
    xy: list[npt.NDArray[np.floating]] = field(default_factory=list)
    score: list[npt.NDArray[np.floating]] = field(default_factory=list)


_Key = tuple[Path | None, int, int]  # the video, or None for stills; width; height


def gather_tables(predictions: Iterable[Prediction]) -> list[PoseTable]:
    """All predictions by video or image size, in the order these first appear; at least one."""
    found: dict[_Key, _Found] = {}
    instances = InstanceNumbers()
    for refs, sizes, landmarks in predictions:
        for row, ref in enumerate(refs):
            video = None if ref.frame is None else ref.path
            here = found.setdefault((video, int(sizes[row, 0]), int(sizes[row, 1])), _Found())
            image = here.images.setdefault(ref.path, len(here.images))
            here.frame.append(image if ref.frame is None else ref.frame)
            here.instance.append(instances.number(ref))
            here.xy.append(landmarks.xy[row])
            here.score.append(landmarks.score[row])
    if not found:
        raise InputError("there is nothing to write: none of the images could be read")
    return [_media(key, rows, instances.tracks(key[0])) for key, rows in found.items()]


def _media(key: _Key, rows: _Found, tracks: tuple[int, ...]) -> PoseTable:
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


def output_paths(sources: Sequence[Path | None]) -> dict[Path | None, Path]:
    """Where a file of each video goes, laid out as the videos are below the folder that holds them all.

    A file is called by its video's name without the extension; where two would meet, it stays on. None stands
    for all still images.

    >>> names = laid_out([Path("a/day.mp4"), Path("b/day.mp4"), Path("b/day.avi"), None])
    >>> [name.as_posix() for name in names.values()]
    ['a/day', 'b/day.mp4', 'b/day.avi', 'images']
    """
    paths = {video: Path(os.path.abspath(video)) for video in sources if video is not None}
    common = os.path.commonpath([path.parent for path in paths.values()]) if paths else ""
    files = {video: path.relative_to(common) for video, path in paths.items()}
    taken = Counter(file.with_suffix("") for file in files.values())
    taken[Path(STILLS)] += None in sources
    names: dict[Path | None, Path] = {
        video: file if taken[file.with_suffix("")] > 1 else file.with_suffix("")
        for video, file in files.items()
    }
    return names | ({None: Path(STILLS)} if None in sources else {})


def mirror_pairs(card: ModelCard) -> list[tuple[int, int]]:
    """Landmarks that change places in a mirrored image, each pair once, the lower index first."""
    return [(a, b) for a, b in enumerate(card.mirror) if a < b and card.mirror[b] == a]


def require_distinct(names: Iterable[str], target: str) -> None:
    """Say no to two landmarks of one name, where the format tells landmarks apart by name."""
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise InputError(f"{times} landmarks are called '{name}', but {target} needs different names; rename")


def require_writable(folder: Path) -> None:
    """Say no to a folder that cannot be written to before the predictions are made, which may take hours."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to, renamed when all went well and removed when not."""
    temporary = path.with_name(f"{path.stem}.part{path.suffix}")  # some libraries look at the suffix
    try:
        temporary.unlink(missing_ok=True)  # it might be a link that leads elsewhere
        yield temporary
        os.replace(temporary, path)
    except OSError as error:  # h5py's may come without the usual words
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
