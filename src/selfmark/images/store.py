"""Load images as the network sees them, cropped and resized to squares: all at once or batch by batch.

A few threads or processes decode the originals and keep only the crops, so that memory does not grow with the
size of the originals.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from selfmark.config import Images
from selfmark.errors import DiskError, InputError
from selfmark.image_ref import ImageRef
from selfmark.images.crop import keypoint_bounds
from selfmark.images.crop_readers import CropJob, run_crop_jobs
from selfmark.images.decode import DecodedImage
from selfmark.images.read_crops import Crop, Outcome, crop_all, stack_boxes
from selfmark.images.reading_process import StillImage
from selfmark.images.video import read_frames
from selfmark.run.guarded_files import allocate, create_file, make_folders, remove_file

_LOAD_BATCH = 64  # crops to copy into the store at a time


@dataclass(frozen=True)
class SkippedImage:
    """The name of an image that could not be used, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class ImageStore:
    """N cropped images and the location of each in its original.

    pixels:  [N, 3, S, S] uint8 RGB on the CPU, in memory or memory-mapped from a file
    refs:    N references, in the order they were given
    sizes:   [N, 2] int64, width and height of the original, pixels
    regions: [N, 4] float64, x, y, w, h of the crop in pixels of the original, measured from pixel corners
    bounds:  [N, 4] float32, x0, y0, x1, y1 of the area where keypoints are allowed, network pixels
    video:   [N] int64, number of the video that an image was taken from; -1 for single images
    frame:   [N] int64, frame number; -1 for single images
    track:   [N] int64, number of the object in its video; -1 if unknown
    skipped: images that could not be used
    """

    pixels: torch.Tensor
    refs: tuple[ImageRef, ...]
    sizes: npt.NDArray[np.int64]
    regions: npt.NDArray[np.float64]
    bounds: npt.NDArray[np.float32]
    video: npt.NDArray[np.int64]
    frame: npt.NDArray[np.int64]
    track: npt.NDArray[np.int64]
    skipped: tuple[SkippedImage, ...]

    def __post_init__(self) -> None:
        """Raise if the arrays have different lengths."""
        columns = (self.pixels, self.sizes, self.regions, self.bounds, self.video, self.frame, self.track)
        if any(len(column) != len(self.refs) for column in columns):
            raise ValueError(f"every array of the store needs one row for each of its {len(self.refs)} refs")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.refs)

    def select(self, refs: Sequence[ImageRef]) -> ImageStore:
        """Return a store of the given images, in this order; leave out images that this store lacks.

        Raises:
            InputError: if this store has none of the images.
        """
        row_of = {ref: row for row, ref in enumerate(self.refs)}
        rows = [row_of[ref] for ref in refs if ref in row_of]
        if not rows:
            raise InputError(f"none of the images could be read (0 of {len(refs)})")
        return ImageStore(
            pixels=self.pixels[rows],
            refs=tuple(self.refs[row] for row in rows),
            sizes=self.sizes[rows],
            regions=self.regions[rows],
            bounds=self.bounds[rows],
            video=self.video[rows],
            frame=self.frame[rows],
            track=self.track[rows],
            skipped=(),
        )


def load_store(
    refs: Sequence[ImageRef],
    images: Images,
    store_gigabytes: float,
    scratch: Path | None,
    on_progress: Callable[[int, int], None] | None = None,
    scratch_name: str = "images.u8",
) -> ImageStore:
    """Decode and crop all images in the given order; skip those that cannot be read.

    Args:
        refs: the images.
        images: size of the crops, crop rule and limits.
        store_gigabytes: maximum size of the pixels in memory; larger sets are stored in a file in `scratch`.
        scratch: folder for this file; None if the images are known to fit into memory.
        on_progress: called with the number of references processed and their total number.
        scratch_name: name of this file.

    Raises:
        InputError: if none of the images can be read, or if there is not enough disk space.
    """
    shape = len(refs), 3, images.size, images.size
    pixels = allocate_pixels(shape, store_gigabytes, scratch, scratch_name)
    parts: list[ImageStore] = []
    done = kept = 0
    for part in _iterate_crops(refs, images, _LOAD_BATCH, pixels):
        kept += len(part)
        done += len(part) + len(part.skipped)
        parts.append(part)
        if on_progress is not None:
            on_progress(done, len(refs))
    skipped = tuple(item for part in parts for item in part.skipped)
    if kept == 0:
        first = f"; the first is {skipped[0].name} ({skipped[0].reason})" if skipped else ""
        raise InputError(f"none of the images could be read (0 of {len(refs)}){first}")
    return ImageStore(
        pixels=pixels[:kept],
        refs=tuple(ref for part in parts for ref in part.refs),
        sizes=np.concatenate([part.sizes for part in parts]),
        regions=np.concatenate([part.regions for part in parts]),
        bounds=np.concatenate([part.bounds for part in parts]),
        video=np.concatenate([part.video for part in parts]),
        frame=np.concatenate([part.frame for part in parts]),
        track=np.concatenate([part.track for part in parts]),
        skipped=skipped,
    )


def iterate_crops(refs: Sequence[ImageRef], images: Images, batch: int) -> Iterator[ImageStore]:
    """Yield the same images as `load_store`, in stores of `batch` images; the last may have fewer or none.

    A file is decoded once, even if several references name it. A crop stays in memory until all references
    before it have been processed. Memory is therefore constant if references to the same file are adjacent
    and its frame numbers ascend. Each store lists the images skipped since the previous store. A video has
    the same number in all stores.
    """
    return _iterate_crops(refs, images, batch, None)


def _iterate_crops(
    refs: Sequence[ImageRef], images: Images, batch: int, pixels: torch.Tensor | None
) -> Iterator[ImageStore]:
    """Yield stores as `iterate_crops` does, with pixels in new tensors or in the rows of one tensor.

    Args:
        refs: the images.
        images: size of the crops, crop rule and limits.
        batch: images per store.
        pixels: tensor [N, 3, S, S] for the pixels of all images; None allocates a tensor for each store.
    """
    first = 0

    def assemble() -> ImageStore:
        nonlocal first
        rows = slice(first, first + len(kept))
        first = rows.stop
        shape = (len(kept), 3, images.size, images.size)
        target = torch.empty(shape, dtype=torch.uint8) if pixels is None else pixels[rows]
        return _assemble(kept, skipped, videos, target)

    videos: dict[str, int] = {}
    for ref in refs:
        if ref.source_frame is not None:
            videos.setdefault(ref.source_frame[0], len(videos))
    kept: list[tuple[ImageRef, Crop]] = []
    skipped: list[SkippedImage] = []
    files = _group_by_file(refs)
    num_stills = sum(not is_video for _, is_video in files)
    results = run_crop_jobs(_plan_jobs(files, refs, images), num_stills, images)
    for ref, outcome in zip(refs, _restore_order(results), strict=True):
        if isinstance(outcome, str):
            skipped.append(SkippedImage(ref.name, outcome))
        else:
            kept.append((ref, outcome))
        if len(kept) == batch:
            yield assemble()
            kept, skipped = [], []
    if kept or skipped:
        yield assemble()


# --- from references to crops ----------------------------------------------------------------------


def _group_by_file(refs: Sequence[ImageRef]) -> dict[tuple[Path, bool], list[int]]:
    """Return a mapping from (file, whether it is a video) to the indices of the references to this file."""
    files: dict[tuple[Path, bool], list[int]] = {}
    for position, ref in enumerate(refs):
        files.setdefault((ref.path, ref.frame is not None), []).append(position)
    return files


def _plan_jobs(
    files: dict[tuple[Path, bool], list[int]], refs: Sequence[ImageRef], images: Images
) -> Iterator[CropJob]:
    """Yield one job per still image and per video frame, in the order in which files first occur."""
    for (path, is_video), positions in files.items():
        if is_video:
            yield from _video_jobs(path, positions, refs, images)
        else:
            yield CropJob(positions, StillImage(path, [refs[position] for position in positions]))


def _video_jobs(
    path: Path, positions: list[int], refs: Sequence[ImageRef], images: Images
) -> Iterator[CropJob]:
    """Yield one job per frame of a video, which is read once from start to end.

    At the end, yield jobs that report the frames that could not be read.
    """
    remaining: dict[int, list[int]] = {}
    for position in positions:
        remaining.setdefault(refs[position].frame or 0, []).append(position)
    reason = "the video ends before this frame"
    try:
        for frame, image in read_frames(path, list(remaining)):
            indices = remaining.pop(frame)
            original = DecodedImage(image, (image.shape[1], image.shape[0]), 1)
            yield CropJob(indices, partial(crop_all, original, [refs[index] for index in indices], images))
    except InputError:
        reason = "the video cannot be read"
    for indices in remaining.values():
        yield CropJob(indices, partial(_fail_all, len(indices), reason))


def _fail_all(count: int, reason: str) -> list[Outcome]:
    return [reason] * count


# --- order and memory ------------------------------------------------------------------------------


def _restore_order(results: Iterable[tuple[list[int], list[Outcome]]]) -> Iterator[Outcome]:
    """Yield outcomes in the order of the references, each as soon as all earlier outcomes are available."""
    waiting_outcomes: dict[int, Outcome] = {}
    next_position = 0
    for positions, outcomes in results:
        waiting_outcomes.update(zip(positions, outcomes, strict=True))
        while next_position in waiting_outcomes:
            yield waiting_outcomes.pop(next_position)
            next_position += 1


def _assemble(
    kept: Sequence[tuple[ImageRef, Crop]],
    skipped: Sequence[SkippedImage],
    videos: dict[str, int],
    pixels: torch.Tensor,
) -> ImageStore:
    """Build a store from references with their crops.

    Args:
        kept: references and crops.
        skipped: images that could not be used.
        videos: mapping from the name of each video to its number.
        pixels: [N, 3, S, S] tensor that this function fills with the crops.
    """
    refs = tuple(ref for ref, _ in kept)
    source_frames = [ref.source_frame for ref in refs]
    crops = [crop for _, crop in kept]
    for row, crop in zip(pixels.numpy(), crops, strict=True):
        row[:] = crop.pixels
    sizes = np.array([crop.size for crop in crops], dtype=np.int64).reshape(-1, 2)
    regions = np.array([crop.region for crop in crops], dtype=np.float64).reshape(-1, 4)
    return ImageStore(
        pixels=pixels,
        refs=refs,
        sizes=sizes,
        regions=regions,
        bounds=keypoint_bounds(sizes, stack_boxes(refs), regions, pixels.shape[-1]),
        video=np.array([-1 if source is None else videos[source[0]] for source in source_frames], np.int64),
        frame=np.array([-1 if source is None else source[1] for source in source_frames], np.int64),
        track=np.array([-1 if ref.track is None else ref.track for ref in refs], dtype=np.int64),
        skipped=tuple(skipped),
    )


def allocate_pixels(
    shape: tuple[int, ...], store_gigabytes: float, scratch: Path | None, name: str = "images.u8"
) -> torch.Tensor:
    """Allocate a uint8 tensor in memory, or in a memory-mapped file if the tensor exceeds `store_gigabytes`.

    Args:
        shape: shape of the tensor.
        store_gigabytes: maximum size in memory.
        scratch: folder for the file; None if the tensor is known to fit into memory.
        name: name of the file.
    """
    size = int(np.prod(shape, dtype=np.int64))
    if size <= store_gigabytes * 1e9:
        return torch.empty(shape, dtype=torch.uint8)
    if scratch is None:
        raise ValueError(
            f"{size / 1e9:.1f} GB of images exceed {store_gigabytes:g} GB and need a scratch folder"
        )
    make_folders(scratch)
    file = scratch / name
    remove_file(file)  # This frees the space of an old file, unless an earlier store still has it mapped.
    if size > shutil.disk_usage(scratch).free:
        raise InputError(
            f"not enough disk space in {scratch} for {size / 1e9:.1f} GB of images; free some space or use "
            "fewer images"
        )
    try:
        with create_file(file) as handle:
            allocate(handle, size)
            return torch.from_numpy(np.memmap(handle, dtype=np.uint8, mode="r+", shape=shape))
    except OSError as error:
        remove_file(file)
        raise DiskError(
            f"cannot store {size / 1e9:.1f} GB of images in {scratch}: {error.strerror}"
        ) from error
