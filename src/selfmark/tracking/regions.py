"""Turn the user's inputs into one `ImageRef` per object: a whole image, a box, a crop or a tracked animal."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from selfmark.argument_types import describe_type, is_instance
from selfmark.config import Tracking
from selfmark.errors import InputError
from selfmark.image_ref import Box, ImageRef, is_possible_box
from selfmark.images.box_matching import attach_boxes, check_tracks
from selfmark.images.sources import list_images
from selfmark.images.video import probe_video
from selfmark.tracking.animals import Progress, build_square_refs, explain_implausible_tracks, track_animals
from selfmark.wording import describe_count

Notes = Callable[[str], None]
MAX_ANIMALS = 100  # per video; more than tracking can tell apart


@dataclass(frozen=True)
class Regions:
    """Positions of the objects in images and videos.

    Set at most one field. If you set none, the boxes in the inputs (COCO files and text lists) are used. An
    image without a box shows one object that fills it.

    boxes:   path of a file with boxes: COCO (.json), a table (.csv), or YOLO (a .txt file or a folder)
    crop:    x, y, width and height in pixels of the part to use, the same for every image
    animals: number of animals to find and track in videos of a fixed camera; 0 to track none

    Track two animals and use every fifth frame:

    >>> regions = Regions(animals=2)
    >>> selfmark.discover("arena.mp4", landmarks=20, every=5, regions=regions)     # doctest: +SKIP

    Use the boxes of another tool, or the same part of every image:

    >>> regions = Regions(boxes="boxes.csv")
    >>> regions = Regions(crop=(20, 10, 160, 120))
    """

    boxes: str | Path | None = None
    crop: Box | None = None
    animals: int = 0

    def __post_init__(self) -> None:
        """Raise if more than one field is set, or if a field has an impossible value."""
        hints = {"boxes": str | Path | None, "crop": Sequence[float] | None, "animals": int}
        for name, hint in hints.items():
            value = getattr(self, name)
            if not is_instance(value, hint):
                raise InputError(
                    f"Regions: '{name}' must be {describe_type(hint)}, not {reprlib.repr(value)}"
                )
        if self.crop is not None and len(self.crop) != 4:
            raise InputError(f"the crop must be x, y, width and height in pixels, not {self.crop}")
        if (self.boxes is not None) + (self.crop is not None) + (self.animals > 0) > 1:
            raise InputError(
                "boxes (--boxes), crop (--crop) and animals (--find-animals) cannot be combined; give only "
                "one of them"
            )
        if self.crop is not None and not is_possible_box(*self.crop):
            raise InputError(f"the crop must be x, y, width and height in pixels, not {self.crop}")
        if not 0 <= self.animals <= MAX_ANIMALS:
            raise InputError(
                f"the number of animals must be 1 to {MAX_ANIMALS}, not {str(self.animals)[:40]}"
            )


def locate_objects(
    inputs: Sequence[str | Path],
    every: int = 1,
    regions: Regions | None = None,
    settings: Tracking | None = None,
    on_progress: Progress | None = None,
    on_note: Notes = lambda sentence: None,
    on_listed: Callable[[Sequence[ImageRef]], None] = lambda refs: None,
) -> list[ImageRef]:
    """Return one reference per object in the given images and videos.

    Args:
        inputs: folders, patterns and files, as for `list_images`.
        every: use every n-th frame of each video; animals are tracked through all frames.
        regions: where the objects are; None for the boxes in the inputs, or for whole images.
        settings: how to track animals.
        on_progress: called for each video with the number of processed frames and the number of all frames.
        on_note: called with a message about images, frames or videos that were omitted or look wrong.
        on_listed: called with the images and frames before objects are located in them, which may take long.

    Raises:
        InputError: if an input cannot be used, or if no object is found.
    """
    refs, regions = list_images(inputs, every, on_note), regions or Regions()
    on_listed(refs)
    if regions == Regions():
        check_tracks(refs)
        return refs
    if any(ref.box is not None for ref in refs):
        raise InputError("the inputs already have boxes; remove --boxes, --crop or --find-animals")
    if regions.crop is not None:
        return _crop_all(refs, regions.crop)
    if regions.animals:
        return _track_all(refs, every, regions.animals, settings or Tracking(), on_progress, on_note)
    assert regions.boxes is not None
    return attach_boxes(refs, Path(regions.boxes), on_note)


def parse_crop(text: str) -> Box:
    """Parse a crop given on the command line.

    >>> parse_crop("10,20,300,200")
    (10.0, 20.0, 300.0, 200.0)
    """
    try:
        x, y, width, height = (float(word) for word in text.split(","))
    except ValueError:
        x = y = width = height = float("nan")
    if not is_possible_box(x, y, width, height):
        raise InputError(f"--crop takes X,Y,WIDTH,HEIGHT in pixels, not '{text[:80]}'")
    return x, y, width, height


def _crop_all(refs: Sequence[ImageRef], crop: Box) -> list[ImageRef]:
    """Set the same box for all images; raise if it is outside the frames of a video."""
    for path in dict.fromkeys(ref.path for ref in refs if ref.frame is not None):
        try:
            width, height = probe_video(path).size
        except InputError:
            continue  # unreadable videos are reported when their frames are read
        if crop[0] >= width or crop[1] >= height or crop[0] + crop[2] <= 0 or crop[1] + crop[3] <= 0:
            raise InputError(f"the crop is outside {path}, whose frames are {width} x {height} pixels")
    return [replace(ref, box=crop) for ref in refs]


def _track_all(
    refs: Sequence[ImageRef],
    every: int,
    animals: int,
    settings: Tracking,
    on_progress: Progress | None,
    on_note: Notes,
) -> list[ImageRef]:
    """Track the animals of all videos; omit videos that fail, and raise if all of them fail."""
    stills = [ref.path for ref in refs if ref.frame is None]
    if stills:
        raise InputError(
            f"animals can only be tracked in videos, but {stills[0]} is an image; use --boxes or --crop"
        )
    tracked_refs: list[ImageRef] = []
    errors: list[InputError] = []
    for path in dict.fromkeys(ref.path for ref in refs):
        try:
            tracks = track_animals(path, animals, settings, on_progress)
        except InputError as error:
            errors.append(error)
            continue
        tracked_refs += build_square_refs(path, tracks, every)
        if reason := explain_implausible_tracks(tracks, settings):
            on_note(
                f"the animals found in {path} may be wrong: {reason}. Look at them with 'selfmark check'. "
                "Animals are found by their movement; if they stay in place or other things move, use --crop "
                "or --boxes"
            )
        frames = describe_count(len(tracks.center), "frame")
        if tracks.unread:
            on_note(f"{tracks.unread} of {frames} of {path} could not be read")
        if tracks.empty:
            on_note(f"no animal was found in {tracks.empty} of {frames} of {path}")
    if not tracked_refs:
        raise errors[0]
    for video_error in errors:
        on_note(f"left out: {video_error}")
    return tracked_refs
