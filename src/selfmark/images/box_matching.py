"""Match the boxes of a file to images and video frames."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from selfmark.errors import InputError
from selfmark.image_ref import Box, ImageRef
from selfmark.images.box_files import FileBox, read_boxes
from selfmark.images.decode import UnreadableImage
from selfmark.images.input_files import VIDEO_SUFFIXES, is_written_beside
from selfmark.images.stated_sizes import StatedSize, read_upright_size, require_stated_sizes
from selfmark.wording import choose_form, describe_count


def attach_boxes(refs: Sequence[ImageRef], file: Path, on_note: Callable[[str], None]) -> list[ImageRef]:
    """Return one reference per box of a file, in the order of the images; images without a box are left out.

    Args:
        refs: images and video frames without boxes.
        file: a file that `read_boxes` can read; boxes of other images are ignored.
        on_note: called with a sentence if images are left out, or if some do not fit their boxes.

    Raises:
        InputError: if the file cannot be used, or if none of its boxes belongs to the images, or if the file
            states other sizes of the images.
    """
    boxes = read_boxes(file)
    match = _Matcher(refs)
    clips = {ref.path: ref.clip for ref in refs}
    objects: dict[tuple[Path, int | None], list[ImageRef]] = defaultdict(list)
    stated: dict[tuple[Path, int | None], StatedSize] = {}
    for file_box in boxes:
        path, frame = match(file_box)
        if path is not None:
            box = _to_pixels(file_box, path)
            ref = ImageRef(path, frame, box, file_box.track, clips[path])
            objects[path, frame].append(ref)
            stated[path, frame] = StatedSize(file_box.image, file_box.stated_size, ref)
    attached_refs = [matched for ref in refs for matched in objects.get((ref.path, ref.frame), ())]
    if not attached_refs:
        raise InputError(
            f"{file}: none of its boxes belongs to the {describe_count(len(refs), 'given image')}; the first "
            f"box is of {_describe(boxes[0])}, the first image is {refs[0].name}"
        )
    given = [stated[key] for key in dict.fromkeys((ref.path, ref.frame) for ref in attached_refs)]
    for note in require_stated_sizes(file, given, "boxes"):
        on_note(note)
    check_tracks(attached_refs)
    num_unmatched = sum((ref.path, ref.frame) not in objects for ref in refs)
    if num_unmatched:
        reason = choose_form(
            num_unmatched, f"has no box in {file} and was", f"have no box in {file} and were"
        )
        on_note(f"{num_unmatched} of {describe_count(len(refs), 'image')} {reason} left out")
    return attached_refs


def check_tracks(refs: Sequence[ImageRef]) -> None:
    """Raise if only some objects of a video have tracks, or if a frame contains the same track twice.

    Otherwise, output formats could not tell the objects apart. All still images together count as one video.
    """
    first_of: dict[Path | None, ImageRef] = {}
    seen: set[tuple[str, int]] = set()
    for ref in refs:
        first = first_of.setdefault(None if ref.frame is None else ref.path, ref)
        if (first.track is None) != (ref.track is None):
            tracked_ref, untracked_ref = (ref, first) if first.track is None else (first, ref)
            raise InputError(
                f"a box of {tracked_ref.name} has a track, but a box of {untracked_ref.name} has none; "
                "give a track to all boxes or to none"
            )
        if ref.track is not None:
            if (ref.name, ref.track) in seen:
                raise InputError(
                    f"{ref.name} has two boxes of track {ref.track}; give each object its own track"
                )
            seen.add((ref.name, ref.track))


def _describe(file_box: FileBox) -> str:
    frame = "" if file_box.frame is None else f"frame {file_box.frame}"
    return " of ".join(part for part in (frame, f"'{file_box.image}'" if file_box.image else "") if part)


class _Matcher:
    """Callable that finds the image or video frame to which a box belongs.

    Paths are compared from their end, because files are often moved to another folder.
    """

    def __init__(self, refs: Sequence[ImageRef]) -> None:
        self._is_video = {ref.path: ref.frame is not None for ref in refs}
        self._by_name: dict[str, list[Path]] = defaultdict(list)
        self._by_stem: dict[str, list[Path]] = defaultdict(list)
        for path in self._is_video:
            self._by_name[path.name].append(path)
            self._by_stem[path.stem].append(path)

    def __call__(self, file_box: FileBox) -> tuple[Path | None, int | None]:
        """Return the path (None if the box is of no given image) and the frame (None for still images)."""
        path, frame = self._find(file_box)
        if path is None or not self._is_video[path]:
            return path, None
        if frame is None:
            raise InputError(
                f"{file_box.where}: {path} is a video, so the box needs a frame number, counted from 0"
            )
        return path, frame

    def _find(self, file_box: FileBox) -> tuple[Path | None, int | None]:
        if not file_box.image:
            if len(self._is_video) > 1:
                raise InputError(
                    f"{file_box.where}: with several input files, each box needs the name of its file in a "
                    "column 'image'"
                )
            return next(iter(self._is_video)), file_box.frame
        if not file_box.is_fractional:  # The box is from a table or a COCO file, which may name folders.
            return self._match_spellings(file_box), file_box.frame
        # A YOLO file is named after the image, or after the video and the frame number, which starts at 1.
        numbered = re.fullmatch(r"(.+)_(\d+)", file_box.image)
        if file_box.image not in self._by_stem and numbered and int(numbered[2]) > 0:
            videos = [path for path in self._by_stem.get(numbered[1], []) if self._is_video[path]]
            return self._best_match(file_box, videos), int(numbered[2]) - 1
        return self._best_match(file_box, self._by_stem[file_box.image]), None

    def _match_spellings(self, file_box: FileBox) -> Path | None:
        """Return the path with the name of the box, as it is written or else without surrounding spaces."""
        written, stripped = file_box, replace(file_box, image=file_box.image.strip())
        paths = self._list_named(written.image)
        if written == stripped:
            return self._best_match(written, paths)
        others = [
            path
            for path in self._list_named(stripped.image)
            if not is_written_beside(path, written.image, _count_agreement(stripped, path))
        ]
        most, most_without_spaces = (
            max((_count_agreement(box, path) for path in candidates), default=0)
            for box, candidates in ((written, paths), (stripped, others))
        )
        if most_without_spaces > most:
            return self._best_match(stripped, others)
        return self._best_match(written, paths)

    def _list_named(self, image: str) -> list[Path]:
        return self._by_name.get(PurePath(image).name, [])

    def _best_match(self, file_box: FileBox, paths: Sequence[Path]) -> Path | None:
        """Return the path that shares the most trailing parts with the image name of the box.

        Return None if there are no paths; raise if several paths share equally many parts.
        """
        agreement = {path: _count_agreement(file_box, path) for path in paths}
        best_paths = [path for path in agreement if agreement[path] == max(agreement.values())]
        if len(best_paths) > 1:
            raise InputError(
                f"{file_box.where}: '{file_box.image}' matches both {best_paths[0]} and {best_paths[1]}; "
                + _advise_on_ambiguity(file_box, best_paths)
            )
        return best_paths[0] if best_paths else None


def _advise_on_ambiguity(file_box: FileBox, matches: Sequence[Path]) -> str:
    if file_box.is_fractional:  # The box is from a YOLO file.
        return (
            "YOLO files are matched by name only, without folder and suffix, so give the images different "
            "names"
        )
    first, *others = (Path(os.path.abspath(path)).parts for path in matches)
    num_common = max(_count_common_suffix(first, other) for other in others)
    example = PurePath(*first[-num_common - 1 :])  # enough folders to differ from the other matches
    return f"write the name in the box file with its folder, for example {example}"


def _count_agreement(file_box: FileBox, path: Path) -> int:
    """Count the trailing parts that the image name of a box and the absolute path of a file share."""
    return _count_common_suffix(PurePath(file_box.image).parts, Path(os.path.abspath(path)).parts)


def _count_common_suffix(parts: Sequence[str], other_parts: Sequence[str]) -> int:
    """Count the trailing parts that two paths have in common."""
    equal = (a == b for a, b in zip(reversed(parts), reversed(other_parts), strict=False))
    return sum(1 for _ in itertools.takewhile(bool, equal))


def _to_pixels(file_box: FileBox, path: Path) -> Box:
    if not file_box.is_fractional:
        return file_box.box
    width, height = _read_size(path)
    x, y, w, h = file_box.box
    return x * width, y * height, w * width, h * height


def _read_size(path: Path) -> tuple[int, int]:
    """Return width and height of an upright image or a video frame, in pixels; raise if it is unreadable."""
    try:
        return read_upright_size(path, path.suffix.lower() in VIDEO_SUFFIXES)
    except UnreadableImage as error:
        raise InputError(
            f"{path} cannot be read, so its box, given in fractions of the image, cannot be converted to "
            f"pixels: {error}"
        ) from error
