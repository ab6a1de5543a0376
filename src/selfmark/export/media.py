"""What the formats of pose tools have in common: one table of objects per video, and whole files.

Pose tools know one thing with frames, of one size: a video. Still images become such a thing by size, so that
images of mixed sizes keep theirs.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.detector import ModelCard, Prediction
from selfmark.errors import InputError
from selfmark.errors import need as need

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Media:
    """The N objects found in one video, or in all still images of one size; frame by frame, in order.

    paths:    the video alone, or the images
    is_video: which of the two
    size:     width and height of every frame
    frame:    [N] frame number in the video, or the number of the image in `paths`
    instance: [N] which object of its frame, from 0
    xy:       [N, K, 2] pixels, centres at integers
    score:    [N, K]
    """

    paths: tuple[Path, ...]
    is_video: bool
    size: tuple[int, int]
    frame: IntArray
    instance: IntArray
    xy: FloatArray
    score: FloatArray


@dataclass
class _Found:
    """A `Media` that still grows."""

    images: dict[Path, int] = field(default_factory=dict)  # path to its number
    frame: list[int] = field(default_factory=list)
    instance: list[int] = field(default_factory=list)
    xy: list[npt.NDArray[np.floating]] = field(default_factory=list)
    score: list[npt.NDArray[np.floating]] = field(default_factory=list)


_Key = tuple[Path | None, int, int]  # the video, or None for stills; width; height


def gather(predictions: Iterable[Prediction]) -> list[Media]:
    """All predictions by video or image size, in the order these first appear; at least one."""
    found: dict[_Key, _Found] = {}
    seen: Counter[str] = Counter()
    for refs, sizes, landmarks in predictions:
        for row, ref in enumerate(refs):
            video = None if ref.frame is None else ref.path
            here = found.setdefault((video, int(sizes[row, 0]), int(sizes[row, 1])), _Found())
            image = here.images.setdefault(ref.path, len(here.images))
            here.frame.append(image if ref.frame is None else ref.frame)
            here.instance.append(seen[ref.name])
            here.xy.append(landmarks.xy[row])
            here.score.append(landmarks.score[row])
            seen[ref.name] += 1
    if not found:
        raise InputError("there is nothing to write: none of the images could be read")
    return [_media(key, rows) for key, rows in found.items()]


def _media(key: _Key, rows: _Found) -> Media:
    video, width, height = key
    frame, instance = np.array(rows.frame, dtype=np.int64), np.array(rows.instance, dtype=np.int64)
    order = np.lexsort((instance, frame))
    return Media(
        paths=tuple(rows.images),
        is_video=video is not None,
        size=(width, height),
        frame=frame[order],
        instance=instance[order],
        xy=np.stack(rows.xy)[order].astype(np.float32),
        score=np.stack(rows.score)[order].astype(np.float32),
    )


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
def writing(path: Path) -> Iterator[Path]:
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
