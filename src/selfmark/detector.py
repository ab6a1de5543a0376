"""Predict with a trained detector of K landmarks, save it and load it.

>>> import selfmark
>>> detector = selfmark.load("runs/cats")          # doctest: +SKIP
>>> points = detector("cat.jpg")                   # doctest: +SKIP
>>> points.xy.shape                                # doctest: +SKIP
(1, 20, 2)
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.argument_types import check_argument_types
from selfmark.config import Runtime, used_image_settings
from selfmark.errors import (
    DamagedFile,
    InputError,
    TrainingError,
    escape_control_characters,
    report_path_errors,
    report_write_errors,
)
from selfmark.image_ref import Box, ImageRef
from selfmark.images.crop import compute_crop_regions, extract_crop, to_original
from selfmark.images.decode import UnreadableImage, read_image
from selfmark.images.input_files import parse_box
from selfmark.images.sources import list_images
from selfmark.images.store import iterate_crops
from selfmark.model.card import (
    ONNX_FEATURES,
    ModelCard,
    landmarks_without_partner,
    model_folder,
    read_card,
    write_card,
)
from selfmark.model.heatmaps import read_heatmaps, to_pixels
from selfmark.model.landmark_network import (
    LandmarkNetwork,
    build_landmark_network,
    bytes_per_network_image,
    find_onnx_model,
    prepare_landmark_network,
    read_weights,
    select_stored_weights,
)
from selfmark.points import Landmarks
from selfmark.run.config_file import read_config
from selfmark.run.devices import images_per_pass, pad_batch, select_device
from selfmark.run.guarded_files import make_folders
from selfmark.run.tensor_files import read_tensors, write_tensors
from selfmark.wording import choose_form, describe_count

_BATCH = 64  # images decoded and held in memory at a time
_DEFAULT_RUNTIME = Runtime()


class NetworkLandmarks(NamedTuple):
    """Landmarks of B network images: `xy` [B, K, 2] in network pixels, `score` [B, K] in 0..1."""

    xy: Tensor
    score: Tensor


class Prediction(NamedTuple):
    """Landmarks of one batch of images, in pixels of the original images.

    refs:      the N images of the batch that could be read
    sizes:     [N, 2] int64, width and height of each original image
    landmarks: the K landmarks of each image
    """

    refs: tuple[ImageRef, ...]
    sizes: npt.NDArray[np.int64]
    landmarks: Landmarks


class NetworkPrediction(NamedTuple):
    """Landmarks of N images, in network pixels; images that could not be read are left out.

    rows:    [N] int64, index of each image among the given references
    xy:      [N, K, 2] float32
    score:   [N, K] float32
    regions: [N, 4] float64, the part of the original image that the network sees: x, y, width, height
    sizes:   [N, 2] int64, width and height of the original image
    skipped: the images that could not be read, as "name: reason"
    """

    rows: npt.NDArray[np.int64]
    xy: npt.NDArray[np.float32]
    score: npt.NDArray[np.float32]
    regions: npt.NDArray[np.float64]
    sizes: npt.NDArray[np.int64]
    skipped: tuple[str, ...]


class Detector:
    """A trained network Psi with its model card, on a device.

    Call it with images to get their landmarks. `predict` yields them batch by batch.

    psi:     the network that returns K heatmaps
    card:    names of the landmarks, preprocessing, how heatmaps are read
    device:  the device that the network runs on
    runtime: precision, kernels and the largest number of images per forward pass
    """

    def __init__(
        self,
        psi: LandmarkNetwork,
        card: ModelCard,
        device: torch.device | str = "cpu",
        runtime: Runtime = _DEFAULT_RUNTIME,
    ) -> None:
        """Move the network to the device.

        Args:
            psi: the network.
            card: its model card.
            device: device to compute on.
            runtime: precision, kernels and the largest number of images per forward pass.
        """
        self.device = torch.device(device)
        self.psi = psi.eval()
        self.runtime = runtime
        prepare_landmark_network(self.psi, self.device, runtime)
        self.card = card
        image_bytes = bytes_per_network_image(card) * (1 + card.flip_test)
        self._max_images = images_per_pass(runtime.predict_batch, image_bytes, self.device)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the K landmarks, in index order."""
        return self.card.names

    # --- network pixels -----------------------------------------------------------------------------

    def locate(self, pixels: Tensor) -> NetworkLandmarks:
        """Find the landmarks of network images [B, 3, S, S] uint8.

        With `card.flip_test`, the heatmaps of each image are averaged with those of its mirror image, except
        for landmarks without a mirror partner. A forward pass processes at most `runtime.predict_batch`
        images (and as many mirror images), fewer if memory is short.

        Raises:
            ValueError: if the images have another shape or type.
            DamagedFile: if the network returns numbers that are not finite.
            TrainingError: if the GPU has too little memory for a single image.
        """
        require_network_images(pixels, self.card.images.size)
        parts: list[NetworkLandmarks] = []
        done = 0
        while not parts or done < len(pixels):
            part = pixels[done : done + self._max_images]
            located = self._try_forward(part)
            if located is None:  # Other programs have used up memory since `_max_images` was computed.
                self._max_images = len(part) // 2
                continue
            parts.append(located)
            done += len(part)
        xy, score = (torch.cat(column) for column in zip(*parts, strict=True))
        # Finite weights can be so large that the network overflows. Checking once per call makes a GPU wait
        # once, not after every pass.
        if not bool(score.isfinite().all() & xy.isfinite().all()):
            raise DamagedFile(
                "the weights of this detector are damaged: it finds landmarks at positions or with scores "
                "that are not finite numbers; restore the model folder from a copy, or make a new run"
            )
        return NetworkLandmarks(xy, score.clamp(0, 1))

    def _try_forward(self, pixels: Tensor) -> NetworkLandmarks | None:
        """Run one forward pass; return None if the GPU has too little memory for several images."""
        try:
            return self._forward(pixels)
        except torch.OutOfMemoryError as error:
            if len(pixels) == 1:
                raise TrainingError(
                    f"the GPU has too little memory for one image of {self.card.images.size} px: "
                    "stop other programs that use it, or use --device cpu"
                ) from error
        torch.cuda.empty_cache()
        return None

    @torch.no_grad()
    def _forward(self, pixels: Tensor) -> NetworkLandmarks:
        images = pad_batch(pixels.to(self.device).float() / 255, self._max_images)
        if self.card.flip_test:
            partner = torch.tensor(self.card.mirror, device=self.device)
            maps, mirrored = self.psi(torch.cat([images, images.flip(-1)])).chunk(2)
            # Landmark k of the image is landmark partner[k] of its mirror image.
            averaged = (maps + mirrored.flip(-1)[:, partner]) / 2
            if unpaired := landmarks_without_partner(self.card):
                averaged[:, unpaired] = maps[:, unpaired]
            maps = averaged
        else:
            maps = self.psi(images)
        peaks = read_heatmaps(maps[: len(pixels)], self.card.refine)
        return NetworkLandmarks(to_pixels(peaks.cells), peaks.score)

    @check_argument_types
    def predict_network_pixels(
        self,
        refs: Sequence[ImageRef],
        batch: int = _BATCH,
        on_progress: Callable[[int, int], None] | None = None,
        on_crops: Callable[[Tensor], None] | None = None,
    ) -> NetworkPrediction:
        """Find the landmarks of all images, in network pixels; leave out images that cannot be read.

        Args:
            refs: the images.
            batch: number of images to decode and hold in memory at a time.
            on_progress: called after each batch with the number of images done and the number of all images.
            on_crops: called with the network images [B, 3, S, S] uint8 of each batch.

        Raises:
            InputError: if none of the images can be read, a box is not four finite numbers, or `batch` is
                less than 1.
        """
        _require_batch("predict_network_pixels", batch)
        refs = _require_usable(refs)
        if not refs:
            raise InputError("no images were given")
        parts: list[tuple[npt.NDArray[Any], ...]] = []
        used: set[ImageRef] = set()
        skipped: list[str] = []
        done = 0
        for crops in iterate_crops(refs, self.card.images, batch):
            done += len(crops) + len(crops.skipped)
            skipped += [f"{item.name}: {item.reason}" for item in crops.skipped]
            if len(crops):
                located = self.locate(crops.pixels)
                parts.append(
                    (located.xy.cpu().numpy(), located.score.cpu().numpy(), crops.regions, crops.sizes)
                )
                used.update(crops.refs)
                if on_crops is not None:
                    on_crops(crops.pixels)
            if on_progress is not None:
                on_progress(done, len(refs))
        if not parts:
            raise InputError(
                f"none of the images could be read (0 of {len(refs)}); the first is {skipped[0]}"
            )
        xy, score, regions, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        rows = np.array([row for row, ref in enumerate(refs) if ref in used], dtype=np.int64)
        return NetworkPrediction(rows, xy, score, regions, sizes, tuple(skipped))

    # --- pixels of the original images --------------------------------------------------------------

    @check_argument_types
    def predict(self, refs: Sequence[ImageRef], batch: int = _BATCH) -> Iterator[Prediction]:
        """Yield landmarks batch by batch, so that memory does not grow with the length of a video.

        Images that cannot be read are left out; `Prediction.refs` lists the others.

        Args:
            refs: the images.
            batch: number of images to decode and hold in memory at a time.

        Raises:
            InputError: if a box is not four finite numbers, or `batch` is less than 1.
        """
        _require_batch("predict", batch)
        return self._iterate_predictions(_require_usable(refs), batch)

    def _iterate_predictions(self, refs: Sequence[ImageRef], batch: int) -> Iterator[Prediction]:
        for crops in iterate_crops(refs, self.card.images, batch):
            if crops.refs:
                landmarks = self._to_landmarks(self.locate(crops.pixels), crops.regions)
                yield Prediction(crops.refs, crops.sizes, landmarks)

    def __call__(self, images: str | Path | npt.NDArray[np.uint8] | Sequence[Any]) -> Landmarks:
        """Find the landmarks of one or several images.

        Args:
            images: RGB arrays [H, W, 3] uint8, or anything `selfmark discover` accepts: image files, folders,
                glob patterns, videos.

        Returns:
            The landmarks, in the order of the inputs. An array or image file gives one row each time that it
            is given; a folder, pattern, list or video gives one row for each of its images.

        Raises:
            InputError: if an image file that is given by its name cannot be read, if none of the images of
                folders, patterns, lists and videos can be read, or if arrays are mixed with files.

        Warns:
            UserWarning: if images of folders, patterns, lists and videos cannot be read and are left out, or
                if some boxes of a COCO file do not fit their images.
        """
        items: list[Any] = list(images) if isinstance(images, (list, tuple)) else [images]
        arrays = [item for item in items if isinstance(item, np.ndarray)]
        if arrays and len(arrays) == len(items):
            _require_images(arrays, self.card.images.max_megapixels)
            return self._predict_arrays(arrays)
        for item in items:
            if not isinstance(item, (str, os.PathLike)):
                raise InputError(
                    "give either only image arrays or only names of files, folders and patterns, not "
                    f"{'both' if arrays else f'an object of type {type(item).__name__}'}"
                )
        return self._predict_files(items)

    def _predict_files(self, items: Sequence[str | Path]) -> Landmarks:
        """Find the landmarks of image files, folders, patterns, lists and videos, one after the other."""
        notes: list[str] = []
        lists = [list_images([item], on_note=notes.append) for item in items] or [list_images([])]
        for note in notes:
            warnings.warn(escape_control_characters(note), stacklevel=3)
        refs = [ref for part in lists for ref in part]
        predictions = list(self.predict(refs))
        missing = Counter(refs) - Counter(ref for prediction in predictions for ref in prediction.refs)
        for item, part in zip(items, lists, strict=True):
            if part == [ImageRef(Path(item).expanduser())] and part[0] in missing:
                raise InputError(f"{item} {self._describe_problem(part[0].path)}: leave it out")
        if not predictions:
            raise InputError(f"none of the images could be read: {', '.join(map(str, items[:3]))}")
        if missing:
            count, name = missing.total(), escape_control_characters(next(iter(missing)).name)
            warnings.warn(
                f"{describe_count(count, 'image')} could not be read and {choose_form(count, 'is', 'are')} "
                f"left out; the first is {name}",
                stacklevel=3,
            )
        parts = [prediction.landmarks for prediction in predictions]
        return Landmarks(
            np.concatenate([part.xy for part in parts]),
            np.concatenate([part.score for part in parts]),
            self.names,
        )

    def _describe_problem(self, path: Path) -> str:
        """Say why an image file has no landmarks."""
        try:
            read_image(path, self.card.images.max_megapixels)
        except UnreadableImage as error:
            return f"cannot be read ({error})"
        return "cannot be used"

    def _predict_arrays(self, arrays: Sequence[npt.NDArray[np.uint8]], box: Box | None = None) -> Landmarks:
        """Find the landmarks of RGB arrays [H, W, 3], or of the same box in all of them."""
        size = self.card.images.size
        sizes = np.array([(array.shape[1], array.shape[0]) for array in arrays], dtype=np.int64)
        regions = compute_crop_regions(
            sizes, np.tile(box or [np.nan] * 4, (len(arrays), 1)), self.card.images
        )
        pixels = np.stack([extract_crop(a, region, size) for a, region in zip(arrays, regions, strict=True)])
        return self._to_landmarks(self.locate(torch.from_numpy(pixels).permute(0, 3, 1, 2)), regions)

    def _to_landmarks(self, located: NetworkLandmarks, regions: npt.NDArray[np.float64]) -> Landmarks:
        """Convert network pixels to pixels of the original images."""
        xy = to_original(located.xy.cpu().numpy(), regions[:, None], self.card.images.size)
        return Landmarks(xy.astype(np.float32), located.score.cpu().numpy().astype(np.float32), self.names)

    # --- files --------------------------------------------------------------------------------------

    def stored_tensors(self) -> dict[str, Tensor]:
        """Map names to tensors: the weights and, for features `onnx:FILE`, the ONNX model."""
        onnx_model = find_onnx_model(self.psi)
        return dict(self.psi.state_dict()) | ({} if onnx_model is None else {"onnx": onnx_model})

    @check_argument_types
    def save(self, folder: str | Path) -> None:
        """Write the weights, then model.json, so that a model.json never lacks its weights.

        For features `onnx:FILE`, the ONNX model is written first, to a file of its own.
        """
        folder = Path(folder)
        with report_write_errors(f"to {folder}"):
            make_folders(folder)
            onnx_model = find_onnx_model(self.psi)
            if onnx_model is not None:
                write_tensors({"onnx": onnx_model}, {}, folder / ONNX_FEATURES)
            write_tensors(select_stored_weights(self.psi), {}, folder / "weights.safetensors")
            write_card(self.card, folder)

    @classmethod
    @report_path_errors()
    @check_argument_types
    def load(cls, folder: str | Path, device: torch.device | str = "cpu") -> Detector:
        """Load the detector of a run.

        Args:
            folder: a run folder, its model folder, or `demo` for the detector that ships with selfmark.
            device: `auto`, `cpu`, `cuda`, ..., or a torch device.

        Returns:
            The detector, with the run's runtime settings if the model is in a run folder.
        """
        device = select_device(device)
        folder = model_folder(Path(folder))
        card = read_card(folder)
        network = _build_network(card, folder)
        path = folder / "weights.safetensors"
        try:
            psi = read_weights(network, path)
        except DamagedFile:
            raise
        except InputError as error:
            raise InputError(f"{path} does not match {folder / 'model.json'}: {error}") from error
        return cls(psi, card, device, _read_runtime(folder.parent))


def _require_batch(function: str, batch: int) -> None:
    if batch < 1:
        raise InputError(f"{function}: 'batch' must be at least 1, not {batch}")


def _require_usable(refs: Iterable[ImageRef]) -> list[ImageRef]:
    """Return a list of the images; raise if a box is not four finite numbers."""
    usable = list(refs)
    for ref in usable:
        if ref.box is not None:
            try:
                numbers = [float(number) for number in ref.box]
            except (TypeError, ValueError):
                numbers = []
            parse_box(numbers, f"the box {ref.box} of {ref.name}")
    return usable


def require_network_images(pixels: Tensor, size: int) -> None:
    """Raise a ValueError unless a tensor has the shape [B, 3, `size`, `size`] and the type uint8."""
    actual = pixels.dtype, tuple(pixels.shape[1:])
    if actual != (torch.uint8, (3, size, size)):
        shape = tuple(pixels.shape)
        raise ValueError(f"network images must be [B, 3, {size}, {size}] uint8, not {shape} {pixels.dtype}")


def _require_images(arrays: Sequence[npt.NDArray[np.generic]], max_megapixels: float) -> None:
    """Raise unless all arrays are RGB images [H, W, 3] uint8 of an allowed size.

    Arrays have the same size limit as files. A NumPy array that repeats its pixels (by broadcasting) can be
    huge and take little memory, but resizing it takes memory for every pixel.
    """
    for array in arrays:
        if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
            raise InputError(f"an image array must be [H, W, 3] uint8, not {array.shape} {array.dtype}")
        if not array.size:
            raise InputError(f"an image array needs at least one pixel; its shape is {array.shape}")
        if array.shape[0] * array.shape[1] > max_megapixels * 1e6:
            raise InputError(
                f"an image array may have at most {max_megapixels:g} megapixels; its shape is {array.shape}"
            )


def _build_network(card: ModelCard, folder: Path) -> LandmarkNetwork:
    """Build the network of a model folder, without its weights."""
    path = folder / ONNX_FEATURES
    try:
        onnx_model = read_tensors(path)[0].get("onnx") if path.exists() else None
        return build_landmark_network(card, onnx_model)
    except DamagedFile:
        raise
    except InputError as error:
        raise InputError(f"cannot load the network of {folder / 'model.json'}: {error}") from error


def _read_runtime(run: Path) -> Runtime:
    """Read the runtime settings of a run folder; return the defaults if the folder is not a run."""
    if not (run / "run.json").exists():
        return _DEFAULT_RUNTIME
    return read_config(run / "config.yaml").runtime


def detector_fingerprint(detector: Detector) -> str:
    """Hash everything that determines the landmarks: weights, preprocessing, heatmap decoding."""
    card = detector.card
    parts: list[Any] = [card.mirror, card.flip_test, card.refine]
    parts += [used_image_settings(card.images), dataclasses.asdict(card.network)]
    if unpaired := landmarks_without_partner(card):
        parts.append(unpaired)
    if card.architecture != "hourglass":
        parts += [card.architecture, dataclasses.asdict(card.features), dataclasses.asdict(card.student)]
    if card.architecture == "soft-argmax":
        parts.append(card.softmax)
    digest = hashlib.sha256(json.dumps(parts).encode())
    tensors = detector.stored_tensors()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
