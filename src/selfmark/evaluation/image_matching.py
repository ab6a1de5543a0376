"""Which of the images given each annotation of a label file belongs to.

Label files name images relative to some folder, often one on another machine. So an image is recognized by
how its path ends, and an object within it by its box.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfmark.errors import InputError
from selfmark.image_ref import Box, ImageRef
from selfmark.images.coco import Entry

SAME_OBJECT = 0.5  # least overlap (IoU) of an annotation's box with that of the object given

Parts = tuple[str, ...]  # folders and name of a file


def match_annotations(
    path: Path,
    images: Mapping[int | str, Entry],
    annotations: Sequence[Entry],
    boxes: Sequence[Box | None],
    refs: Sequence[ImageRef],
) -> tuple[tuple[ImageRef, ...], tuple[str, ...]]:
    """The reference of each annotation, and sentences on what the user should know about the choice.

    Args:
        path: The label file.
        images: Its image entries by id.
        annotations: N annotations, each with the id of one of the images.
        boxes: Their boxes.
        refs: The images given.
    """
    resolved = {file: os.path.realpath(file) for file in {ref.path for ref in refs}}
    wanted = {
        _parts(entry): (where, entry) for where, entry in (images[a["image_id"]] for _, a in annotations)
    }
    found, notes = _find_files(path, wanted, resolved, len(refs))

    places: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for number, ref in enumerate(refs):
        places[resolved[ref.path], ref.frame].append(number)
    videos = {file for file, frame in places if frame is not None}
    taken: dict[int, str] = {}
    for (where, annotation), box in zip(annotations, boxes, strict=True):
        image_where, image = images[annotation["image_id"]]
        file = found[_parts(image)]
        frame = _frame(image_where, image) if file in videos else None
        if (file, frame) not in places:
            raise InputError(
                f"{image_where}: frame {frame} of '{image['file_name']}' is not among those given"
            )
        chosen = _choose(where, box, places[file, frame], refs)
        if chosen in taken:
            raise InputError(_twice(where, taken[chosen], refs[chosen].box))
        taken[chosen] = where
    return tuple(refs[number] for number in taken), tuple(notes)


# --- files -----------------------------------------------------------------------------------------


def _find_files(
    path: Path, wanted: Mapping[Parts, Entry], resolved: Mapping[Path, str], given: int
) -> tuple[dict[Parts, str], list[str]]:
    """The resolved path behind each file name: of the files given, the one whose path ends most like it."""
    found: dict[Parts, str] = {}
    shortened: list[str] = []
    owner: dict[str, Parts] = {}
    # Links may rename files and folders, so a path counts both as it was given and as it resolves.
    endings = [
        (tuple(spelling.split(os.sep)[1:]), file)
        for given_path, file in resolved.items()
        for spelling in {os.path.abspath(given_path), file}
    ]
    deepest = min(max(map(len, wanted)), max((len(parts) for parts, _ in endings), default=0))
    # One pass per depth over names and files, so that any number of files of one name are joined quickly.
    for depth in range(deepest, 0, -1):
        ending_so: dict[Parts, set[str]] = defaultdict(set)
        for parts, file in endings:
            if len(parts) >= depth:
                ending_so[parts[-depth:]].add(file)
        for name, (where, image) in wanted.items():
            if name in found or len(name) < depth or name[-depth:] not in ending_so:
                continue
            file = _only(path, name, ending_so[name[-depth:]], f"{where} '{image['file_name']}'")
            if depth < len(name):
                if _is_other_image(path, name, file):
                    continue
                shortened.append(f"{where.removeprefix(f'{path}: ')} '{image['file_name']}' as {file}")
            if file in owner:
                other = wanted[owner[file]]
                raise InputError(
                    f"{where} '{image['file_name']}' and {other[0]} '{other[1]['file_name']}' both fit "
                    f"{file} only; give the images of both, in folders of their own"
                )
            found[name], owner[file] = file, name
    for name, (where, image) in wanted.items():
        if name not in found:
            raise InputError(f"{where} '{image['file_name']}' is not among the {given} images given")
    many = f"{path}: images were found by the end of their name only, {len(shortened)} in all, first "
    return found, [many + shortened[0]] if shortened else []


def _only(path: Path, name: Parts, files: set[str], what: str) -> str:
    """The one file among those that end alike; of several, the one that lies beside the label file."""
    if len(files) == 1:
        return next(iter(files))
    beside = [file for file in map(os.path.realpath, _own_images(path, name)) if file in files]
    if not beside:
        first, second = sorted(files)[:2]
        raise InputError(f"{what} may be {first} or {second}; give only the folder that is meant")
    return beside[0]


def _is_other_image(path: Path, name: Parts, file: str) -> bool:
    """Whether the label file's own image is there and is not this one, whose folders differ.

    Splits often number their images alike: test/001.jpg must not be taken for train/001.jpg.
    """
    own = next(_own_images(path, name), None)
    return own is not None and os.path.isfile(file) and os.path.getsize(own) != os.path.getsize(file)


def _own_images(path: Path, name: Parts) -> Iterator[str]:
    """The file of a name where a label file's own images may lie, as in `images.sources`, if it is there."""
    folders = (path.parent, path.parent / "images", path.parent / "images" / path.stem)
    return filter(os.path.isfile, (os.path.join(folder, *name) for folder in folders))


def _parts(image: dict[str, Any]) -> Parts:
    return tuple(part for part in image["file_name"].split("/") if part not in ("", "."))


def _frame(where: str, image: dict[str, Any]) -> int:
    frame = image.get("frame")
    if isinstance(frame, bool) or not isinstance(frame, int):
        raise InputError(
            f"{where}: '{image['file_name']}' is a video, so it needs a 'frame' that counts from 0"
        )
    return frame


# --- objects in an image ---------------------------------------------------------------------------


def _choose(where: str, box: Box | None, candidates: Sequence[int], refs: Sequence[ImageRef]) -> int:
    """The number of the object that an annotation is of, among those given of its image."""
    given = [(number, ref_box) for number in candidates if (ref_box := refs[number].box) is not None]
    if not given or (box is None and len(candidates) == 1):
        return candidates[0]
    if box is None:
        raise InputError(f"{where} needs a 'bbox', because several objects of its image were given")
    overlap, best = max((_overlap(box, ref_box), -number) for number, ref_box in given)
    if overlap < SAME_OBJECT:
        raise InputError(
            f"{where}: its 'bbox' fits none of the boxes given with its image; give boxes of the same objects"
        )
    return -best


def _twice(where: str, other: str, box: Box | None) -> str:
    if box is not None:
        return f"{where} and {other} are of the same object of an image; give each object once"
    return (
        f"{where} and {other} are of one image that was given without boxes; to evaluate several objects of "
        "an image, name a COCO file with their boxes as the images"
    )


def _overlap(one: Box, other: Box) -> float:
    """Intersection over union; 1 for equal boxes, even without area.

    >>> _overlap((0, 0, 2, 1), (1, 0, 2, 1))
    0.3333333333333333
    """
    if one == other:
        return 1.0
    width = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    height = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    shared = max(width, 0.0) * max(height, 0.0)
    union = one[2] * one[3] + other[2] * other[3] - shared
    return shared / union if union > 0 else 0.0
