"""Which images the page shows, and where the landmarks are in them: found once, kept in RUN/naming."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.model.card import ModelCard
from selfmark.run.files import read_json, require_format
from selfmark.run.image_list import refs_from_json
from selfmark.sampling import evenly_spaced

FOLDER = "naming"
POINTS = "landmarks.safetensors"
FRAMES = "frames"  # pictures of video frames, which could not be found again quickly

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ShownImages:
    """N images with their K landmarks.

    refs:    N images
    sizes:   [N, 2] int64, width and height of the originals
    regions: [N, 4] float64, what the network saw of each: x, y, w, h, corner convention
    xy:      [N, K, 2] float32, pixels of the original
    score:   [N, K] float32
    frames:  for each image that is a frame of a video the JPEG file that shows it, else None
    """

    refs: tuple[ImageRef, ...]
    sizes: npt.NDArray[np.int64]
    regions: npt.NDArray[np.float64]
    xy: Floats
    score: Floats
    frames: tuple[Path | None, ...]

    def __len__(self) -> int:
        return len(self.refs)


# --- which images ------------------------------------------------------------------------------------


def choose_images(folder: Path, given: Sequence[str], most: int) -> list[ImageRef]:
    """At most so many images, evenly spread: the run's, those given, or the run's moved there."""
    own = _images_of_run(folder)
    if given:
        found = list_images(given)
        refs = _moved(own, found) or found
    elif not own:
        raise InputError(
            f"{folder} does not say which images it was made from: name some with "
            f"'selfmark name {folder} IMAGES'"
        )
    else:
        refs = own
    rows = evenly_spaced(len(refs), most, nearest=True)
    chosen = [refs[row] for row in rows]
    if not any(os.path.isfile(ref.path) for ref in chosen):
        raise InputError(
            f"the images of {folder} are no longer where they were (first: {chosen[0].path}): name their new "
            f"place with 'selfmark name {folder} IMAGES'"
        )
    return chosen


def _images_of_run(folder: Path) -> list[ImageRef]:
    if not (folder / "run.json").exists():
        return []
    require_format(read_json(folder / "run.json"), folder / "run.json")
    try:
        return refs_from_json(read_json(folder / "images.json"))
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / 'images.json'} is not a usable list of images: {error}") from error


def _moved(own: Sequence[ImageRef], found: Sequence[ImageRef]) -> list[ImageRef]:
    """The run's images, boxes included, that have a namesake among those found; told apart by their folders.

    >>> own = [ImageRef(Path("old/a/1.jpg")), ImageRef(Path("old/b/1.jpg"), box=(0, 0, 9, 9))]
    >>> _moved(own, [ImageRef(Path("new/b/1.jpg")), ImageRef(Path("new/2.jpg"))])
    [ImageRef(path=PosixPath('new/b/1.jpg'), frame=None, box=(0, 0, 9, 9))]
    """
    by_name: dict[str, list[Path]] = {}
    for path in dict.fromkeys(ref.path for ref in own):
        by_name.setdefault(path.name, []).append(path)
    place: dict[Path, Path] = {}  # of the run's file, where it is now
    for now in dict.fromkeys(ref.path for ref in found if ref.path.name in by_name):
        place[max(by_name[now.name], key=lambda path, now=now: _common_end(path, now))] = now  # type: ignore[misc]
    return [replace(ref, path=place[ref.path]) for ref in own if ref.path in place]


def _common_end(one: Path, other: Path) -> int:
    """How many parts two paths share, counted from their ends."""
    count = 0
    for a, b in zip(reversed(one.parts), reversed(other.parts), strict=False):
        if a != b:
            break
        count += 1
    return count


# --- what was found in them --------------------------------------------------------------------------


def load_cached_points(
    folder: Path, refs: Sequence[ImageRef], fingerprint: str, landmarks: int
) -> ShownImages | None:
    """What was found in these images by this model, if it was; None if it is to be found now."""
    home = folder / FOLDER
    try:
        with safe_open(home / POINTS, framework="numpy") as file:
            if dict(file.metadata() or {}).get("fingerprint") != fingerprint:
                return None
            rows, sizes, regions, xy, score = (
                file.get_tensor(name) for name in ("rows", "sizes", "regions", "xy", "score")
            )
    except (OSError, SafetensorError):
        return None
    used = tuple(refs[row] for row in rows.tolist())
    if xy.shape != (len(used), landmarks, 2) or score.shape != xy.shape[:2]:
        return None
    frames = [home / FRAMES / f"{row}.jpg" if refs[row].frame is not None else None for row in rows.tolist()]
    return ShownImages(used, sizes, regions, xy, score, tuple(frames))


def images_fingerprint(model: Path, card: ModelCard, refs: Sequence[ImageRef]) -> str:
    """Changes whenever landmarks may be found elsewhere: with the model, the images and their files."""
    digest = hashlib.sha256()
    with open(model / "weights.safetensors", "rb") as handle:
        digest.update(hashlib.file_digest(handle, "sha256").digest())
    sections = dataclasses.asdict(card.images), dataclasses.asdict(card.network)
    digest.update(json.dumps([card.mirror if card.flip_test else None, card.refine, *sections]).encode())
    # One by one and without keeping anything: there may be very many.
    for path, group in groupby(refs, key=lambda ref: os.fspath(ref.path)):
        try:
            status = os.stat(path)
            state = status.st_size, status.st_mtime_ns
        except OSError:
            state = -1, -1
        boxes = [(ref.frame, ref.box) for ref in group]
        digest.update(json.dumps([os.path.abspath(path), state, boxes]).encode())
    return digest.hexdigest()
