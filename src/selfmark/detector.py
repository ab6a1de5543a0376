"""The thing the user keeps: a trained detector of K landmarks. Predict, save, load.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.config import Runtime
from selfmark.errors import DamagedFile, InputError, TrainingError
from selfmark.image_ref import ImageRef
from selfmark.images.crop import crop_regions, extract_crop, to_original
from selfmark.images.sources import list_images
from selfmark.images.store import ImageStore, iterate_crops
from selfmark.model.card import ModelCard as ModelCard
from selfmark.model.card import is_packaged as is_packaged
from selfmark.model.card import model_folder as model_folder
from selfmark.model.card import read_card, write_card
from selfmark.model.heatmaps import read_heatmaps, to_pixels
from selfmark.model.network import Psi, bytes_per_image, prepare_network
from selfmark.points import Landmarks
from selfmark.run.devices import images_per_pass
from selfmark.run.tensor_files import read_tensors, write_tensors


class Located(NamedTuple):
    """Landmarks of B network images: `xy` [B, K, 2] network pixels, `score` [B, K] in 0..1."""

    xy: Tensor
    score: Tensor


class Prediction(NamedTuple):
    """Landmarks of some images, in their original pixels, and which images they are."""

    refs: tuple[ImageRef, ...]
    sizes: npt.NDArray[np.int64]  # [N, 2] width, height
    landmarks: Landmarks


class Detector:
    """K heatmaps and how to read them."""

    def __init__(self, psi: Psi, card: ModelCard, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.psi = psi.eval()
        prepare_network(self.psi, self.device)
        self.card = card
        each = bytes_per_image(card.network, card.images.size) * (1 + card.flip_test)
        self._at_once = images_per_pass(Runtime().predict_batch, each, self.device)

    @property
    def names(self) -> tuple[str, ...]:
        return self.card.names

    def locate(self, pixels: Tensor) -> Located:
        """Landmarks of network images [B, 3, S, S] uint8; with flipping, averaged with the mirror image."""
        parts: list[Located] = []
        done = 0
        while not parts or done < len(pixels):
            part = pixels[done : done + self._at_once]
            located = self._if_memory_suffices(part)
            if located is None:  # others have taken memory since `_at_once` was chosen
                self._at_once = len(part) // 2
                continue
            parts.append(located)
            done += len(part)
        return Located(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _if_memory_suffices(self, pixels: Tensor) -> Located | None:
        try:
            return self._pass(pixels)
        except torch.OutOfMemoryError as error:
            if len(pixels) == 1:
                raise TrainingError(
                    f"the GPU has too little memory for one image of {self.card.images.size} px: "
                    "end what else runs on it, or use --device cpu"
                ) from error
        torch.cuda.empty_cache()
        return None

    @torch.no_grad()
    def _pass(self, pixels: Tensor) -> Located:
        images = pixels.to(self.device).float() / 255
        if self.card.flip_test:
            partner = torch.tensor(self.card.mirror, device=self.device)
            here, mirrored = self.psi(torch.cat([images, images.flip(-1)])).chunk(2)
            maps = (here + mirrored.flip(-1)[:, partner]) / 2
        else:
            maps = self.psi(images)
        peaks = read_heatmaps(maps, self.card.refine)
        return Located(to_pixels(peaks.cells), peaks.score.clamp(0, 1))

    def predict(self, refs: Sequence[ImageRef], batch: int = 64) -> Iterator[Prediction]:
        """Landmarks batch by batch, so that an hour of video needs constant memory."""
        for crops in iterate_crops(refs, self.card.images, batch):
            if crops.refs:  # none where no image of the batch could be read
                yield Prediction(crops.refs, crops.sizes, self._in_original(crops))

    def __call__(self, images: str | Path | npt.NDArray[np.uint8] | Sequence[Any]) -> Landmarks:
        """Landmarks of one image or several: paths, or RGB arrays [H, W, 3].

        Anything `selfmark discover` takes (folder, glob, video) is taken here too.
        """
        several: list[Any] = list(images) if isinstance(images, (list, tuple)) else [images]
        if several and all(isinstance(one, np.ndarray) for one in several):
            return self._of_arrays(several)
        parts = [prediction.landmarks for prediction in self.predict(list_images(several))]
        if not parts:
            raise InputError(f"none of the images could be read: {', '.join(map(str, several[:3]))}")
        return Landmarks(
            np.concatenate([part.xy for part in parts]),
            np.concatenate([part.score for part in parts]),
            self.names,
        )

    def _of_arrays(self, arrays: Sequence[npt.NDArray[np.uint8]]) -> Landmarks:
        for array in arrays:
            if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
                raise InputError(f"an image array must be [H, W, 3] uint8, not {array.shape} {array.dtype}")
        size = self.card.images.size
        sizes = np.array([(array.shape[1], array.shape[0]) for array in arrays], dtype=np.int64)
        regions = crop_regions(sizes, np.full((len(arrays), 4), np.nan), self.card.images)
        pixels = np.stack([extract_crop(a, region, size) for a, region in zip(arrays, regions, strict=True)])
        located = self.locate(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        return self._landmarks(located, regions)

    def _in_original(self, crops: ImageStore) -> Landmarks:
        return self._landmarks(self.locate(crops.pixels), crops.regions)

    def _landmarks(self, located: Located, regions: npt.NDArray[np.float64]) -> Landmarks:
        xy = to_original(located.xy.cpu().numpy(), regions[:, None], self.card.images.size)
        return Landmarks(xy.astype(np.float32), located.score.cpu().numpy().astype(np.float32), self.names)

    # --- on disk ----------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write weights.safetensors and then model.json, so that a model.json always has its weights."""
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(dict(self.psi.state_dict()), {}, folder / "weights.safetensors")
        write_card(self.card, folder)

    @classmethod
    def load(cls, folder: str | Path, device: torch.device | str = "cpu") -> Detector:
        """A detector from a run folder or its model folder, or one that comes with selfmark: `demo`."""
        folder = model_folder(Path(folder))
        card = read_card(folder)
        with torch.device("meta"):  # shapes alone: no memory is taken before the file is known to fit
            psi = Psi(card.network, len(card.names))
        path = folder / "weights.safetensors"
        try:
            tensors, _ = read_tensors(path, psi.state_dict())
        except DamagedFile:
            raise
        except InputError as error:
            raise InputError(f"{path} does not fit {folder / 'model.json'}: {error}") from error
        psi = psi.to_empty(device="cpu")
        psi.load_state_dict(tensors)
        return cls(psi, card, device)


def fingerprint(detector: Detector) -> str:
    """Changes whenever landmarks may: with the weights, the preprocessing and the way maps are read."""
    card = detector.card
    sections = dataclasses.asdict(card.images), dataclasses.asdict(card.network)
    digest = hashlib.sha256(json.dumps([card.mirror, card.flip_test, card.refine, *sections]).encode())
    for name, tensor in sorted(detector.psi.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
