"""Detectors that run on ONNX Runtime, which is faster than torch on a CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.detector import Detector, NetworkLandmarks, detector_fingerprint
from selfmark.errors import DamagedFile, InputError, require_package, suggest
from selfmark.export.onnx_export import CROP_XY, CROPS, FILES, INSTALL, Precision
from selfmark.export.onnx_metadata import MODEL, remove_checksum
from selfmark.model.card import model_folder
from selfmark.run.devices import select_device
from selfmark.run.guarded_files import physical_memory, read_bytes

RuntimeName = Literal["torch", "onnx", "onnx-int8"]


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
        """Use the graph in `path`, which must have been made from `detector`."""
        super().__init__(detector.psi, detector.card, runtime=detector.runtime)
        model = _load_model(path)
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        if metadata.get(MODEL) != detector_fingerprint(self):
            raise InputError(f"{path} was exported from another model: write it again with 'selfmark export'")
        # One core processes an image from start to end. The maps of the image stay in the cache of that core,
        # and no core waits for another. Splitting every operation between the cores is much slower.
        self._session = _open_session(_remove_cropping(model), path, threads=1)
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
        if pixels.dtype != torch.uint8 or pixels.shape[1:] != (3, size, size):
            shape, dtype = tuple(pixels.shape), pixels.dtype
            raise ValueError(f"network images must be [B, 3, {size}, {size}] uint8, not {shape} {dtype}")
        images = pixels.cpu().float().numpy()
        xy = np.empty((len(images), num_landmarks, 2), np.float32)
        score = np.empty((len(images), num_landmarks), np.float32)

        def locate_row(row: int) -> None:
            xy[row : row + 1], score[row : row + 1] = self._run(images[row : row + 1])

        list(self._workers.map(locate_row, range(len(images))))
        return NetworkLandmarks(torch.from_numpy(xy), torch.from_numpy(score))

    def _run(self, crops: npt.NDArray[np.float32]) -> Any:
        return self._session.run([CROP_XY, "scores"], {CROPS: crops})


def _load_model(path: Path) -> Any:
    onnx = require_package("onnx", INSTALL)
    try:
        content = read_bytes(path, physical_memory())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        return onnx.load_from_string(remove_checksum(content, path))
    except DamagedFile:
        raise
    except Exception as error:  # the errors of onnx have no common base class
        raise InputError(f"{path} is not an ONNX file: {str(error).splitlines()[0]}") from error


def _remove_cropping(model: Any) -> bytes:
    """Return the part of an exported graph from the crops to the landmarks in the crops, serialized.

    Cropping is left out because other threads do it: they decode and crop the next images while the network
    runs.
    """
    extract = require_package("onnx.utils", INSTALL).Extractor(model).extract_model
    return bytes(extract([CROPS], [CROP_XY, "scores"]).SerializeToString())


def _open_session(model: bytes, path: Path, threads: int) -> Any:
    runtime = require_package("onnxruntime", INSTALL)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors only; they are also raised
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of ONNX Runtime have no common base class
        raise InputError(f"ONNX Runtime cannot read {path}: {str(error).splitlines()[0]}") from error
