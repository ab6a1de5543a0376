"""What a detector's network runs on: torch, or on a CPU the faster ONNX Runtime."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.detector import Detector, Located, detector_fingerprint
from selfmark.errors import InputError, require_package
from selfmark.export.onnx_export import CROPS, FILES, INSTALL, PLACES, Precision
from selfmark.export.onnx_metadata import MODEL
from selfmark.model.card import model_folder
from selfmark.run.devices import select_device

RuntimeName = Literal["torch", "onnx", "onnx-int8"]


def load_detector(folder: str | Path, runtime: str = "torch", device: str = "auto") -> Detector:
    """A run's detector, to be run by `torch`, `onnx` or `onnx-int8`; the latter two on the CPU."""
    if runtime not in get_args(RuntimeName):
        raise InputError(f"there is no runtime '{runtime}'; choose one of {', '.join(get_args(RuntimeName))}")
    if runtime == "torch":
        return Detector.load(folder, select_device(device))
    if device not in ("auto", "cpu"):
        raise InputError(f"runtime {runtime} works on the CPU: leave --device out, or use --runtime torch")
    return OnnxDetector.load_exported(Path(folder), "int8" if runtime == "onnx-int8" else "float32")


class OnnxDetector(Detector):
    """A detector whose landmarks are found by ONNX Runtime, in a graph that `export.onnx` wrote."""

    def __init__(self, detector: Detector, path: Path) -> None:
        """As `detector`, but with the graph in `path`, which must have been made from it."""
        super().__init__(detector.psi, detector.card, runtime=detector.runtime)
        model = _read(path)
        if {one.key: one.value for one in model.metadata_props}.get(MODEL) != detector_fingerprint(self):
            raise InputError(
                f"{path} was not made from the model beside it: make it anew with 'selfmark export'"
            )
        # Each image is the work of one core from beginning to end: its maps stay in that core's cache, and no
        # core waits for another. Sharing every operation between the cores is far slower.
        self._session = _session(_without_cropping(model), path, threads=1)
        self._workers = ThreadPoolExecutor(torch.get_num_threads())

    @classmethod
    def load_exported(cls, folder: Path, precision: Precision) -> OnnxDetector:
        """The detector of a run folder, or of its model folder, from which `selfmark export` made a graph."""
        detector = Detector.load(folder)
        path = model_folder(folder) / FILES[precision]
        if not path.exists():
            options = "--onnx" if precision == "float32" else "--onnx --int8"
            raise InputError(f"{path} is not there: make it with 'selfmark export {folder} {options}'")
        return cls(detector, path)

    def locate(self, pixels: Tensor) -> Located:
        size, landmarks = self.card.images.size, len(self.names)
        if pixels.dtype != torch.uint8 or pixels.shape[1:] != (3, size, size):
            shape, dtype = tuple(pixels.shape), pixels.dtype
            raise ValueError(f"network images must be [B, 3, {size}, {size}] uint8, not {shape} {dtype}")
        images = pixels.cpu().float().numpy()
        xy = np.empty((len(images), landmarks, 2), np.float32)
        score = np.empty((len(images), landmarks), np.float32)

        def find(row: int) -> None:
            xy[row : row + 1], score[row : row + 1] = self._run(images[row : row + 1])

        list(self._workers.map(find, range(len(images))))
        return Located(torch.from_numpy(xy), torch.from_numpy(score))

    def _run(self, crops: npt.NDArray[np.float32]) -> Any:
        return self._session.run([PLACES, "scores"], {CROPS: crops})


def _read(path: Path) -> Any:
    onnx = require_package("onnx", INSTALL)
    try:
        return onnx.load(path)
    except Exception as error:  # its errors have no common class of their own
        raise InputError(f"{path} is not an ONNX file: {str(error).splitlines()[0]}") from error


def _without_cropping(model: Any) -> bytes:
    """The part of an exported graph between crops and places.

    Crops are made elsewhere already, by threads that decode the next images while the network works.
    """
    extract = require_package("onnx.utils", INSTALL).Extractor(model).extract_model
    return bytes(extract([CROPS], [PLACES, "scores"]).SerializeToString())


def _session(model: bytes, path: Path, threads: int) -> Any:
    runtime = require_package("onnxruntime", INSTALL)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors; they are raised besides
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class of their own
        raise InputError(f"ONNX Runtime cannot read {path}: {str(error).splitlines()[0]}") from error
