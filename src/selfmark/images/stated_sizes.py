"""Check that labels and boxes belong to the images, from the image sizes that their file states.

Points and boxes are in pixels, so they are wrong if an image was resized, replaced or turned after labeling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.decode import UnreadableImage, read_image_size
from selfmark.images.video import probe_video
from selfmark.run.guarded_files import FileState, read_file_state
from selfmark.sampling import evenly_spaced
from selfmark.wording import choose_form, describe_count

_MAX_CHECKED = 200  # maximum number of images that are checked
_MAX_DIFFERENT = 0.5  # fraction of checked images; if more do not fit, the file belongs to other images
# Fraction of checked images; if the file exchanges width and height of more, it is refused. A program that
# ignores the orientation of photos is wrong about all photos that are turned, but often only a part is.
_MAX_EXCHANGED = 0.1

Content = Literal["labels", "boxes"]
Size = tuple[int, int]


class StatedSize(NamedTuple):
    """The size of an image as a file states it.

    name: name of the image in the file
    size: width and height in pixels; None if the file does not state them
    ref:  the image
    """

    name: str
    size: Size | None
    ref: ImageRef


class Mismatch(NamedTuple):
    """The reason why an image does not fit its labels or boxes, and whether its sides are exchanged."""

    reason: str
    is_exchanged: bool = False


def require_stated_sizes(source: Path, stated: Sequence[StatedSize], content: Content) -> tuple[str, ...]:
    """Raise if the sizes that a file states are not those of the images; see `require_fitting_images`."""
    known = [item for item in stated if item.size is not None]
    return require_fitting_images(
        source, known, content, lambda row: find_size_mismatch(known[row], content, read_size(known[row].ref))
    )


def require_fitting_images(
    source: Path,
    stated: Sequence[StatedSize],
    content: Content,
    find_mismatch: Callable[[int], Mismatch | None],
) -> tuple[str, ...]:
    """Raise if labels or boxes do not fit the images that they were matched to.

    Args:
        source: The file with the labels or boxes.
        stated: What the file states about N images.
        content: What the file contains.
        find_mismatch: Called with a row of `stated`; returns why the image does not fit, None if it fits.

    Returns:
        A note if some images do not fit.

    Raises:
        InputError: if more than half of the checked images do not fit, or if width and height of more than a
            tenth are exchanged.
    """
    rows = evenly_spaced(len(stated), _MAX_CHECKED).tolist()
    mismatches = [(row, mismatch) for row in rows if (mismatch := find_mismatch(row)) is not None]
    if not mismatches:
        return ()
    exchanged = [(row, mismatch) for row, mismatch in mismatches if mismatch.is_exchanged]
    count, total = len(mismatches), describe_count(len(rows), "image")
    if len(exchanged) > _MAX_EXCHANGED * len(rows) and len(exchanged) > count / 2:
        raise InputError(
            f"{source} states width and height of {len(exchanged)} of {total} checked in exchanged order, so "
            f"its {content} may be turned by 90 degrees; {_describe_example(stated, exchanged)}; save the "
            f"images upright, without an orientation in their EXIF data, and make the {content} again, or "
            f"correct the sizes if the {content} are right for upright images"
        )
    example = _describe_example(stated, mismatches)
    if count > _MAX_DIFFERENT * len(rows) or len(exchanged) > _MAX_EXCHANGED * len(rows):
        raise InputError(
            f"{source} belongs to other images with the same names: {count} of {total} checked "
            f"{choose_form(count, 'does', 'do')} not fit; {example}; give the images that the {content} were "
            "made for"
        )
    verb = choose_form(count, f"does not fit its {content}", f"do not fit their {content}")
    return (f"{source}: {count} of {total} checked {verb}; {example}",)


def find_size_mismatch(stated: StatedSize, content: Content, size: Size | None) -> Mismatch | None:
    """Return how the stated size differs from the size of an image; None if either is unknown.

    Args:
        stated: What the file states.
        content: What the file contains.
        size: Width and height of the upright image.
    """
    if stated.size is None or size is None or stated.size == size:
        return None
    written, actual = (f"{width} x {height}" for width, height in (stated.size, size))
    reason = f"is {written} pixels in the {content}, but {stated.ref.path} is {actual}"
    return Mismatch(reason, is_exchanged=stated.size == size[::-1])


def read_size(ref: ImageRef) -> Size | None:
    """Return width and height of an image or video frame; None if it cannot be read.

    Unreadable images are reported later, when their pixels are read.
    """
    if read_file_state(ref.path) is None:  # also if no file can have this name
        return None
    try:
        return read_upright_size(ref.path, ref.frame is not None)
    except (InputError, UnreadableImage):
        return None


def read_upright_size(path: Path, is_video: bool) -> Size:
    """Return width and height of an image or of the frames of a video, in pixels.

    Still images are not decoded, because their headers give their sizes. If the file asks for a rotation
    (EXIF in images), the size is that of the rotated image.

    Raises:
        UnreadableImage: If an image cannot be read.
        InputError: If a video cannot be read.
    """
    return _read_upright_size(path, is_video, read_file_state(path))


@lru_cache(maxsize=1024)
def _read_upright_size(path: Path, is_video: bool, state: FileState | None) -> Size:
    """Read a size; it is cached until the file changes."""
    return probe_video(path).size if is_video else read_image_size(path)


def _describe_example(stated: Sequence[StatedSize], mismatches: Sequence[tuple[int, Mismatch]]) -> str:
    row, mismatch = mismatches[0]
    return f"for example, '{stated[row].name}' {mismatch.reason}"
