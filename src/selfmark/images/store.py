"""The images as the network sees them: cropped squares, all at once or batch by batch.

Originals are decoded by a few threads, cropped and dropped at once, so memory is bounded by the crops.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from selfmark.config import Images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.crop import crop_regions, extract_crop, inner_bounds
from selfmark.images.decode import DecodedImage, Pixels, UnreadableImage, decode_image
from selfmark.images.video import read_frames
from selfmark.images.video_container import require_video

_WORKERS = min(8, os.cpu_count() or 1)
_AHEAD = 4 * _WORKERS  # images decoded before they are asked for; whole video frames among them
_LEFT = 2  # pixels left for each of the network's, on each axis, when a large JPEG is decoded smaller
_LOAD_BATCH = 64  # crops copied into the store at a time


@dataclass(frozen=True)
class Skipped:
    """An image that was left out, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class ImageStore:
    """N cropped images and how each came from its original.

    pixels:  [N, 3, S, S] uint8 RGB on the CPU, in memory or memory-mapped from a file
    refs:    N references, in the order they were given
    sizes:   [N, 2] int64, width and height of the original
    regions: [N, 4] float64, the part of the original that was cropped: x, y, w, h, corner convention
    bounds:  [N, 4] float32, x0, y0, x1, y1 in network pixels: where keypoints may lie
    video:   [N] int64, number of the video or film an image is a frame of, -1 for stills of their own
    frame:   [N] int64, frame number, -1 for stills of their own
    track:   [N] int64, which of its video's objects this is, -1 where nobody knows
    skipped: the references that could not be used
    """

    pixels: torch.Tensor
    refs: tuple[ImageRef, ...]
    sizes: npt.NDArray[np.int64]
    regions: npt.NDArray[np.float64]
    bounds: npt.NDArray[np.float32]
    video: npt.NDArray[np.int64]
    frame: npt.NDArray[np.int64]
    track: npt.NDArray[np.int64]
    skipped: tuple[Skipped, ...]

    def __post_init__(self) -> None:
        columns = (self.pixels, self.sizes, self.regions, self.bounds, self.video, self.frame, self.track)
        if any(len(column) != len(self.refs) for column in columns):
            raise ValueError(f"every array of the store needs one row for each of its {len(self.refs)} refs")

    def __len__(self) -> int:
        return len(self.refs)

    def select(self, refs: Sequence[ImageRef]) -> ImageStore:
        """Return a store of the given images, in this order; images the store does not have are left out.

        Raises:
            InputError: if the store has none of them.
        """
        row_of = {ref: row for row, ref in enumerate(self.refs)}
        rows = [row_of[ref] for ref in refs if ref in row_of]
        if not rows:
            raise InputError(f"none of the {len(refs)} images could be read")
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
) -> ImageStore:
    """Decode and crop all images, in their order, leaving out those that cannot be read.

    Args:
        store_gigabytes: up to this size the pixels are held in memory, beyond it in `scratch`/images.u8.
        scratch: folder for that file; None if the images are known to fit into memory.
        on_progress: called with the number of references done and their number in all.
    """
    pixels = _allocate((len(refs), 3, images.size, images.size), store_gigabytes, scratch)
    parts: list[ImageStore] = []
    done = kept = 0
    for part in iterate_crops(refs, images, _LOAD_BATCH):
        pixels[kept : kept + len(part)] = part.pixels
        kept += len(part)
        done += len(part) + len(part.skipped)
        parts.append(replace(part, pixels=pixels[kept - len(part) : kept]))
        if on_progress is not None:
            on_progress(done, len(refs))
    skipped = tuple(item for part in parts for item in part.skipped)
    if kept == 0:
        first = f"; first: {skipped[0].name} ({skipped[0].reason})" if skipped else ""
        raise InputError(f"none of the {len(refs)} images could be read{first}")
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
    """The same images as `load_store` in stores of `batch` images, the last one smaller, possibly empty.

    A file is decoded once even if several references name it. Crops that are ready before their turn are
    held back, so memory is constant as long as references to one file stand together and frames ascend.
    Each store lists the references skipped since the one before; video numbers hold across all of them.
    """
    videos: dict[str, int] = {}
    for ref in refs:
        if ref.source_frame is not None:
            videos.setdefault(ref.source_frame[0], len(videos))
    kept: list[tuple[ImageRef, _Crop]] = []
    skipped: list[Skipped] = []
    for ref, outcome in zip(refs, _in_order(_in_parallel(_jobs(refs, images))), strict=True):
        if isinstance(outcome, str):
            skipped.append(Skipped(ref.name, outcome))
        else:
            kept.append((ref, outcome))
        if len(kept) == batch:
            yield _assemble(kept, skipped, videos, images.size)
            kept, skipped = [], []
    if kept or skipped:
        yield _assemble(kept, skipped, videos, images.size)


# --- from references to crops ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Crop:
    pixels: Pixels  # [S, S, 3]
    size: tuple[int, int]  # width, height of the original
    region: npt.NDArray[np.float64]  # [4]


_Outcome = _Crop | str  # a crop, or the reason there is none
_Job = tuple[list[int], Callable[[], list[_Outcome]]]  # which references, and what makes their outcomes


def _jobs(refs: Sequence[ImageRef], images: Images) -> Iterator[_Job]:
    """One job per still and per video frame, files in the order of their first mention."""
    files: dict[tuple[Path, bool], list[int]] = {}
    for position, ref in enumerate(refs):
        files.setdefault((ref.path, ref.frame is not None), []).append(position)
    for (path, is_video), positions in files.items():
        if is_video:
            yield from _video_jobs(path, positions, refs, images)
        else:
            yield positions, partial(_crop_still, path, [refs[position] for position in positions], images)


def _video_jobs(path: Path, positions: list[int], refs: Sequence[ImageRef], images: Images) -> Iterator[_Job]:
    """Read a video once, front to back; the frames that never came are reported at its end."""
    missing: dict[int, list[int]] = {}
    for position in positions:
        missing.setdefault(refs[position].frame or 0, []).append(position)
    reason = "the video ends before this frame"
    try:
        require_video(path)
        for frame, image in read_frames(path, list(missing)):
            here = missing.pop(frame)
            picture = DecodedImage(image, (image.shape[1], image.shape[0]), 1)
            yield here, partial(_crop_all, picture, [refs[position] for position in here], images)
    except InputError:
        reason = "the video cannot be read"
    for here in missing.values():
        yield here, partial(_refuse, len(here), reason)


def _crop_still(path: Path, refs: Sequence[ImageRef], images: Images) -> list[_Outcome]:
    def reducible(size: tuple[int, int]) -> float:
        if max(size) < 2 * _LEFT * images.size:  # small originals, many of them: nothing to be won
            return 1.0
        sides = crop_regions([size] * len(refs), _boxes(refs), images)[:, 2]
        return float(sides.min()) / (_LEFT * images.size)

    try:
        picture = decode_image(path, images.max_megapixels, reducible)
    except UnreadableImage as error:
        return _refuse(len(refs), str(error))
    return _crop_all(picture, refs, images)


def _crop_all(picture: DecodedImage, refs: Sequence[ImageRef], images: Images) -> list[_Outcome]:
    """Crop one decoded original for every reference to it."""
    size = picture.size
    regions = crop_regions([size] * len(refs), _boxes(refs), images)
    return [
        _Crop(extract_crop(picture.pixels, region / picture.factor, images.size), size, region)
        if _meets(ref, size)
        else "the box is empty or lies outside the image"
        for ref, region in zip(refs, regions, strict=True)
    ]


def _refuse(count: int, reason: str) -> list[_Outcome]:
    return [reason] * count


def _boxes(refs: Sequence[ImageRef]) -> npt.NDArray[np.float64]:
    """[N, 4], NaN where there is no box."""
    rows = [(np.nan,) * 4 if ref.box is None else ref.box for ref in refs]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def _meets(ref: ImageRef, size: tuple[int, int]) -> bool:
    if ref.box is None:
        return True
    x, y, width, height = ref.box
    inside = x < size[0] and y < size[1] and x + width > 0 and y + height > 0
    return inside and width > 0 and height > 0


# --- threads, order, memory ------------------------------------------------------------------------


def _in_parallel(jobs: Iterable[_Job]) -> Iterator[tuple[list[int], list[_Outcome]]]:
    """Results in the order of the jobs, of which only a few are under way at a time."""
    pool = ThreadPoolExecutor(_WORKERS)
    waiting: deque[tuple[list[int], Future[list[_Outcome]]]] = deque()
    try:
        for positions, work in jobs:
            waiting.append((positions, pool.submit(work)))
            if len(waiting) >= _AHEAD:
                ready, future = waiting.popleft()
                yield ready, future.result()
        for ready, future in waiting:
            yield ready, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(results: Iterable[tuple[list[int], list[_Outcome]]]) -> Iterator[_Outcome]:
    """Outcomes in the order of their references, each as soon as its turn has come."""
    early: dict[int, _Outcome] = {}
    turn = 0
    for positions, outcomes in results:
        early.update(zip(positions, outcomes, strict=True))
        while turn in early:
            yield early.pop(turn)
            turn += 1


def _assemble(
    kept: Sequence[tuple[ImageRef, _Crop]], skipped: Sequence[Skipped], videos: dict[str, int], size: int
) -> ImageStore:
    refs = tuple(ref for ref, _ in kept)
    moments = [ref.source_frame for ref in refs]
    crops = [crop for _, crop in kept]
    pixels = np.empty((len(kept), 3, size, size), np.uint8)
    for row, crop in zip(pixels, crops, strict=True):
        row[:] = crop.pixels.transpose(2, 0, 1)
    sizes = np.array([crop.size for crop in crops], dtype=np.int64).reshape(-1, 2)
    regions = np.array([crop.region for crop in crops], dtype=np.float64).reshape(-1, 4)
    return ImageStore(
        pixels=torch.from_numpy(pixels),
        refs=refs,
        sizes=sizes,
        regions=regions,
        bounds=inner_bounds(sizes, _boxes(refs), regions, size),
        video=np.array([-1 if one is None else videos[one[0]] for one in moments], dtype=np.int64),
        frame=np.array([-1 if one is None else one[1] for one in moments], dtype=np.int64),
        track=np.array([-1 if ref.track is None else ref.track for ref in refs], dtype=np.int64),
        skipped=tuple(skipped),
    )


def _allocate(shape: tuple[int, ...], store_gigabytes: float, scratch: Path | None) -> torch.Tensor:
    """Room for the pixels: memory, or where that would be too much a file that is mapped into it."""
    size = int(np.prod(shape, dtype=np.int64))
    if size <= store_gigabytes * 1e9:
        return torch.empty(shape, dtype=torch.uint8)
    if scratch is None:
        raise ValueError(
            f"{size / 1e9:.1f} GB of images exceed {store_gigabytes:g} GB and need a scratch folder"
        )
    scratch.mkdir(parents=True, exist_ok=True)
    file = scratch / "images.u8"
    file.unlink(missing_ok=True)  # an earlier store may still be mapped: give it up, do not overwrite it
    if size > shutil.disk_usage(scratch).free:
        raise InputError(
            f"{scratch} has no room for {size / 1e9:.1f} GB of images; free some or take fewer images"
        )
    try:
        with open(file, "xb") as handle:
            handle.truncate(size)
            if hasattr(os, "posix_fallocate"):  # without it a disk that fills up later ends in a signal
                os.posix_fallocate(handle.fileno(), 0, size)
        return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="r+", shape=shape))
    except OSError as error:
        file.unlink(missing_ok=True)
        raise InputError(
            f"cannot keep {size / 1e9:.1f} GB of images in {scratch}: {error.strerror}"
        ) from error
