"""The landmarks of the images the page shows. Only this needs torch, so it runs in a process that ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.crop import to_original
from selfmark.images.video import read_frames
from selfmark.naming.shown_images import FOLDER, FRAMES, POINTS
from selfmark.run.devices import select_device
from selfmark.run.tensor_files import write_tensors

_BATCH = 32  # images between two steps of the progress bar
_FRAME_SIDE = 1600  # longer side of a video frame's picture, at most


def find_landmarks(folder: Path, refs: Sequence[ImageRef], fingerprint: str, device: str) -> None:
    """Find the landmarks of the images and keep them in RUN/naming, with a progress bar on the terminal."""
    detector = Detector.load(folder, select_device(device))
    home = folder / FOLDER
    try:
        home.mkdir(exist_ok=True)
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("finding landmarks", total=len(refs))
            _find(detector, refs, fingerprint, home, lambda done, total: bar.update(task, completed=done))
    except OSError as error:
        raise InputError(f"cannot write to {home}: {error.strerror}") from error


def _find(
    detector: Detector,
    refs: Sequence[ImageRef],
    fingerprint: str,
    home: Path,
    on_progress: Callable[[int, int], None],
) -> None:
    found = detector.predict_network_pixels(refs, _BATCH, on_progress)
    xy = to_original(found.xy, found.regions[:, None], detector.card.images.size)
    (home / POINTS).unlink(missing_ok=True)  # before the frames it speaks of are replaced
    _write_frames(refs, found.rows.tolist(), home / FRAMES)
    arrays = {
        "rows": found.rows,
        "sizes": found.sizes,
        "regions": found.regions,
        "xy": xy.astype(np.float32),
        "score": found.score,
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    write_tensors(tensors, {"fingerprint": fingerprint}, home / POINTS)


def _write_frames(refs: Sequence[ImageRef], rows: Sequence[int], folder: Path) -> None:
    """A picture of every video frame: finding one later would mean to read the video from its beginning."""
    shutil.rmtree(folder, ignore_errors=True)
    wanted: dict[Path, dict[int, list[int]]] = {}
    for row in rows:
        frame = refs[row].frame
        if frame is not None:
            wanted.setdefault(refs[row].path, {}).setdefault(frame, []).append(row)
    for video, frames in wanted.items():
        folder.mkdir(exist_ok=True)
        for frame, pixels in read_frames(video, sorted(frames)):
            picture = Image.fromarray(pixels)
            picture.thumbnail((_FRAME_SIDE, _FRAME_SIDE))
            for row in frames[frame]:
                picture.save(folder / f"{row}.jpg", quality=88)
