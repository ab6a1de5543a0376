"""Draw labeled copies of still images while predictions are being made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from selfmark.detector import Prediction
from selfmark.draw.frame_drawing import DrawnObject, compute_confidence, compute_opacity
from selfmark.draw.layout import Layout, PictureStyle, build_style, compose_picture
from selfmark.errors import report_write_errors
from selfmark.export.output_files import choose_unique_paths, find_relative_paths
from selfmark.image_ref import ImageRef
from selfmark.images.decode import read_image
from selfmark.images.picture_files import encode_image, image_format
from selfmark.model.card import ModelCard, visible_card, visible_landmarks
from selfmark.points import FloatArray
from selfmark.run.files import atomic_open
from selfmark.run.guarded_files import make_folders

FOLDER = "drawn"
"""Folder of labeled photos in the output folder."""

_MIN_SIDE, _MAX_SIDE = 500, 1600  # limits of the longer side of a labeled photo, pixels
_NEW_WEIGHT = 0.02  # weight of the newest object in the running mean of scores
_QUALITY = 92  # quality of JPEG files

_PhotoObject = tuple[ImageRef, FloatArray, FloatArray]  # reference, landmarks [K, 2] and scores [K]


def draw_photos(
    predictions: Iterable[Prediction], refs: Sequence[ImageRef], card: ModelCard, folder: Path, layout: Layout
) -> Iterator[Prediction]:
    """Yield predictions unchanged, and draw them on copies of the still images, in `folder`/drawn.

    Args:
        predictions: Predictions of `refs`.
        refs: All objects that were to be predicted. A photo is drawn when its last object is predicted; a
            photo with skipped objects is drawn at the end.
        card: Model card with colors, skeleton, trust and hidden landmarks.
        folder: Output folder.
        layout: What to show besides the landmarks.
    """
    paths = list_labeled_photo_paths(refs, folder)
    num_objects = Counter(ref.path for ref in refs if ref.frame is None)
    kept = visible_landmarks(card)
    style = build_style(visible_card(card), kept, "", layout)
    unfinished: dict[Path, list[_PhotoObject]] = {}  # objects of the photos that are not drawn yet
    typical_score: FloatArray | None = None
    for prediction in predictions:
        landmarks = prediction.landmarks
        for row, ref in enumerate(prediction.refs):
            if ref.frame is not None:
                continue
            xy, score = landmarks.xy[row, kept], landmarks.score[row, kept]
            unfinished.setdefault(ref.path, []).append((ref, xy, score))
            new_score = score.astype(np.float64)
            typical_score = new_score if typical_score is None else typical_score
            typical_score = (1 - _NEW_WEIGHT) * typical_score + _NEW_WEIGHT * new_score
            if len(unfinished[ref.path]) == num_objects[ref.path]:
                items = unfinished.pop(ref.path)
                _draw_photo(ref.path, items, typical_score, style, paths[ref.path], folder)
        yield prediction
    if typical_score is not None:
        for photo, items in unfinished.items():
            _draw_photo(photo, items, typical_score, style, paths[photo], folder)


def list_labeled_photo_paths(refs: Iterable[ImageRef], folder: Path) -> dict[Path, Path]:
    """Return the path of the labeled copy of each photo, in the same folder structure as the photos.

    A copy is named after its photo without the suffix. The suffix is kept if two copies would otherwise have
    the same name.

    >>> refs = [ImageRef(Path("a/1.png")), ImageRef(Path("b/1.png")), ImageRef(Path("b/1.jpg"))]
    >>> [path.as_posix() for path in list_labeled_photo_paths(refs, Path("out")).values()]
    ['out/drawn/a/1.jpg', 'out/drawn/b/1.png.jpg', 'out/drawn/b/1.jpg.jpg']
    """
    photos = dict.fromkeys(ref.path for ref in refs if ref.frame is None)
    names = {photo: [path.with_suffix(""), path] for photo, path in find_relative_paths(photos).items()}
    return {
        photo: folder / FOLDER / path.with_name(path.name + ".jpg")
        for photo, path in choose_unique_paths(names).items()
    }


def _choose_zoom(pixels: np.ndarray) -> float:
    """Return the factor that brings the longer side of a photo within its limits."""
    side = max(pixels.shape[:2])
    return float(np.clip(1.0, _MIN_SIDE / side, _MAX_SIDE / side))


def _resize(pixels: np.ndarray, zoom: float) -> np.ndarray:
    height, width = pixels.shape[:2]
    size = (max(1, round(width * zoom)), max(1, round(height * zoom)))
    method = cv2.INTER_CUBIC if zoom > 1 else cv2.INTER_AREA
    return np.asarray(cv2.resize(pixels, size, interpolation=method), dtype=np.uint8)


def _draw_photo(
    photo: Path,
    items: Sequence[_PhotoObject],
    typical_score: FloatArray,
    style: PictureStyle,
    target: Path,
    folder: Path,
) -> None:
    """Draw objects on a copy of their photo, and save the copy as `target` in the output folder."""
    pixels = read_image(photo, float("inf"))
    zoom = _choose_zoom(pixels)
    objects = [_build_drawn_object(item, zoom, typical_score) for item in items]
    _save(compose_picture(_resize(pixels, zoom), objects, [], style), target, folder)


def _build_drawn_object(item: _PhotoObject, zoom: float, typical_score: FloatArray) -> DrawnObject:
    ref, xy, score = item
    drawn_xy = (xy.astype(np.float64) + 0.5) * zoom - 0.5
    size = zoom * max(ref.box[2:]) if ref.box else float(np.ptp(drawn_xy, axis=0).max())
    tag = "" if ref.track is None else str(ref.track)
    confidence = compute_confidence(score, typical_score)
    opacity = compute_opacity(score, typical_score)
    return DrawnObject(drawn_xy, opacity, size, tag, drawn_xy[None], confidence)


def _save(picture: np.ndarray, path: Path, folder: Path) -> None:
    with report_write_errors(path):
        make_folders(path.parent, below=folder)
        with atomic_open(path, "wb") as handle:
            handle.write(encode_image(Image.fromarray(picture), image_format(path), _QUALITY))
