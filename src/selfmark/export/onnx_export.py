"""Write a detector as an ONNX file that takes images of any size and returns landmarks in their pixels.

    images [B, H, W, 3] uint8 RGB     ->  points [B, K, 2] float32, original pixels, centers at integers
    boxes  [B, 4] float32 x, y, w, h      scores [B, K] float32, 0..1

The graph includes cropping, resizing, test-time flipping and subpixel positions from the heatmaps.
A box of zeros means the whole image. One box can serve all images, and one image can have several boxes. The
file contains the fingerprint of its model, so that selfmark can reject a file of another model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from selfmark._version import __version__
from selfmark.detector import Detector
from selfmark.errors import InputError, report_write_errors, require_package
from selfmark.export.onnx_crop import add_crops, add_to_original
from selfmark.export.onnx_encoder import add_feature_heatmaps, require_exportable
from selfmark.export.onnx_graph import Maps, Recorder, add_maps, add_mirrored_maps, add_positions
from selfmark.export.onnx_int8 import (
    Int8Recorder,
    find_block_convs,
    find_head_convs,
    fold_scales,
    observe_ranges,
)
from selfmark.export.onnx_metadata import append_checksum, build_metadata
from selfmark.export.onnx_nodes import IR_VERSION, OPSET, Graph, Value
from selfmark.export.onnx_turned import add_turned_heatmaps
from selfmark.images.run_images import load_run_images
from selfmark.model.card import ModelCard, is_packaged, model_folder
from selfmark.model.feature_network import ZeroShotPsi
from selfmark.model.landmark_network import LandmarkNetwork, select_stored_weights
from selfmark.model.network import Psi
from selfmark.model.soft_argmax import EmbeddingPsi, SoftArgmaxPsi
from selfmark.model.turned_network import TurnedPsi
from selfmark.run.files import write_bytes
from selfmark.run.folder import Run
from selfmark.run.output_folder import output_folder, require_own_output
from selfmark.run.tensor_files import read_tensors
from selfmark.sampling import evenly_spaced

Precision = Literal["float32", "float16", "int8"]
FILES: dict[Precision, str] = {
    "float32": "model.onnx",
    "float16": "model-fp16.onnx",
    "int8": "model-int8.onnx",
}
INSTALL = "onnx onnxruntime"  # names of the packages for pip
# Names of two values inside the graph. `OnnxDetector` runs only the part of the graph between them.
CROPS = "crops"  # input of the network, [B, 3, S, S] float32 with integer values 0..255
CROP_XY = "xy"  # landmarks in pixels of the crops, [B, K, 2]

_NUM_SAMPLES = 64  # training images on which value ranges are measured for int8


def export_onnx(run: Path, precisions: Sequence[Precision], output: Path | None) -> list[Path]:
    """Write the detector of a run as ONNX, one file for each precision, and return the files.

    Args:
        run: Run folder; without "int8" a model folder is enough.
        precisions: Precisions to write. "int8" reads training images of the run, which must still exist.
        output: Folder for the weights and the ONNX files; None means the model folder of the run.

    Raises:
        InputError: If a package, the run or its training images are missing, or the network cannot be
            exported.
    """
    require_package("onnx", INSTALL)
    if output is None and is_packaged(run):
        raise InputError(f"the detector '{run}' is part of selfmark: choose an output folder with --output")
    if output is not None:
        require_own_output(output, run)
    detector = Detector.load(run)
    _check_exportable(detector, precisions)
    if output is not None:
        _require_same_model(detector, output)
    sample = _load_sample(run, detector.card) if "int8" in precisions else torch.empty(0)
    folder = output if output is not None else model_folder(run)
    write: dict[Precision, Callable[[Path], Path]] = {
        "float32": partial(write_float32, detector),
        "float16": partial(write_float16, detector),
        "int8": partial(write_int8, detector, sample),
    }
    with report_write_errors(f"to {folder}"), ExitStack() as claim:
        if output is not None:
            claim.enter_context(output_folder(output))
            _require_same_model(detector, output)  # Another process may have exported in the meantime.
            detector.save(output)
        return [write[precision](folder / FILES[precision]) for precision in precisions]


def write_float32(detector: Detector, path: Path) -> Path:
    """Write the detector in single precision."""
    return _write(detector, detector.psi, Recorder(Graph()), path)


def write_float16(detector: Detector, path: Path) -> Path:
    """Write the network in half precision; cropping and reading the heatmaps stay in float32."""
    return _write(detector, detector.psi, Recorder(Graph(), np.float16), path)


def write_int8(detector: Detector, sample: torch.Tensor, path: Path) -> Path:
    """Write the detector with 8-bit convolutions.

    Args:
        detector: Detector to write.
        sample: [N, 3, S, S] uint8 images on which the value ranges are measured.
        path: File to write.
    """
    _check_exportable(detector, ["int8"])
    card, network = detector.card, detector.psi
    if isinstance(network, Psi):
        psi = _copy_network(network, card)  # `fold_scales` changes the weights
        fold_scales(psi)
        ranges = observe_ranges(psi, find_block_convs(psi), sample, card.flip_test)
        return _write(detector, psi, Int8Recorder(Graph(), ranges), path)
    ranges = observe_ranges(network, find_head_convs(network), sample.to(detector.device), card.flip_test)
    return _write(detector, network, Int8Recorder(Graph(), ranges), path)


def _copy_network(network: Psi, card: ModelCard) -> Psi:
    """Return a copy of an hourglass network on the CPU, with the default backend."""
    num_landmarks = len(card.names)
    copy: Psi = Psi(card.network, num_landmarks)
    if isinstance(network, EmbeddingPsi):
        copy = EmbeddingPsi(card.network, num_landmarks)
    elif isinstance(network, SoftArgmaxPsi):
        copy = SoftArgmaxPsi(card.network, num_landmarks, network.softmax)
    copy.load_state_dict(network.state_dict())
    return copy


def _check_exportable(detector: Detector, precisions: Sequence[Precision]) -> None:
    """Raise an InputError if the network cannot be written in one of the precisions."""
    if isinstance(detector.psi, ZeroShotPsi) and detector.psi.rotations > 1:
        raise InputError(
            "zero-shot detectors with features.orientation=any cannot be exported to ONNX: train one with "
            "--method self-training"
        )
    if isinstance(detector.psi, Psi):
        return
    require_exportable(detector.psi.encoder)
    if "int8" in precisions and not find_head_convs(detector.psi):
        raise InputError("this detector has no head whose layers could run in 8 bits: leave out --int8")


def _require_same_model(detector: Detector, folder: Path) -> None:
    """Raise if an export to a folder would replace the files of another model.

    Weights are compared rather than descriptions, because renaming landmarks does not make another model.
    Weights without a description may come from an export that was killed.
    """
    weights = folder / "weights.safetensors"
    exported_files = (weights, folder / "model.json", *(folder / name for name in FILES.values()))
    existing_files = [path for path in exported_files if os.path.lexists(path)]
    if existing_files and not _has_weights(weights, detector):
        raise InputError(
            f"{existing_files[0]} belongs to another model than the one to export: choose another folder "
            "with -o, or remove it"
        )


def _has_weights(path: Path, detector: Detector) -> bool:
    """Return True if a file has the weights of a detector."""
    weights = select_stored_weights(detector.psi)
    try:
        stored, _ = read_tensors(path, weights)
    except InputError:
        return False
    return all(torch.equal(stored[name], tensor.cpu()) for name, tensor in weights.items())


def _load_sample(run: Path, card: ModelCard) -> torch.Tensor:
    """Return evenly spaced training images of the run, [N, 3, S, S]."""
    if not (run / "run.json").exists():
        raise InputError(f"{run} is not a run folder: --int8 needs the training images of a run")
    opened_run = Run.open(run)
    refs = opened_run.refs()
    chosen = evenly_spaced(len(refs), _NUM_SAMPLES, nearest=True)
    try:
        return load_run_images(opened_run, [refs[row] for row in chosen], card.images).pixels
    except InputError as error:
        raise InputError(f"--int8 needs the training images of the run, but {error}") from error


def _add_network(recorder: Recorder, psi: LandmarkNetwork, size: int, images: Value) -> Maps:
    """Add any kind of network and return its K heatmaps for images [B, 3, size, size], floats 0..255."""
    if isinstance(psi, Psi):
        return add_maps(recorder, psi, images, size)
    if isinstance(psi, TurnedPsi):
        return add_turned_heatmaps(recorder, psi, images, size)
    return add_feature_heatmaps(recorder, psi, images, size)


def _write(detector: Detector, psi: LandmarkNetwork, recorder: Recorder, path: Path) -> Path:
    """Build the whole graph, from images to landmarks, and write it with its metadata.

    Args:
        detector: Detector to write.
        psi: Network of the detector, possibly with folded scales.
        recorder: Adds the network's nodes, in the desired precision.
        path: File to write.
    """
    import onnx
    from onnx import TensorProto, helper

    card, graph = detector.card, recorder.graph
    size, num_landmarks = card.images.size, len(card.names)
    cropped, regions = add_crops(graph, "images", "boxes", card.images)
    crops = graph.add_alias(cropped, CROPS)
    add_network = partial(_add_network, recorder, psi, size)
    maps = add_mirrored_maps(graph, add_network, crops, card) if card.flip_test else add_network(crops)
    xy, score = (Value(graph, name) for name in add_positions(graph, maps, card.refine))
    graph.add_alias(add_to_original(graph.add_alias(xy, CROP_XY), regions, size), "points")
    graph.add_alias(score, "scores")
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "selfmark",
            [
                helper.make_tensor_value_info("images", TensorProto.UINT8, ["images", "height", "width", 3]),
                helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["boxes", 4]),
            ],
            [
                helper.make_tensor_value_info("points", TensorProto.FLOAT, ["batch", num_landmarks, 2]),
                helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", num_landmarks]),
            ],
            graph.constants,
            value_info=[
                helper.make_tensor_value_info(CROPS, TensorProto.FLOAT, ["batch", 3, size, size]),
                helper.make_tensor_value_info(CROP_XY, TensorProto.FLOAT, ["batch", num_landmarks, 2]),
            ],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="selfmark",
        producer_version=__version__,
    )
    helper.set_model_props(model, build_metadata(detector))
    onnx.checker.check_model(model, full_check=True)
    write_bytes(append_checksum(model.SerializeToString()), path)
    return path
