"""Survey the images of a run: numbers, sizes, unreadable and repeated images, cut-off objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfmark.image_ref import ImageRef
from selfmark.images.duplicates import Thumbnails, find_duplicates, look_alike, make_thumbnails
from selfmark.images.store import ImageStore
from selfmark.sampling import evenly_spaced
from selfmark.wording import choose_form, describe_count

_BORDER = 1.0  # pixels; a box this close to the border of its image counts as reaching it
_MIN_SIDE = 0.5  # fraction of the network's input; smaller crops show few details
_MAX_ALIKE = 0.2  # a stride is suitable if at most this fraction of successive frames look alike
_STRIDES = (1, 2, 3, 5, 10, 20, 30, 50, 100)  # values of `--every` to try, in this order
_MIN_FRAMES = 200  # least number of frames that a stride must leave
_MAX_PAIRS = 2_000  # pairs of successive frames that are compared


@dataclass(frozen=True)
class ImageSurvey:
    """Properties of the N images of a run, each cropped to an object.

    images:     number N of images
    files:      number of files that the images come from
    videos:     number of these files that are videos
    skipped:    number of images that could not be read
    first_skipped: name and reason of the first skipped image; empty if there is none
    sizes:      widths and heights of the smallest and the largest original, pixels
    crop_sides: longer side of the smallest and of the largest crop, pixels of the original
    is_square:  whether all crops are squares; other crops are stretched
    stretched:  width and height of the crops, pixels, if all have one size that is not square; else empty
    network_side: side of the network's input, pixels
    small:      number of crops that are much smaller than the network's input
    copies:     number of still images with the same pixels as an earlier one
    near:       number of still images that are almost the same as an earlier one
    first_copy: names of the first repeated image and of the image that it repeats; empty if there is none
    boxed:      number of images with a box of an object; 0 if all images have the same box (`--crop`)
    cut_off:    number of boxes that reach the border of their image
    stride:     n if every n-th frame of the videos is enough, because successive frames look alike; else 1
    """

    images: int
    files: int
    videos: int
    skipped: int
    first_skipped: tuple[str, ...]
    sizes: tuple[tuple[int, int], tuple[int, int]]
    crop_sides: tuple[float, float]
    is_square: bool
    stretched: tuple[float, ...]
    network_side: int
    small: int
    copies: int
    near: int
    first_copy: tuple[str, ...]
    boxed: int
    cut_off: int
    stride: int


def survey_images(store: ImageStore) -> ImageSurvey:
    """Compute the survey of all images of a store."""
    thumbnails = make_thumbnails(store.pixels)
    duplicates = find_duplicates(store.pixels, thumbnails)
    is_still = store.video < 0  # Video frames are left out, because successive frames always look alike.
    repeated_rows = np.flatnonzero(is_still & ((duplicates.exact >= 0) | (duplicates.near >= 0)))
    first_copy: tuple[str, ...] = ()
    if len(repeated_rows):
        row = int(repeated_rows[0])
        earlier_row = int(max(duplicates.exact[row], duplicates.near[row]))
        first_copy = (store.refs[row].name, store.refs[earlier_row].name)
    has_one_box = len({ref.box for ref in store.refs}) == 1  # all images have no box, or that of --crop
    areas = store.sizes.prod(axis=1)
    smallest, largest = store.sizes[areas.argmin()], store.sizes[areas.argmax()]
    sides = store.regions[:, 2:].max(axis=1)
    size = int(store.pixels.shape[-1])
    return ImageSurvey(
        images=len(store),
        files=len({ref.path for ref in store.refs}),
        videos=len({ref.path for ref in store.refs if ref.frame is not None}),
        skipped=len(store.skipped),
        first_skipped=(store.skipped[0].name, store.skipped[0].reason) if store.skipped else (),
        sizes=((int(smallest[0]), int(smallest[1])), (int(largest[0]), int(largest[1]))),
        crop_sides=(round(float(sides.min()), 1), round(float(sides.max()), 1)),
        is_square=bool(np.allclose(store.regions[:, 2], store.regions[:, 3])),
        stretched=_stretched_size(store.regions),
        network_side=size,
        small=int((sides < _MIN_SIDE * size).sum()),
        copies=int((is_still & (duplicates.exact >= 0)).sum()),
        near=int((is_still & (duplicates.near >= 0)).sum()),
        first_copy=first_copy,
        boxed=0 if has_one_box else sum(ref.box is not None for ref in store.refs),
        cut_off=0 if has_one_box else int(_reaches_border(store.refs, store.sizes).sum()),
        stride=choose_stride(thumbnails, store),
    )


def choose_stride(thumbnails: Thumbnails, store: ImageStore) -> int:
    """Return the smallest n for which every n-th frame of the videos rarely looks like the one before.

    Only strides that leave at least `_MIN_FRAMES` frames are tried. If frames look alike at all of these
    strides, the result is the largest of them. The result is 1 if most images are not video frames, or if no
    stride can be tried.

    Args:
        thumbnails: [N, side, side] of the images.
        store: the images.
    """
    frames = np.flatnonzero(store.video >= 0)
    if 2 * len(frames) < len(store):
        return 1
    order = frames[np.lexsort((store.frame[frames], store.track[frames], store.video[frames]))]
    strides = [stride for stride in _STRIDES if len(order) // stride >= _MIN_FRAMES]
    for stride in strides:
        first, second = order[:-stride], order[stride:]
        is_same_object = (store.video[first] == store.video[second]) & (
            store.track[first] == store.track[second]
        )
        pairs = np.flatnonzero(is_same_object)
        pairs = pairs[evenly_spaced(len(pairs), _MAX_PAIRS)]
        is_alike = look_alike(thumbnails[first[pairs]], thumbnails[second[pairs]])
        if not len(is_alike) or is_alike.mean() <= _MAX_ALIKE:
            return stride
    return strides[-1] if strides else 1


def describe_survey(survey: ImageSurvey) -> list[str]:
    """Return the survey as sentences, without those that have nothing to report."""
    (small_width, small_height), (large_width, large_height) = survey.sizes
    sizes = f"{small_width} x {small_height}"
    if survey.sizes[0] != survey.sizes[1]:
        sizes += f" to {large_width} x {large_height}"
    noun = "object" if survey.boxed else "image"
    total = describe_count(survey.images, noun)
    source = describe_count(survey.files, "video" if survey.videos == survey.files else "file")
    low, high = (round(side) for side in survey.crop_sides)
    extent = f"{low}" if low == high else f"{low} to {high}"
    if survey.stretched:
        width, height = survey.stretched
        seen = f"{width:g} x {height:g} pixels of each, stretched"
    elif survey.is_square:
        seen = f"squares of {extent} pixels, resized"
    else:
        seen = f"rectangles of different shapes, whose longer sides have {extent} pixels, stretched"
    network = survey.network_side
    sentences = [f"{total} from {source}, {sizes} pixels; the network sees {seen} to {network} x {network}"]
    if survey.skipped:
        name, reason = survey.first_skipped
        sentences.append(
            f"{describe_count(survey.skipped, 'image')} cannot be read and "
            f"{choose_form(survey.skipped, 'is', 'are')} left out; the first is {name} ({reason}); "
            "log.jsonl and check.json list them all"
        )
    if survey.copies or survey.near:
        name, earlier = survey.first_copy
        sentences.append(
            f"{_describe_repeated(survey.copies, survey.near)} (for example, {name} repeats {earlier}): "
            "remove copies, which add time but no information"
        )
    if survey.small:
        sentences.append(
            f"{survey.small} of {total} {choose_form(survey.small, 'is', 'are')} smaller than "
            f"{round(_MIN_SIDE * network)} pixels and {choose_form(survey.small, 'shows', 'show')} few "
            "details: use larger images if you have them"
        )
    if survey.cut_off:
        sentences.append(
            f"{survey.cut_off} of {describe_count(survey.boxed, 'box', 'boxes')} "
            f"{choose_form(survey.cut_off, 'reaches', 'reach')} the border of the image: "
            f"{choose_form(survey.cut_off, 'this object', 'these objects')} may be cut off"
        )
    return sentences


def _describe_repeated(copies: int, near_copies: int) -> str:
    """Return how many images are copies of others, or almost the same as others.

    >>> _describe_repeated(1, 0)
    '1 image is a copy of another'
    >>> _describe_repeated(3, 1)
    '3 images are copies of others and 1 image is almost the same as another'
    """
    exact_text = choose_form(copies, "is a copy of another", "are copies of others")
    similar_text = choose_form(near_copies, "is almost the same as another", "are almost the same as others")
    parts = [(copies, exact_text), (near_copies, similar_text)]
    return " and ".join(f"{describe_count(count, 'image')} {text}" for count, text in parts if count)


def _stretched_size(regions: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """Return the width and height of regions [N, 4] if all have one size that is not square; else empty."""
    width, height = (round(float(side), 1) for side in regions[0, 2:])
    is_same = np.allclose(regions[:, 2:], regions[0, 2:])
    return (width, height) if is_same and width != height else ()


def _reaches_border(refs: tuple[ImageRef, ...], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return for each image [N] whether its box reaches the border of the image; False without a box."""
    inside_image = (np.inf, np.inf, -np.inf, -np.inf)
    boxes = np.array([inside_image if ref.box is None else ref.box for ref in refs]).reshape(-1, 4)
    start, stop = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    reaches: npt.NDArray[np.bool_] = ((start <= _BORDER) | (stop >= sizes - _BORDER)).any(axis=1) & np.array(
        [ref.box is not None for ref in refs]
    )
    return reaches
