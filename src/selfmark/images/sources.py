"""List the images of folders, patterns, files, text lists, COCO files and videos as `ImageRef`s.

Image files are not opened here, except for the sizes of images for which a COCO file gives boxes.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from selfmark.errors import InputError
from selfmark.image_ref import Box, ImageRef
from selfmark.images.coco import CocoFile, read_coco
from selfmark.images.input_files import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    parse_box,
    path_is,
    read_text_lines,
    require_file_name,
    require_input,
)


def to_input_list(inputs: str | Path | Sequence[str | Path]) -> list[str | Path]:
    """Return the inputs as a list; a single input may be given without a list."""
    return [inputs] if isinstance(inputs, (str, Path)) else list(inputs)


def list_images(
    inputs: Sequence[str | Path], every: int = 1, on_note: Callable[[str], None] = lambda sentence: None
) -> list[ImageRef]:
    """List the images of folders, glob patterns, image files, videos, text lists and COCO files.

    Images keep the order of the inputs; the files of a folder or pattern are sorted by path. An image that
    occurs twice (same file, frame, box and track) is listed once.

    Args:
        inputs: the folders, patterns and files.
        every: use every n-th frame of each video; all frames listed in a COCO file are used.
        on_note: called with a sentence if some boxes of a COCO file do not fit their images.

    Raises:
        InputError: if an input does not exist, is not readable or contains no images, or if the boxes of a
            COCO file belong to other images.
    """
    if every < 1:
        raise InputError(f"cannot use every {every}-th frame of a video; give a whole number of at least 1")
    if not inputs:
        raise InputError("no images were given; pass a folder, image files, a video, a list or a COCO file")
    refs = [ref for item in inputs for ref in _list_input(item, every, on_note)]
    paths = {ref.path for ref in refs}
    for path in paths:
        require_file_name(str(path), "the file name")
    resolved_paths = {path: Path(os.path.realpath(path)) for path in paths}
    unique: dict[tuple[Path, int | None, Box | None, int | None], ImageRef] = {}
    for ref in refs:
        unique.setdefault((resolved_paths[ref.path], ref.frame, ref.box, ref.track), ref)
    return list(unique.values())


def _list_input(item: str | Path, every: int, on_note: Callable[[str], None]) -> list[ImageRef]:
    path = require_input(item)
    if path_is(path, Path.is_dir):
        refs = _list_media(_walk(path), every)
        if not refs:
            raise InputError(f"the folder {path} contains no images or videos; check the path")
        return refs
    if path_is(path, Path.is_file):
        if path.suffix.lower() == ".txt":
            return _read_text_list(path, every)
        if path.suffix.lower() == ".json":
            return _list_coco(path, on_note)
        return _list_file(path, every, str(path))
    refs = _list_media(_expand_pattern(str(path)), every)
    if not refs:
        raise InputError(f"the pattern '{path}' matches no images or videos; check the pattern")
    return refs


# --- files and folders -----------------------------------------------------------------------------


def _list_file(path: Path, every: int, where: str, box: Box | None = None) -> list[ImageRef]:
    """List an image, or the frames of a video; raise an error that names `where` for other files."""
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return [ImageRef(path, box=box)]
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return [ImageRef(path, frame, box) for frame in range(0, _count_frames(path), every)]
    raise InputError(
        f"{where}: '{path.suffix}' is not an image or video extension; use a file such as .jpg or .mp4"
    )


def _count_frames(path: Path) -> int:
    """Return the number of frames of a video."""
    from selfmark.images.video import count_frames  # slow to import, and only needed for videos

    return count_frames(path)


def _list_media(paths: Iterable[Path], every: int) -> list[ImageRef]:
    """List the image and video files among `paths`, sorted by path; ignore other files."""
    suffixes = IMAGE_SUFFIXES + VIDEO_SUFFIXES
    files = sorted(path for path in paths if path.suffix.lower() in suffixes and path_is(path, Path.is_file))
    return [ref for path in files for ref in _list_file_or_first_frame(path, every)]


def _list_file_or_first_frame(path: Path, every: int) -> list[ImageRef]:
    """List a file, but only one frame of an unreadable video, which is later reported as skipped."""
    try:
        return _list_file(path, every, str(path))
    except InputError:
        return [ImageRef(path, 0)]


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder tree except hidden ones; follow links, but visit each folder once."""

    def fail(error: OSError) -> None:
        raise InputError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    visited_folders = set()
    for parent, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        resolved = os.path.realpath(parent)
        if resolved in visited_folders:  # reached again through a link
            folders.clear()
            continue
        visited_folders.add(resolved)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def _expand_pattern(pattern: str) -> Iterator[Path]:
    """Yield the files that match a pattern, and the files in folders that match it."""
    for match in map(Path, set(glob.glob(pattern, recursive=True))):
        yield from _walk(match) if match.is_dir() else (match,)


# --- text lists ------------------------------------------------------------------------------------


def _read_text_list(path: Path, every: int) -> list[ImageRef]:
    refs: list[ImageRef] = []
    for number, line in enumerate(read_text_lines(path), start=1):
        entry = line.strip()
        if not entry or (entry.startswith("#") and not _names_file(path.parent, line)):
            continue
        where = f"{path} line {number}"
        file, box = _parse_entry(path.parent, line, where)
        if not path_is(file, Path.is_file):
            raise InputError(
                f"{where}: there is no file {file}; paths are relative to the folder of the list"
            )
        refs += _list_file(file, every, where, box)
    if not refs:
        raise InputError(f"{path} lists no images; write one path per line")
    return refs


def _names_file(folder: Path, line: str) -> bool:
    """Return True if a line of a list, with or without a box, names an existing file."""
    names = (line, line.rsplit(",", 4)[0])
    return any(path_is(_find_spelling(folder, name), Path.is_file) for name in names)


def _find_spelling(folder: Path, name: str) -> Path:
    """Return the path of a name as it is written if there is such a file, else without surrounding spaces."""
    written = folder / name
    return written if path_is(written, Path.is_file) else folder / name.strip()


def _parse_entry(folder: Path, line: str, where: str) -> tuple[Path, Box | None]:
    """Parse `path` or `path,x,y,w,h`; since paths may contain commas, try the whole line as a path first."""
    whole_path = _find_spelling(folder, line)
    name, *numbers = line.rsplit(",", 4)
    if len(numbers) < 4 or path_is(whole_path, Path.is_file):
        return whole_path, None
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    return _find_spelling(folder, name), parse_box(values, f"{where}: the box")


# --- COCO files ------------------------------------------------------------------------------------


def _list_coco(path: Path, on_note: Callable[[str], None]) -> list[ImageRef]:
    """Return one reference per annotation with a box, and one for each image without boxes."""
    file = read_coco(path)
    if not file.images:
        raise InputError(f"{path} lists no images; a COCO file lists them under 'images'")
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
        if clip is not None:  # Add the path: other COCO files may have a video with the same id.
            clip = (f"{path}:{clip[0]}", clip[1])
        for box, track in objects[image.id] or [(None, None)]:
            refs.append(ImageRef(folder / image.file_name, frame, box, track, clip))
    _check_sizes(file, refs, folder, on_note)
    return refs


def _check_sizes(
    file: CocoFile, refs: Sequence[ImageRef], folder: Path, on_note: Callable[[str], None]
) -> None:
    """Raise if images with boxes do not have the sizes that the file states; ignore the other images."""
    with_boxes = {(ref.path, ref.frame): ref for ref in refs if ref.box is not None}
    if not with_boxes:
        return
    from selfmark.images.stated_sizes import StatedSize, require_stated_sizes  # slow to import

    stated = [
        StatedSize(image.file_name, image.size(), ref)
        for image in file.images
        if (ref := with_boxes.get((folder / image.file_name, image.frame()))) is not None
    ]
    for note in require_stated_sizes(file.path, stated, "boxes"):
        on_note(note)
