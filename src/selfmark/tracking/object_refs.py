"""From what the user named to one reference per object: whole images, boxes, a crop, found animals."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath

import numpy as np
from PIL import Image

from selfmark.config import Tracking
from selfmark.errors import InputError
from selfmark.image_ref import Box, ImageRef
from selfmark.images.box_files import FileBox, read_boxes
from selfmark.images.sources import list_images
from selfmark.images.video import probe_video
from selfmark.tracking.animals import build_square_refs, track_animals

Progress = Callable[[int, int], None]
Notes = Callable[[str], None]


@dataclass(frozen=True)
class Regions:
    """Where in each image the objects are: at most one of these, none for the whole image.

    boxes:   a file of boxes, as `read_boxes` takes them
    crop:    x, y, w, h, the same in every image
    animals: so many, to be found in videos of a fixed camera
    """

    boxes: Path | None = None
    crop: Box | None = None
    animals: int = 0

    def __post_init__(self) -> None:
        if (self.boxes is not None) + (self.crop is not None) + (self.animals > 0) > 1:
            raise InputError(
                "--boxes, --crop and --find-animals each say where the objects are; give one of them"
            )
        if self.animals < 0:
            raise InputError(f"{self.animals} animals cannot be found; give a whole number of at least 1")


def locate_objects(
    inputs: Sequence[str | Path],
    every: int = 1,
    where: Regions | None = None,
    settings: Tracking | None = None,
    on_progress: Progress | None = None,
    on_note: Notes = lambda sentence: None,
) -> list[ImageRef]:
    """One reference per object in the images and videos named.

    Args:
        inputs: as `list_images` takes them.
        every: of videos, take every so manyth frame; animals are followed through all of them.
        where: where the objects are; None: an object fills its image.
        settings: how animals are found.
        on_progress: called with frames looked at and frames in all of a video in which animals are found.
        on_note: called with a sentence on what is left out.
    """
    refs, where = list_images(inputs, every), where or Regions()
    if where == Regions():
        _require_tracks(refs)
        return refs
    if any(ref.box is not None for ref in refs):
        raise InputError("the images named have boxes already; leave out --boxes, --crop and --find-animals")
    if where.crop is not None:
        return _cropped(refs, where.crop)
    if where.animals:
        return _found(refs, every, where.animals, settings or Tracking(), on_progress, on_note)
    assert where.boxes is not None
    return attach_boxes(refs, where.boxes, on_note)


def parse_crop(text: str) -> Box:
    """A crop as written on the command line.

    >>> read_crop("10,20,300,200")
    (10.0, 20.0, 300.0, 200.0)
    """
    try:
        x, y, width, height = (float(word) for word in text.split(","))
    except ValueError:
        x = y = width = height = float("nan")
    if not (width > 0 and height > 0 and abs(x) < 1e9 and abs(y) < 1e9):
        raise InputError(f"--crop takes X,Y,WIDTH,HEIGHT in pixels, not '{text}'")
    return x, y, width, height


def _cropped(refs: Sequence[ImageRef], crop: Box) -> list[ImageRef]:
    for path in dict.fromkeys(ref.path for ref in refs if ref.frame is not None):
        try:
            width, height = probe_video(path).size
        except InputError:
            continue  # counted among what cannot be read
        if crop[0] >= width or crop[1] >= height or crop[0] + crop[2] <= 0 or crop[1] + crop[3] <= 0:
            raise InputError(f"the crop lies outside {path}, whose frames are {width} x {height} pixels")
    return [replace(ref, box=crop) for ref in refs]


def _found(
    refs: Sequence[ImageRef],
    every: int,
    animals: int,
    settings: Tracking,
    on_progress: Progress | None,
    on_note: Notes,
) -> list[ImageRef]:
    """Animals of all videos; one in which none are found is no reason to lose the others."""
    stills = [ref.path for ref in refs if ref.frame is None]
    if stills:
        raise InputError(f"animals are found in videos, and {stills[0]} is an image; give --boxes or --crop")
    found: list[ImageRef] = []
    refusals: list[InputError] = []
    for path in dict.fromkeys(ref.path for ref in refs):
        try:
            tracks = track_animals(path, animals, settings, on_progress)
        except InputError as error:
            refusals.append(error)
            continue
        found += build_square_refs(path, tracks, every)
        if tracks.unread:
            on_note(f"{tracks.unread} of {len(tracks.center)} frames of {path} could not be read")
        absent = int(np.isnan(tracks.center[..., 0]).all(axis=1).sum()) - tracks.unread
        if absent > 0:
            on_note(f"no animal was seen in {absent} of {len(tracks.center)} frames of {path}")
    if not found:
        raise refusals[0]
    for refusal in refusals:
        on_note(f"left out: {refusal}")
    return found


# --- boxes of a file -------------------------------------------------------------------------------


def attach_boxes(refs: Sequence[ImageRef], file: Path, on_note: Notes) -> list[ImageRef]:
    """The objects of images that have boxes in a file, in the order of the images; others are left out."""
    boxes = read_boxes(file)
    find = _Finder(file, refs)
    films = {ref.path: ref.clip for ref in refs}
    objects: dict[tuple[Path, int | None], list[ImageRef]] = defaultdict(list)
    for given in boxes:
        path, frame = find(given)
        if path is not None:
            box = _in_pixels(given, path)
            objects[path, frame].append(ImageRef(path, frame, box, given.track, films[path]))
    placed = [one for ref in refs for one in objects.get((ref.path, ref.frame), ())]
    if not placed:
        raise InputError(
            f"{file}: none of its {len(boxes)} boxes is of the {len(refs)} images given; "
            f"the first is of {_said(boxes[0])}, the first image is {refs[0].name}"
        )
    _require_tracks(placed)
    without = sum((ref.path, ref.frame) not in objects for ref in refs)
    if without:
        on_note(f"{without} of {len(refs)} images have no box in {file} and were left out")
    return placed


def _said(given: FileBox) -> str:
    frame = "" if given.frame is None else f"frame {given.frame}"
    return " of ".join(part for part in (frame, f"'{given.image}'" if given.image else "") if part)


class _Finder:
    """Finds the image or frame a box is of by how its path ends: box files often come from elsewhere."""

    def __init__(self, file: Path, refs: Sequence[ImageRef]) -> None:
        self._file = file
        self._is_video = {ref.path: ref.frame is not None for ref in refs}
        self._named: dict[str, list[Path]] = defaultdict(list)
        self._stems: dict[str, list[Path]] = defaultdict(list)
        for path in self._is_video:
            self._named[path.name].append(path)
            self._stems[path.stem].append(path)

    def __call__(self, given: FileBox) -> tuple[Path | None, int | None]:
        """The file, None if it is not among those given, and the frame."""
        path, frame = self._path(given)
        if path is None or not self._is_video[path]:
            return path, None
        if frame is None:
            raise InputError(
                f"{given.where}: {path} is a video, so the box needs the number of its frame, from 0"
            )
        return path, frame

    def _path(self, given: FileBox) -> tuple[Path | None, int | None]:
        if not given.image:
            if len(self._is_video) > 1:
                raise InputError(f"{given.where}: several files are given, so say which in a column 'image'")
            return next(iter(self._is_video)), given.frame
        if not given.shares:
            return self._only(given, self._named[PurePath(given.image).name]), given.frame
        # YOLO's text files: the image's name, or a video's with the number of its frame from 1.
        numbered = re.fullmatch(r"(.+)_(\d+)", given.image)
        if given.image not in self._stems and numbered and int(numbered[2]) > 0:
            videos = [path for path in self._stems[numbered[1]] if self._is_video[path]]
            return self._only(given, videos), int(numbered[2]) - 1
        return self._only(given, self._stems[given.image]), None

    def _only(self, given: FileBox, paths: Sequence[Path]) -> Path | None:
        """Of the files with this name the one whose folders agree best."""
        parts = PurePath(given.image).parts
        alike = {path: _same_end(parts, Path(os.path.abspath(path)).parts) for path in paths}
        best = [path for path in alike if alike[path] == max(alike.values())]
        if len(best) > 1:
            raise InputError(
                f"{given.where}: '{given.image}' may be {best[0]} or {best[1]}; give one of them"
            )
        return best[0] if best else None


def _same_end(one: Sequence[str], other: Sequence[str]) -> int:
    """How many parts two paths have in common at their ends."""
    same = (a == b for a, b in zip(reversed(one), reversed(other), strict=False))
    return sum(1 for _ in itertools.takewhile(bool, same))


def _in_pixels(given: FileBox, path: Path) -> Box:
    if not given.shares:
        return given.box
    width, height = _size(path)
    x, y, w, h = given.box
    return x * width, y * height, w * width, h * height


@lru_cache(maxsize=1024)
def _size(path: Path) -> tuple[int, int]:
    """Width and height of an upright image, or of the frames of a video; nothing is decoded."""
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(0x0112, 1) >= 5
            return (image.height, image.width) if turned else (image.width, image.height)
    except OSError:
        return probe_video(path).size


def _require_tracks(refs: Sequence[ImageRef]) -> None:
    """Say no to tracks that formats could not keep apart: of some objects only, or twice in a frame."""
    known: dict[Path | None, ImageRef] = {}
    seen: set[tuple[str, int]] = set()
    for ref in refs:
        first = known.setdefault(None if ref.frame is None else ref.path, ref)
        if (first.track is None) != (ref.track is None):
            one, other = (ref, first) if first.track is None else (first, ref)
            raise InputError(
                f"a box of {one.name} has a track and one of {other.name} has none; give all one, or none"
            )
        if ref.track is not None:
            if (ref.name, ref.track) in seen:
                raise InputError(f"{ref.name} has two boxes of track {ref.track}; give each object one box")
            seen.add((ref.name, ref.track))
