"""Predict the landmarks of all views of an image as those of one object.

A view is a box of the image that shows the animal from one side, see `View`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.argument_types import check_argument_types
from selfmark.detector import Detector, Prediction
from selfmark.errors import InputError, report_write_errors
from selfmark.image_ref import Box, ImageRef
from selfmark.images.crop import to_original
from selfmark.images.store import iterate_crops
from selfmark.model.card import ModelCard
from selfmark.model.colors import palette
from selfmark.multiview.view_boxes import (
    View,
    are_views_inside,
    read_views,
    require_views_inside,
    require_views_inside_all,
    write_views,
)
from selfmark.points import Landmarks
from selfmark.run.guarded_files import make_folders


@dataclass(frozen=True)
class _CroppedImage:
    """An image and its crops, one per view.

    Attributes:
        ref: The image.
        size: [2] int64 width and height, pixels.
        pixels: [3, S, S] crop of each view.
        regions: [4] x, y, w, h of each crop in pixels of the image.
    """

    ref: ImageRef
    size: npt.NDArray[np.int64]
    pixels: list[Tensor] = field(default_factory=list)
    regions: list[npt.NDArray[np.float64]] = field(default_factory=list)


class ViewDetector(Detector):
    """Detector of a run with views: it combines one detector per view and predicts one object per image.

    Attributes:
        views: Name and box of each view.
        card: Names, skeleton and trust of all landmarks; `top_3` is landmark 3 of the view `top`.
    """

    def __init__(self, views: Sequence[View], detectors: Sequence[Detector]) -> None:
        """Combine the detectors of the views, one per view.

        Raises:
            InputError: The detectors have different settings of `images`.
        """
        if any(detector.card.images != detectors[0].card.images for detector in detectors):
            raise InputError(
                "the views were trained with different settings of 'images'; train them together"
            )
        card = merge_cards([view.name for view in views], [detector.card for detector in detectors])
        first = detectors[0]
        super().__init__(first.psi, card, first.device, first.runtime)
        self.views = tuple(views)
        self._detectors = tuple(detectors)

    def stored_tensors(self) -> dict[str, Tensor]:
        """Return the learned tensors of all detectors; their names start with the name of the view."""
        return {
            f"{view.name}.{name}": tensor
            for view, detector in zip(self.views, self._detectors, strict=True)
            for name, tensor in detector.stored_tensors().items()
        }

    @check_argument_types
    def save(self, folder: str | Path) -> None:
        """Write views.json, and the model of each view in a folder of its own."""
        folder = Path(folder)
        with report_write_errors(f"to {folder}"):
            make_folders(folder)
            write_views(self.views, folder)
        for view, detector in zip(self.views, self._detectors, strict=True):
            detector.save(folder / view.name)

    def _predict_arrays(self, arrays: Sequence[npt.NDArray[np.uint8]], box: Box | None = None) -> Landmarks:
        for number, array in enumerate(arrays):
            require_views_inside(self.views, (array.shape[1], array.shape[0]), f"image {number}")
        landmarks = [
            detector._predict_arrays(arrays, view.box)
            for view, detector in zip(self.views, self._detectors, strict=True)
        ]
        return self._join([part.xy for part in landmarks], [part.score for part in landmarks])

    def _join(
        self, xy: Sequence[npt.NDArray[np.float32]], score: Sequence[npt.NDArray[np.float32]]
    ) -> Landmarks:
        """Return the landmarks of all views as those of one object."""
        return Landmarks(np.concatenate(xy, axis=1), np.concatenate(score, axis=1), self.card.names)

    def parts(self, run: Path, refs: Sequence[ImageRef]) -> list[tuple[Path, Detector, list[ImageRef]]]:
        """Return, for each view, its run folder, its detector, and the images cropped to its box."""
        return [
            (run / view.name, detector, [replace(ref, box=view.box) for ref in refs])
            for view, detector in zip(self.views, self._detectors, strict=True)
        ]

    def _iterate_predictions(self, refs: Sequence[ImageRef], batch: int) -> Iterator[Prediction]:
        """Yield the landmarks of all views batch by batch, in pixels of the whole images.

        Each image is decoded once and cropped to all views. An image is left out if it cannot be read, or if
        a view is not inside the image: the frames of a video can have different sizes.

        Raises:
            InputError: A view is not inside the size that the header of a file states, or an image has a box.
        """
        if any(ref.box is not None for ref in refs):
            raise InputError("images with views cannot have boxes; use images and videos without boxes")
        require_views_inside_all(self.views, refs)
        for images in self._iterate_images(refs, batch):
            xy, score = [], []
            for index, detector in enumerate(self._detectors):
                located = detector.locate(torch.stack([image.pixels[index] for image in images]))
                regions = np.stack([image.regions[index] for image in images])[:, None]
                size = self.card.images.size
                xy.append(to_original(located.xy.cpu().numpy(), regions, size).astype(np.float32))
                score.append(located.score.cpu().numpy().astype(np.float32))
            sizes = np.stack([image.size for image in images])
            yield Prediction(tuple(image.ref for image in images), sizes, self._join(xy, score))

    def _iterate_images(self, refs: Sequence[ImageRef], batch: int) -> Iterator[list[_CroppedImage]]:
        """Yield the images that contain all views, about `batch` at a time."""
        num_views = len(self.views)
        cropped = [replace(ref, box=view.box) for ref in refs for view in self.views]
        # Crops keep their order, but crops that cannot be made are missing, even in the middle of an image.
        positions = iter(range(len(cropped)))
        number, image = -1, _CroppedImage(ImageRef(Path()), np.zeros(2, np.int64))
        for crops in iterate_crops(cropped, self.card.images, num_views * batch):
            images = []
            for row, ref in enumerate(crops.refs):
                position = next(position for position in positions if cropped[position] == ref)
                if position // num_views != number:
                    number = position // num_views
                    image = _CroppedImage(refs[number], crops.sizes[row])
                image.pixels.append(crops.pixels[row])
                image.regions.append(crops.regions[row])
                if len(image.pixels) == num_views and are_views_inside(self.views, image.size.tolist()):
                    images.append(image)
            if images:
                yield images


def load_view_detector(
    folder: Path, views: Sequence[View], load: Callable[[Path], Detector]
) -> ViewDetector | None:
    """Load the detectors of a run with views; return None if the run has no views.

    Args:
        folder: Run folder.
        views: Views that replace the stored views; empty to use the stored views.
        load: Loads the detector of one run folder.

    Raises:
        InputError: Views are given but the run has none, or their names differ from those of the run.
    """
    stored = read_views(folder)
    if not stored:
        if views:
            raise InputError(f"{folder} was not discovered with --views, so it cannot predict with --views")
        return None
    names, given = [view.name for view in stored], {view.name: view for view in views}
    if views and set(given) != set(names):
        raise InputError(f"the views of {folder} are {', '.join(names)}, not {', '.join(given)}")
    used = [given.get(view.name, view) for view in stored]
    return ViewDetector(used, [load(folder / name) for name in names])


def merge_cards(views: Sequence[str], cards: Sequence[ModelCard]) -> ModelCard:
    """Merge the cards of all views into one.

    Mirror partners and skeletons connect only landmarks of the same view. Trust and verdict are kept only if
    they were measured in every view. The verdict is the worst verdict of all views.
    """
    # Number of the first landmark of each view.
    offsets = np.cumsum([0, *(len(card.names) for card in cards)]).tolist()[:-1]
    placed = list(zip(views, cards, offsets, strict=True))
    colors = [color for card in cards for color in card.colors or [""] * len(card.names)]
    defaults = palette(len(colors))
    trust = tuple(trust for card in cards for trust in card.trust)
    verdicts = [card.verdict for card in cards]
    worst = next((verdict for verdict in ("failed", "usable", "good") if verdict in verdicts), None)
    return replace(
        cards[0],
        names=_merge_names([(view, name) for view, card, _ in placed for name in card.names]),
        mirror=tuple(partner + offset for _, card, offset in placed for partner in card.mirror),
        skeleton=tuple((a + offset, b + offset) for _, card, offset in placed for a, b in card.skeleton),
        colors=tuple(color or default for color, default in zip(colors, defaults, strict=True)),
        hidden=tuple(index + offset for _, card, offset in placed for index in card.hidden),
        confirmed=tuple(index + offset for _, card, offset in placed for index in card.confirmed),
        unpaired=tuple(index + offset for _, card, offset in placed for index in card.unpaired),
        trained_mirror=tuple(
            partner + offset for _, card, offset in placed for partner in card.trained_mirror or card.mirror
        ),
        trust=trust if all(card.trust for card in cards) else (),
        verdict=None if None in verdicts else worst,
    )


def _merge_names(names: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return unique names for the landmarks of all views, given the view and the name of each landmark.

    >>> _merge_names([("side", "landmark_0"), ("side", "nose"), ("below", "landmark_0")])
    ('side_0', 'side_nose', 'below_0')
    >>> _merge_names([("side", "landmark_3"), ("side", "3"), ("a", "b_ear"), ("a_b", "ear")])
    ('side_landmark_3', 'side_3', 'a_b_ear_2', 'a_b_ear_3')
    """
    merged = [f"{view}_{name.removeprefix('landmark_')}" for view, name in names]
    # Equal names get their prefix `landmark_` back. After that, the names of one view differ.
    merged = [
        f"{view}_{name}" if merged.count(old) > 1 else old
        for (view, name), old in zip(names, merged, strict=True)
    ]
    while len(set(merged)) < len(merged):
        merged = [f"{name}_{index}" if merged.count(name) > 1 else name for index, name in enumerate(merged)]
    return tuple(merged)
