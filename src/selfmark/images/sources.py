"""What the user named on the command line, as a list of references to single images.

Folders, patterns, single files, text lists, COCO files and videos all become `ImageRef`s here; nothing
is decoded yet.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from selfmark.errors import InputError
from selfmark.image_ref import Box, ImageRef
from selfmark.images.coco import read_coco
from selfmark.images.input_files import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    parse_box,
    path_is,
    read_text,
    require_utf8,
)
from selfmark.images.video_container import require_video

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
        require_utf8(str(path), "the name of the file")
    unique: dict[tuple[Path, int | None, Box | None, int | None], ImageRef] = {}
    for ref in found:
        unique.setdefault((resolved[ref.path], ref.frame, ref.box, ref.track), ref)
    return list(unique.values())


def _expanded(item: str | Path) -> Path:
    try:
        return Path(item).expanduser()
    except RuntimeError as error:  # ~ of a user who is not there
        raise InputError(f"there is no file or folder {item}: {error}") from error


def _named(item: str | Path, every: int) -> list[ImageRef]:
    path = _expanded(item)
    if path_is(path, Path.is_dir):
        refs = _media(_walk(path), every)
        if not refs:
            raise InputError(f"the folder {path} holds no images or videos; see that the path is right")
        return refs
    if path_is(path, Path.is_file):
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
    files = sorted(path for path in paths if path.suffix.lower() in known and path_is(path, Path.is_file))
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
        if not path_is(file, Path.is_file):
            raise InputError(f"{where}: there is no file {file}; paths are relative to the list's folder")
        refs += _file(file, every, where, box)
    if not refs:
        raise InputError(f"{path} lists no images; write one path per line")
    return refs


def _list_entry(folder: Path, entry: str, where: str) -> tuple[Path, Box | None]:
    """Split `path,x,y,w,h`; a path may itself hold commas, so a file of the whole name comes first."""
    whole = folder / entry
    name, *numbers = entry.rsplit(",", 4)
    if len(numbers) < 4 or path_is(whole, Path.is_file):
        return whole, None
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    return folder / name.strip(), parse_box(values, f"{where}: the box")


# --- COCO files ------------------------------------------------------------------------------------


def _coco(path: Path) -> list[ImageRef]:
    """Return one reference per annotation with a box, and one for each image that has none."""
    file = read_coco(path)
    if not file.images:
        raise InputError(f"{path} lists no images; a COCO file names them under 'images'")
    file.check_image_ids()
    objects: dict[int | str, list[tuple[Box | None, int | None]]] = {image.id: [] for image in file.images}
    for annotation in file.annotations:
        image = file.image_of(annotation)
        box = annotation.box()
        if box is not None:
            objects[image.id].append((box, annotation.track()))

    folder = file.image_folder(file.images[0])
    refs: list[ImageRef] = []
    for image in file.images:
        frame, clip = image.frame(), image.clip_frame()
        if clip is not None:  # other files may have a video with the same id
            clip = (f"{path}:{clip[0]}", clip[1])
        for box, track in objects[image.id] or [(None, None)]:
            refs.append(ImageRef(folder / image.file_name, frame, box, track, clip))
    return refs
