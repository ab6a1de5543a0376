"""Predict the landmarks that the naming page shows.

This is the only module of `selfmark.naming` that imports torch. The server runs it in a child process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import Progress

from selfmark.detector import Detector
from selfmark.errors import report_write_errors
from selfmark.image_ref import ImageRef
from selfmark.images.crop import to_original
from selfmark.images.picture_files import encode_image
from selfmark.images.video import read_frames
from selfmark.naming.shown_images import CACHE_FOLDER, FRAMES_FOLDER, LANDMARKS_FILE, get_frames_folder
from selfmark.run.devices import select_device
from selfmark.run.files import atomic_folder
from selfmark.run.guarded_files import create_file, make_folder, remove_file, remove_folder
from selfmark.run.tensor_files import write_tensors
from selfmark.terminal import PlainConsole

_BATCH_SIZE = 32  # images to decode at a time; the progress bar advances after each batch
_MAX_FRAME_SIDE = 1600  # longer side of a stored video frame, in pixels
_FRAME_JPEG_QUALITY = 88


def predict_landmarks(folder: Path, refs: Sequence[ImageRef], fingerprint: str, device: str) -> None:
    """Predict the landmarks of images and store them in RUN/naming, with a progress bar on the terminal.

    Args:
        folder: Run folder or model folder.
        refs: Images.
        fingerprint: Fingerprint to store with the landmarks, from
            `shown_images.compute_landmarks_fingerprint`.
        device: `auto`, `cpu`, `cuda`, ...
    """
    detector = Detector.load(folder, select_device(device))
    cache = folder / CACHE_FOLDER
    with report_write_errors(f"to {cache}"):
        make_folder(cache)
        console = PlainConsole(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("predicting landmarks", total=len(refs))
            _predict(detector, refs, fingerprint, cache, lambda done, total: bar.update(task, completed=done))


def _predict(
    detector: Detector,
    refs: Sequence[ImageRef],
    fingerprint: str,
    cache: Path,
    on_progress: Callable[[int, int], None],
) -> None:
    predicted = detector.predict_network_pixels(refs, _BATCH_SIZE, on_progress)
    xy = to_original(predicted.xy, predicted.regions[:, None], detector.card.images.size)
    remove_file(cache / LANDMARKS_FILE)  # The old landmarks do not fit the new frames.
    _remove_old_frames(cache)
    _write_frames(refs, predicted.rows.tolist(), get_frames_folder(cache, fingerprint))
    arrays = {
        "rows": predicted.rows,
        "sizes": predicted.sizes,
        "regions": predicted.regions,
        "xy": xy.astype(np.float32),
        "score": predicted.score,
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    write_tensors(tensors, {"fingerprint": fingerprint}, cache / LANDMARKS_FILE)


def _remove_old_frames(cache: Path) -> None:
    """Delete all folders of frames except the newest, which another server of the same run may be showing.

    The caller holds the lock of the cache, so any temporary folder was left behind by a killed process.
    """
    for folder in cache.glob(f".{FRAMES_FOLDER}*.part"):
        remove_folder(folder)
    folders = sorted(cache.glob(f"{FRAMES_FOLDER}*"), key=lambda path: path.lstat().st_mtime)
    for folder in folders[:-1]:
        remove_folder(folder)


def _write_frames(refs: Sequence[ImageRef], rows: Sequence[int], folder: Path) -> None:
    """Store every shown video frame as a JPEG, because seeking in a video on request would be too slow."""
    remove_folder(folder)
    rows_by_frame: dict[Path, dict[int, list[int]]] = {}
    for row in rows:
        frame = refs[row].frame
        if frame is not None:
            rows_by_frame.setdefault(refs[row].path, {}).setdefault(frame, []).append(row)
    if not rows_by_frame:
        return
    with atomic_folder(folder) as temporary:
        for video, frames in rows_by_frame.items():
            for frame, pixels in read_frames(video, sorted(frames)):
                image = Image.fromarray(pixels)
                image.thumbnail((_MAX_FRAME_SIDE, _MAX_FRAME_SIDE))
                for row in frames[frame]:
                    with create_file(temporary / f"{row}.jpg") as handle:
                        handle.write(encode_image(image, "JPEG", _FRAME_JPEG_QUALITY))
