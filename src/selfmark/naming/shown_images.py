"""Select the images that the naming page shows, and store their landmarks in RUN/naming."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfmark.config import used_image_settings
from selfmark.errors import InputError, UnsafeFile
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.model.card import ONNX_FEATURES, ModelCard, landmarks_without_partner
from selfmark.run.array_files import read_arrays
from selfmark.run.files import read_json, require_format
from selfmark.run.guarded_files import compute_sha256, read_file_state
from selfmark.run.image_list import refs_from_json
from selfmark.sampling import evenly_spaced

CACHE_FOLDER = "naming"
LANDMARKS_FILE = "landmarks.safetensors"
# Arrays in the landmarks file. `rows` are the indices of the images that could be read.
_ARRAYS = {"rows": np.int64, "sizes": np.int64, "regions": np.float64, "xy": np.float32, "score": np.float32}
# Start of the name of a folder with JPEGs of video frames; a digest follows. Frames are stored because
# seeking in a video is slow.
FRAMES_FOLDER = "frames"


@dataclass(frozen=True)
class ShownImages:
    """N images with their K landmarks.

    Attributes:
        refs: N images.
        sizes: [N, 2] int64, width and height of the originals in pixels.
        regions: [N, 4] float64, the region of each original that the network sees: x, y, width, height, with
            pixel corners at integers.
        xy: [N, K, 2] float32, pixels of the original, with pixel centers at integers.
        score: [N, K] float32.
        frames: JPEG file of each video frame; None for still images.
    """

    refs: tuple[ImageRef, ...]
    sizes: npt.NDArray[np.int64]
    regions: npt.NDArray[np.float64]
    xy: npt.NDArray[np.float32]
    score: npt.NDArray[np.float32]
    frames: tuple[Path | None, ...]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.refs)

    def select(self, rows: Sequence[int]) -> ShownImages:
        """Return the images at these rows, in this order."""
        index = np.asarray(rows, dtype=np.int64)
        return ShownImages(
            tuple(self.refs[row] for row in rows),
            self.sizes[index],
            self.regions[index],
            self.xy[index],
            self.score[index],
            tuple(self.frames[row] for row in rows),
        )


# --- selecting images --------------------------------------------------------------------------------


def select_shown_images(
    folder: Path, given: Sequence[str], max_images: int, command: str = "selfmark name"
) -> list[ImageRef]:
    """Return the images to show, evenly spaced among all candidates.

    Args:
        folder: Run folder or model folder.
        given: Files and folders with images. If some of them are images of the run, perhaps moved, only these
            are candidates, with the boxes of the run. If none is an image of the run, all given images are
            candidates. They are then cropped as in the run, if the run used the same part of every image (a
            view, or `--crop`). If `given` is empty, all images of the run are candidates.
        max_images: Maximum number of images.
        command: Command that shows the images, for messages.
    """
    run_images = _read_run_images(folder)
    if given:
        listed = list_images(given)
        refs = _match_moved_images(run_images, listed) or _crop_like_run(run_images, listed)
    elif not run_images:
        raise InputError(
            f"{folder} does not say which images it was made from: add images, as in "
            f"'{command} {folder} IMAGES'"
        )
    else:
        refs = run_images
    selected = [refs[row] for row in evenly_spaced(len(refs), max_images, nearest=True)]
    if not any(os.path.isfile(ref.path) for ref in selected):
        raise InputError(
            f"the images of {folder} are no longer where they were; the first was {selected[0].path}. "
            f"Add their new location, as in '{command} {folder} IMAGES'"
        )
    return selected


def _read_run_images(folder: Path) -> list[ImageRef]:
    """Return the images of a run; empty for a model folder."""
    if not (folder / "run.json").exists():
        return []
    require_format(read_json(folder / "run.json"), folder / "run.json")
    try:
        return refs_from_json(read_json(folder / "images.json"))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{folder / 'images.json'} is not a usable list of images: {error}") from error


def _match_moved_images(run_images: Sequence[ImageRef], found: Sequence[ImageRef]) -> list[ImageRef]:
    """Return the images of a run that were found in another folder, with the boxes of the run.

    Files are matched by name. If the run has several files with the same name, the parent folders decide: a
    found file is matched with the image of the run whose path shares the longest end with the file's path.

    >>> run_images = [ImageRef(Path("old/a/1.jpg")), ImageRef(Path("old/b/1.jpg"), box=(0, 0, 9, 9))]
    >>> moved = _match_moved_images(run_images, [ImageRef(Path("new/b/1.jpg")), ImageRef(Path("new/2.jpg"))])
    >>> [(str(ref.path), ref.box) for ref in moved]
    [('new/b/1.jpg', (0, 0, 9, 9))]
    """
    by_name: dict[str, list[Path]] = {}
    for path in dict.fromkeys(ref.path for ref in run_images):
        by_name.setdefault(path.name, []).append(path)
    new_path: dict[Path, Path] = {}
    for new in dict.fromkeys(ref.path for ref in found if ref.path.name in by_name):
        candidates = by_name[new.name]
        old = max(candidates, key=lambda path, new=new: _count_common_end(path, new))  # type: ignore[misc]
        new_path[old] = new
    return [replace(ref, path=new_path[ref.path]) for ref in run_images if ref.path in new_path]


def _crop_like_run(run_images: Sequence[ImageRef], images: Sequence[ImageRef]) -> list[ImageRef]:
    """Give the box of the run to images without a box, if the run has several images, all with the same box.

    >>> frames = [ImageRef(Path("a.mp4"), frame, box=(0, 10, 9, 9)) for frame in (0, 4)]
    >>> _crop_like_run(frames, [ImageRef(Path("b.png"))])[0].box
    (0, 10, 9, 9)
    """
    boxes = {ref.box for ref in run_images}
    is_fixed = len(boxes) == 1 and len(run_images) > 1
    box = boxes.pop() if is_fixed else None
    return [ref if ref.box is not None else replace(ref, box=box) for ref in images]


def _count_common_end(a: Path, b: Path) -> int:
    """Count the parts that two paths have in common, from the end."""
    count = 0
    for part_a, part_b in zip(reversed(a.parts), reversed(b.parts), strict=False):
        if part_a != part_b:
            break
        count += 1
    return count


# --- stored landmarks --------------------------------------------------------------------------------


def get_frames_folder(cache: Path, fingerprint: str) -> Path:
    """Return the folder of the video frames of the images with this fingerprint.

    Another server of the same run that shows other images uses another folder.
    """
    return cache / f"{FRAMES_FOLDER}-{fingerprint[:12]}"


def load_cached_landmarks(
    folder: Path, refs: Sequence[ImageRef], fingerprint: str, num_landmarks: int
) -> ShownImages | None:
    """Return the stored landmarks of these images, or None if they must be predicted first."""
    cache = folder / CACHE_FOLDER
    try:
        arrays, metadata = read_arrays(cache / LANDMARKS_FILE)
    except UnsafeFile:
        raise
    except InputError:  # missing or damaged
        return None
    if metadata.get("fingerprint") != fingerprint or not _is_usable(arrays, len(refs), num_landmarks):
        return None
    rows, sizes, regions, xy, score = (arrays[name] for name in _ARRAYS)
    readable = tuple(refs[row] for row in rows.tolist())
    frames_path = get_frames_folder(cache, fingerprint)
    frames = [frames_path / f"{row}.jpg" if refs[row].frame is not None else None for row in rows.tolist()]
    # Landmarks of an earlier version of selfmark have their frames in another folder: predict them again.
    if any(frames) and not frames_path.is_dir():
        return None
    return ShownImages(readable, sizes, regions, xy, score, tuple(frames))


def _is_usable(arrays: Mapping[str, npt.NDArray[Any]], num_refs: int, num_landmarks: int) -> bool:
    """Return True if the arrays have the expected names, shapes and types, and valid values."""
    if set(arrays) != set(_ARRAYS):
        return False
    rows = arrays["rows"]
    count = len(rows) if rows.ndim == 1 else -1
    shapes = [(count,), (count, 2), (count, 4), (count, num_landmarks, 2), (count, num_landmarks)]
    return (
        all(
            arrays[name].shape == shape and arrays[name].dtype == dtype
            for (name, dtype), shape in zip(_ARRAYS.items(), shapes, strict=True)
        )
        and bool(((rows >= 0) & (rows < num_refs)).all())
        and all(bool(np.isfinite(array).all()) for array in arrays.values())
    )


def compute_landmarks_fingerprint(model: Path, card: ModelCard, refs: Sequence[ImageRef]) -> str:
    """Return a digest of everything that the predicted landmarks depend on.

    It covers the network with its weights, the settings that affect predictions, and the images with their
    file sizes and modification times.
    """
    digest = hashlib.sha256()
    digest.update(bytes.fromhex(compute_sha256(model / "weights.safetensors")))
    sections = used_image_settings(card.images), dataclasses.asdict(card.network)
    digest.update(json.dumps([card.mirror if card.flip_test else None, card.refine, *sections]).encode())
    if card.flip_test and (unpaired := landmarks_without_partner(card)):
        digest.update(json.dumps(unpaired).encode())
    if card.architecture != "hourglass":
        sections = dataclasses.asdict(card.features), dataclasses.asdict(card.student)
        digest.update(json.dumps([card.architecture, *sections]).encode())
        if (model / ONNX_FEATURES).exists():
            digest.update(bytes.fromhex(compute_sha256(model / ONNX_FEATURES)))
    # Digest one file at a time, so that memory use does not grow with the number of images.
    for path, group in groupby(refs, key=lambda ref: os.fspath(ref.path)):
        boxes = [(ref.frame, ref.box) for ref in group]
        digest.update(json.dumps([os.path.abspath(path), read_file_state(Path(path)), boxes]).encode())
    return digest.hexdigest()
