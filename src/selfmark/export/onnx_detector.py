"""Run detectors on ONNX Runtime, which is faster than torch on a CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.detector import (
    Detector,
    NetworkLandmarks,
    detector_fingerprint,
    require_network_images,
)
from selfmark.errors import InputError, require_package, suggest
from selfmark.export.onnx_export import CROP_XY, CROPS, FILES, INSTALL, Precision
from selfmark.export.onnx_metadata import MODEL, remove_checksum
from selfmark.features.onnx_session import OnnxSession, check_graph, first_line, parse_model
from selfmark.model.card import model_folder
from selfmark.run.devices import select_device
from selfmark.run.guarded_files import physical_memory, read_bytes

Floats = npt.NDArray[np.float32]
RuntimeName = Literal["torch", "onnx", "onnx-int8"]

_REMEDY = "the file was changed after the export; write it again with 'selfmark export'"
_MAX_DISTANCE = 1.0  # how far a landmark may lie outside the network image, in sides of this image
_SCORE_TOLERANCE = 1e-3  # how far rounding may move a score out of the range 0..1


def load_detector(folder: str | Path, runtime: str = "torch", device: str = "auto") -> Detector:
    """Load the detector of a run for the runtime `torch`, `onnx` or `onnx-int8`; the last two use the CPU."""
    if runtime not in get_args(RuntimeName):
        names = get_args(RuntimeName)
        hint = suggest(runtime, names)
        raise InputError(f"unknown runtime '{runtime}'; choose one of {', '.join(names)}.{hint}")
    if runtime == "torch":
        return Detector.load(folder, select_device(device))
    if device not in ("auto", "cpu"):
        raise InputError(
            f"the runtime {runtime} works on the CPU only: leave out --device, or use --runtime torch"
        )
    return OnnxDetector.load_exported(Path(folder), "int8" if runtime == "onnx-int8" else "float32")


class OnnxDetector(Detector):
    """A detector that runs an exported ONNX graph with ONNX Runtime."""

    def __init__(self, detector: Detector, path: Path) -> None:
        """Use the graph in the file `path`. The graph must have been exported from `detector`."""
        super().__init__(detector.psi, detector.card, runtime=detector.runtime)
        self._path = path
        model = _load_model(path)
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        if metadata.get(MODEL) != detector_fingerprint(self):
            raise InputError(
                f"{path} was exported from another model: write the file again with 'selfmark export'"
            )
        # One core processes an image from start to end. The maps of the image stay in the cache of that core,
        # and no core waits for another. Splitting every operation between the cores is much slower.
        self._session = _open_session(model, path, threads=1)
        self._workers = ThreadPoolExecutor(torch.get_num_threads())

    @classmethod
    def load_exported(cls, folder: Path, precision: Precision) -> OnnxDetector:
        """Load the graph that `selfmark export` wrote to a run or model folder."""
        detector = Detector.load(folder)
        path = model_folder(folder) / FILES[precision]
        if not path.exists():
            options = "--onnx" if precision == "float32" else "--onnx --int8"
            raise InputError(f"{path} does not exist: write it with 'selfmark export {folder} {options}'")
        return cls(detector, path)

    def locate(self, pixels: Tensor) -> NetworkLandmarks:
        """Return the landmarks of network images [B, 3, S, S] uint8, in pixels of these images."""
        size, num_landmarks = self.card.images.size, len(self.names)
        require_network_images(pixels, size)
        images = pixels.cpu().float().numpy()
        xy = np.empty((len(images), num_landmarks, 2), np.float32)
        score = np.empty((len(images), num_landmarks), np.float32)

        def locate_row(row: int) -> None:
            xy[row], score[row] = self._locate_one(images[row : row + 1])

        list(self._workers.map(locate_row, range(len(images))))
        return NetworkLandmarks(torch.from_numpy(xy), torch.from_numpy(score))

    def _locate_one(self, crop: npt.NDArray[np.float32]) -> tuple[Floats, Floats]:
        """Return landmarks [K, 2] and scores [K] of one network image [1, 3, S, S].

        Raises:
            InputError: if the graph fails, or if its results cannot come from a detector.
        """
        try:
            xy, score = self._session.run({CROPS: crop}, [CROP_XY, "scores"])
        except ValueError as error:
            raise InputError(f"ONNX Runtime cannot run {self._path} ({error}): {_REMEDY}") from error
        size, num_landmarks = crop.shape[-1], len(self.names)
        if xy.shape != (1, num_landmarks, 2) or score.shape != (1, num_landmarks):
            raise self._wrong_result(
                f"shapes {list(xy.shape)} and {list(score.shape)} for {num_landmarks} landmarks"
            )
        if xy.dtype != np.float32 or score.dtype != np.float32:
            raise self._wrong_result(f"values of type {xy.dtype} and {score.dtype}")
        limit = _MAX_DISTANCE * size
        if not (-limit <= xy.min() and xy.max() <= size + limit):  # the condition is also True for NaN
            raise self._wrong_result(
                f"landmarks far outside the image, at {xy.min():.4g} to {xy.max():.4g} pixels"
            )
        if not (score.min() >= -_SCORE_TOLERANCE and score.max() <= 1 + _SCORE_TOLERANCE):
            raise self._wrong_result(f"scores from {score.min():.4g} to {score.max():.4g} instead of 0 to 1")
        return xy[0], score[0]

    def _wrong_result(self, description: str) -> InputError:
        return InputError(f"{self._path} returns {description}: {_REMEDY}")


def _load_model(path: Path) -> Any:
    try:
        content = read_bytes(path, physical_memory())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        return parse_model(remove_checksum(content, path))
    except ValueError as error:
        raise InputError(f"{path} is not an ONNX file: {error}") from error


def _open_session(model: Any, path: Path, threads: int) -> OnnxSession:
    """Open a session for the part of an exported graph that finds landmarks in crops.

    Cropping is left out because other threads do it: they decode and crop the next images while the network
    runs.
    """
    extractor = require_package("onnx.utils", INSTALL).Extractor
    check_graph(model, str(path), _REMEDY)
    try:
        part = extractor(model).extract_model([CROPS], [CROP_XY, "scores"]).SerializeToString()
    except Exception as error:  # the errors of onnx have no common base class
        raise InputError(f"{path} cannot be used ({first_line(error)}): {_REMEDY}") from error
    try:
        return OnnxSession(bytes(part), threads)
    except ValueError as error:
        raise InputError(f"ONNX Runtime cannot read {path}: {error}") from error
