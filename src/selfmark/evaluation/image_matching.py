"""Match the annotations of a label file to the images that the user gave.

Label files name images relative to a folder, which is often on another machine. So an image is recognized by
the end of its path. An object within an image is recognized by its box.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from selfmark.errors import InputError
from selfmark.image_ref import Box, ImageRef
from selfmark.images.coco import CocoAnnotation, CocoFile, CocoImage
from selfmark.wording import choose_form, describe_count

MIN_OVERLAP = 0.5  # an annotation belongs to an object only if the IoU of their boxes is at least this

PathParts = tuple[str, ...]  # folders and name of a file


def match_annotations(
    file: CocoFile,
    annotations: Sequence[CocoAnnotation],
    refs: Sequence[ImageRef],
) -> tuple[tuple[ImageRef, ...], tuple[str, ...]]:
    """Find the image reference of each annotation.

    Args:
        file: The label file.
        annotations: N annotations of the file.
        refs: The images that the user gave.

    Returns:
        N references, and notes about images that were matched only by the end of their paths.
    """
    resolved_paths = {path: os.path.realpath(path) for path in {ref.path for ref in refs}}
    images = [file.image_of(annotation) for annotation in annotations]
    wanted_images = {_split_path(image): image for image in images}
    path_of, notes = _find_files(file.path, wanted_images, resolved_paths, len(refs))

    rows_of: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for row, ref in enumerate(refs):
        rows_of[resolved_paths[ref.path], ref.frame].append(row)
    videos = {path for path, frame in rows_of if frame is not None}
    # `taken` maps rows of `refs` to the locations of their annotations, in the order of the annotations.
    taken: dict[int, str] = {}
    for annotation, image in zip(annotations, images, strict=True):
        path = path_of[_split_path(image)]
        frame = image.video_frame() if path in videos else None
        if (path, frame) not in rows_of:
            raise InputError(
                f"{image.where}: frame {frame} of '{image.file_name}' is not one of the given frames"
            )
        row = _choose_object(annotation, rows_of[path, frame], refs)
        if row in taken:
            raise InputError(_describe_conflict(annotation.where, taken[row], refs[row].box))
        taken[row] = annotation.where
    return tuple(refs[row] for row in taken), tuple(notes)


# --- files -----------------------------------------------------------------------------------------


def _find_files(
    labels: Path,
    wanted_images: Mapping[PathParts, CocoImage],
    resolved_paths: Mapping[Path, str],
    num_given: int,
) -> tuple[dict[PathParts, str], list[str]]:
    """Match each image of a label file to the given file whose path has the longest end in common.

    Args:
        labels: The label file.
        wanted_images: Mapping from paths to the images of the label file.
        resolved_paths: Mapping from the given path of each file to the file's path without symbolic links.
        num_given: Number of images given, for messages.

    Returns:
        Mapping from paths in the label file to resolved paths of the given files, and notes about images that
        were matched only by the end of their paths.
    """
    file_of: dict[PathParts, str] = {}  # path of the given file of each image in the label file
    partial_matches: list[str] = []
    owner: dict[str, PathParts] = {}  # path in the label file that each file was matched to
    # Symbolic links may rename files and folders, so both the given and the resolved path are compared.
    spellings = [
        (tuple(spelling.split(os.sep)[1:]), file)
        for given_path, file in resolved_paths.items()
        for spelling in {os.path.abspath(given_path), file}
    ]
    max_depth = min(max(map(len, wanted_images)), max((len(parts) for parts, _ in spellings), default=0))
    # Ends of `depth` parts are compared, the longest first. One pass over names and files per depth keeps
    # matching fast if many files have the same name.
    for depth in range(max_depth, 0, -1):
        files_by_end: dict[PathParts, set[str]] = defaultdict(set)
        for parts, file in spellings:
            if len(parts) >= depth:
                files_by_end[parts[-depth:]].add(file)
        for name, image in wanted_images.items():
            if name in file_of or len(name) < depth or name[-depth:] not in files_by_end:
                continue
            file = _choose_file(labels, name, files_by_end[name[-depth:]], image)
            if depth < len(name):
                if _is_other_image(labels, name, file):
                    continue
                partial_matches.append(
                    f"{image.where.removeprefix(f'{labels}: ')} '{image.file_name}' was recognized as {file}"
                )
            if file in owner:
                other_image = wanted_images[owner[file]]
                raise InputError(
                    f"{image.where} '{image.file_name}' and {other_image.where} '{other_image.file_name}' "
                    f"both match {file} only; give the images of both, in separate folders"
                )
            file_of[name], owner[file] = file, name
    for name, image in wanted_images.items():
        if name not in file_of:
            raise InputError(
                f"{image.where} '{image.file_name}' is not among the given images "
                f"({describe_count(num_given, 'image')})"
            )
    if not partial_matches:
        return file_of, []
    count = len(partial_matches)
    verb = choose_form(count, "was", "were")
    note = (
        f"{labels}: {describe_count(count, 'image')} {verb} recognized only by the end of the path; "
        f"for example, {partial_matches[0]}"
    )
    return file_of, [note]


def _choose_file(labels: Path, name: PathParts, files: set[str], image: CocoImage) -> str:
    """Return the only candidate, or else the candidate that is beside the label file."""
    if len(files) == 1:
        return next(iter(files))
    files_beside = [file for file in map(os.path.realpath, _find_files_beside(labels, name)) if file in files]
    if not files_beside:
        first, second = sorted(files)[:2]
        raise InputError(
            f"{image.where} '{image.file_name}' may be {first} or {second}; give only the intended folder"
        )
    return files_beside[0]


def _is_other_image(labels: Path, name: PathParts, file: str) -> bool:
    """Return True if the named image exists beside the label file and has another file size than `file`.

    Training and test images often have the same file names, but test/001.jpg must not match train/001.jpg.
    """
    own_file = next(_find_files_beside(labels, name), None)
    return (
        own_file is not None and os.path.isfile(file) and os.path.getsize(own_file) != os.path.getsize(file)
    )


def _find_files_beside(labels: Path, name: PathParts) -> Iterator[str]:
    """Yield the files with this name in the folders that `CocoFile.image_folder` searches."""
    folders = (labels.parent, labels.parent / "images", labels.parent / "images" / labels.stem)
    return filter(os.path.isfile, (os.path.join(folder, *name) for folder in folders))


def _split_path(image: CocoImage) -> PathParts:
    return tuple(part for part in image.file_name.split("/") if part not in ("", "."))


# --- objects in an image ---------------------------------------------------------------------------


def _choose_object(annotation: CocoAnnotation, candidates: Sequence[int], refs: Sequence[ImageRef]) -> int:
    """Return the candidate whose box fits the annotation best.

    If no candidate has a box, return the first. If the annotation has no box, return the only candidate.

    Args:
        annotation: The annotation.
        candidates: Rows of the image references that show the annotated image.
        refs: All image references.
    """
    where, box = annotation.where, annotation.box()
    with_box = [(row, ref_box) for row in candidates if (ref_box := refs[row].box) is not None]
    if not with_box or (box is None and len(candidates) == 1):
        return candidates[0]
    if box is None:
        raise InputError(f"{where} needs a 'bbox', because several objects of its image were given")
    # Rows are negated, so that the first of equal boxes is chosen.
    overlap, negated_row = max((_compute_overlap(box, ref_box), -row) for row, ref_box in with_box)
    if overlap < MIN_OVERLAP:
        raise InputError(
            f"{where}: its 'bbox' overlaps too little with the boxes given for its image; give boxes of the "
            "same objects"
        )
    return -negated_row


def _describe_conflict(where: str, other: str, box: Box | None) -> str:
    """Return the message for two annotations of one object; `box` is None if no boxes were given."""
    if box is not None:
        return f"{where} and {other} annotate the same object of an image; annotate each object once"
    return (
        f"{where} and {other} annotate one image that was given without boxes; to evaluate several objects "
        "in an image, give a COCO file with the boxes of the objects instead of the image"
    )


def _compute_overlap(a: Box, b: Box) -> float:
    """Return the intersection over union of two boxes; 1 for equal boxes, even if their area is 0.

    >>> _compute_overlap((0, 0, 2, 1), (1, 0, 2, 1))
    0.3333333333333333
    """
    if a == b:
        return 1.0
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    intersection = max(width, 0.0) * max(height, 0.0)
    union = a[2] * a[3] + b[2] * b[3] - intersection
    return intersection / union if union > 0 else 0.0
