"""What the user named on the command line, as a list of references to single images.

Folders, patterns, single files, text lists, COCO files and videos all become `ImageRef`s here; nothing
is decoded yet.
"""

from __future__ import annotations

import glob
import json
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from selfmark.errors import InputError
from selfmark.image_ref import Box, ClipFrame, ImageRef
from selfmark.images.video_container import require_video

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
VIDEO_SUFFIXES = (
    *(".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv"),
    *(".ts", ".mts", ".m2ts", ".flv", ".3gp", ".ogv", ".mxf", ".h264", ".asf"),
)
_LEAST_FRAME_BYTES = 8  # of a video file; frames in which nothing changes take about twice as much


def list_images(inputs: Sequence[str | Path], every: int = 1) -> list[ImageRef]:
    """Find the images behind folders, glob patterns, images, videos, text lists and COCO files.

    The order is that of the inputs, files of a folder or pattern sorted by path; what was named twice (the
    same file, frame, box and track) is taken once. Every `every`-th frame of a video is taken, unless a COCO
    file names the frames.
    """
    if every < 1:
        raise InputError(f"every {every} frames cannot be taken; give a whole number of at least 1")
    if not inputs:
        raise InputError("no images were named; give a folder, image files, a video, a list or a COCO file")
    found = [ref for item in inputs for ref in _named(item, every)]
    resolved = {path: Path(os.path.realpath(path)) for path in {ref.path for ref in found}}
    for path in resolved:
        _require_text(str(path), "the name of the file")
    unique: dict[tuple[Path, int | None, Box | None, int | None], ImageRef] = {}
    for ref in found:
        unique.setdefault((resolved[ref.path], ref.frame, ref.box, ref.track), ref)
    return list(unique.values())


def _expanded(item: str | Path) -> Path:
    try:
        return Path(item).expanduser()
    except RuntimeError as error:  # ~ of a user who is not there
        raise InputError(f"there is no file or folder {item}: {error}") from error


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    """Whether a path is a file, or a folder; one that nothing can have, being too long, is not."""
    try:
        return kind(path)
    except (OSError, ValueError):
        return False


def _require_text(name: str, what: str) -> None:
    """Refuse names that are no text: they could be written to no file that is, such as CSV or JSON."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{what} {name!a} is not text in UTF-8: rename it") from error


def _named(item: str | Path, every: int) -> list[ImageRef]:
    path = _expanded(item)
    if _is(path, Path.is_dir):
        refs = _media(_walk(path), every)
        if not refs:
            raise InputError(f"the folder {path} holds no images or videos; see that the path is right")
        return refs
    if _is(path, Path.is_file):
        if path.suffix.lower() == ".txt":
            return _text_list(path, every)
        return _coco(path) if path.suffix.lower() == ".json" else _file(path, every, str(path))
    if glob.has_magic(str(path)):
        refs = _media(_matches(str(path)), every)
        if not refs:
            raise InputError(f"the pattern '{path}' matches no images or videos; see that it is right")
        return refs
    raise InputError(f"there is no file or folder {path}; see that the path is right")


# --- files and folders -----------------------------------------------------------------------------


def _file(path: Path, every: int, where: str, box: Box | None = None) -> list[ImageRef]:
    """The references of one image or video file."""
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return [ImageRef(path, box=box)]
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return [ImageRef(path, frame, box) for frame in range(0, _believable_frames(path), every)]
    raise InputError(
        f"{where}: '{path.suffix}' is no image or video extension; name a file such as .jpg or .mp4"
    )


def _believable_frames(path: Path) -> int:
    """How many frames a video has. A header may lie: no frame takes less than a few bytes."""
    from selfmark.images.video import count_frames  # heavy, and many who know references never see a video

    require_video(path)
    frames, most = count_frames(path), path.stat().st_size // _LEAST_FRAME_BYTES
    if frames > most:
        raise InputError(
            f"{path} says it has {frames} frames, but is far too small for that: convert it, for example to "
            "MP4 (H.264)"
        )
    return frames


def _media(paths: Iterable[Path], every: int) -> list[ImageRef]:
    """The references of all image and video files among `paths`, sorted by path; others are passed over."""
    known = IMAGE_SUFFIXES + VIDEO_SUFFIXES
    files = sorted(path for path in paths if path.suffix.lower() in known and _is(path, Path.is_file))
    return [ref for path in files for ref in _file_among_others(path, every)]


def _file_among_others(path: Path, every: int) -> list[ImageRef]:
    """As `_file`; but a video that cannot be read stays as its first frame, to be counted as lost."""
    try:
        return _file(path, every, str(path))
    except InputError:
        return [ImageRef(path, 0)]


def _walk(folder: Path) -> Iterator[Path]:
    """All files below a folder but hidden ones, through links to folders too, each folder once."""

    def refuse(error: OSError) -> None:
        raise InputError(f"cannot look into the folder {error.filename}: {error.strerror}") from error

    seen = set()
    for here, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:  # a link led back here
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(here, name) for name in files if not name.startswith("."))


def _matches(pattern: str) -> Iterator[Path]:
    """The files a pattern matches, and those inside the folders it matches, as a shell would have it."""
    for match in map(Path, set(glob.glob(pattern, recursive=True))):
        yield from _walk(match) if match.is_dir() else (match,)


# --- text lists ------------------------------------------------------------------------------------


def _text_list(path: Path, every: int) -> list[ImageRef]:
    refs: list[ImageRef] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        where = f"{path} line {number}"
        file, box = _list_entry(path.parent, entry, where)
        if not _is(file, Path.is_file):
            raise InputError(f"{where}: there is no file {file}; paths are relative to the list's folder")
        refs += _file(file, every, where, box)
    if not refs:
        raise InputError(f"{path} lists no images; write one path per line")
    return refs


def _list_entry(folder: Path, entry: str, where: str) -> tuple[Path, Box | None]:
    """Split `path,x,y,w,h`; a path may itself hold commas, so a file of the whole name comes first."""
    whole = folder / entry
    name, *numbers = entry.rsplit(",", 4)
    if len(numbers) < 4 or _is(whole, Path.is_file):
        return whole, None
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    return folder / name.strip(), read_box(values, where)


# --- COCO files ------------------------------------------------------------------------------------


def _coco(path: Path) -> list[ImageRef]:
    """One reference per annotation with a box; one without a box for an image that has none."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    images = coco_entries(path, content, "images", ("id", "file_name"))
    annotations = coco_entries(path, content, "annotations", ("image_id",))
    if not images:
        raise InputError(f"{path} lists no images; a COCO file names them under 'images'")

    boxes: dict[int | str, list[tuple[Box, int | None]]] = {}
    for where, image in images:
        if image["id"] in boxes:
            raise InputError(f"{where}: the id {image['id']!r} is taken; give each image an id of its own")
        boxes[image["id"]] = []
    for where, annotation in annotations:
        if annotation["image_id"] not in boxes:
            raise InputError(
                f"{where}: there is no image with the id {annotation['image_id']!r}; add or remove it"
            )
        if annotation.get("bbox"):
            track = coco_track(annotation, where)
            boxes[annotation["image_id"]].append((read_box(annotation["bbox"], where), track))

    folder = coco_folder(path, images[0][1]["file_name"])
    refs: list[ImageRef] = []
    for where, image in images:
        file = folder / image["file_name"]
        frame = coco_frame(file, image, where)
        film = coco_clip(file, image)
        film = None if film is None else (f"{path}:{film[0]}", film[1])  # other files have films of that name
        refs += [ImageRef(file, frame, box, track, film) for box, track in boxes[image["id"]]]
        refs += [] if boxes[image["id"]] else [ImageRef(file, frame, clip=film)]
    return refs


def coco_track(annotation: dict[str, Any], where: str) -> int | None:
    """Which of a video's objects an annotation is of, in the words of trackers, of CVAT or of SLEAP."""
    attributes = annotation.get("attributes")
    words = [annotation.get("track_id"), annotation.get("track")]
    words += (
        [attributes.get(name) for name in ("track_id", "object_id")] if isinstance(attributes, dict) else []
    )
    track = next((word for word in words if word is not None), None)
    if isinstance(track, bool) or not isinstance(track, int | None):
        raise InputError(f"{where}: a track is a whole number, not {track!r}")
    return track


def coco_entries(
    path: Path, content: Any, key: str, needed: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """The checked entries under a key of a COCO file, each with the words that name its place."""
    entries = content.get(key, []) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise InputError(f"{path} is not a COCO file: it needs a list under '{key}'")
    placed = [(f"{path}: {key}[{number}]", entry) for number, entry in enumerate(entries)]
    for where, entry in placed:
        for name in needed:
            value = entry.get(name) if isinstance(entry, dict) else None
            if isinstance(value, bool) or not isinstance(value, str if name == "file_name" else (int, str)):
                raise InputError(f"{where} needs a usable '{name}', not {reprlib.repr(value)}")
            if isinstance(value, str):
                _require_text(value, f"{where}: the '{name}'")
    return placed


def coco_folder(path: Path, first: str) -> Path:
    """COCO files leave open what file names are relative to: take the first place where one exists."""
    places = (path.parent, path.parent / "images", path.parent / "images" / path.stem)
    for place in places:
        if _is(place / first, Path.is_file):
            return place
    raise InputError(f"{path}: '{first}' is in none of {', '.join(map(str, places))}; move the images there")


def coco_frame(file: Path, image: dict[str, Any], where: str) -> int | None:
    """The frame number of an image entry, None for still images."""
    if file.suffix.lower() in IMAGE_SUFFIXES:
        return None
    if file.suffix.lower() not in VIDEO_SUFFIXES:
        raise InputError(
            f"{where}: '{file.name}' has no image or video extension; name a file such as .jpg or .mp4"
        )
    frame = image.get("frame")
    if isinstance(frame, bool) or not isinstance(frame, int) or frame < 0:
        raise InputError(f"{where}: a video needs a 'frame' that counts from 0, not {frame!r}")
    return frame


def coco_clip(file: Path, image: dict[str, Any]) -> ClipFrame | None:
    """Which frame of which film a still is, in the words of COCO files of videos; None where it is no frame.

    >>> coco_clip(Path("3/7.jpg"), {"video_id": 3, "frame_id": 6})
    ('3', 6)
    """
    video, frame = image.get("video_id"), image.get("frame_id")
    named = isinstance(video, int | str) and not isinstance(video, bool)
    if file.suffix.lower() not in IMAGE_SUFFIXES or not named or isinstance(frame, bool):
        return None
    return (str(video), frame) if isinstance(frame, int) and 0 <= frame < 2**31 else None


# --- shared by lists and COCO files ----------------------------------------------------------------


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file; save it as UTF-8") from error


def read_box(values: Any, where: str) -> Box:
    """Four numbers as a box, or one sentence on why they are none."""
    numbers = values if isinstance(values, list) else []
    # Compared, not tested by isfinite, which fails on whole numbers too large for a float.
    real = all(isinstance(n, (int, float)) and not isinstance(n, bool) and abs(n) < 1e18 for n in numbers)
    # Boxes without area occur in real label files; the store skips them and says so.
    if len(numbers) != 4 or not real or numbers[2] < 0 or numbers[3] < 0:
        raise InputError(
            f"{where}: a box is four finite numbers x, y, w, h with w and h not negative, "
            f"not {reprlib.repr(values)}"
        )
    x, y, width, height = map(float, numbers)
    return x, y, width, height
