"""The detector as an ONNX file: images of any size in, landmarks in their pixels out, as `Detector` does it.

    images [B, H, W, 3] uint8 RGB     ->  points [B, K, 2] float32, original pixels, centers at integers
    boxes  [B, 4] float32 x, y, w, h      scores [B, K] float32, 0..1

Cropping and resizing, mirroring at test time and reading the maps below one cell are part of the graph. A box
of zeros stands for the whole image. One box may serve all images, and one image may have several boxes.
Which model a file was made from is written into it, so that one left over from an earlier training is not
taken for the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from selfmark._version import __version__
from selfmark.detector import Detector
from selfmark.errors import InputError, require_package
from selfmark.export.onnx_crop import add_crops, add_to_original
from selfmark.export.onnx_graph import Recorder, add_maps, add_mirrored_maps, add_places
from selfmark.export.onnx_int8 import Int8Recorder, fold_scales, observe
from selfmark.export.onnx_metadata import build_metadata
from selfmark.export.onnx_nodes import IR_VERSION, OPSET, Graph, Value
from selfmark.images.store import load_store
from selfmark.model.card import ModelCard, is_packaged, model_folder
from selfmark.model.network import Psi
from selfmark.run.files import atomic_write
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced

Precision = Literal["float32", "float16", "int8"]
FILES: dict[Precision, str] = {
    "float32": "model.onnx",
    "float16": "model-fp16.onnx",
    "int8": "model-int8.onnx",
}
INSTALL = "onnx onnxruntime"  # what pip calls the packages
CROPS = "crops"  # within the graph: what the network sees, [B, 3, S, S] float32, whole numbers 0..255
PLACES = "xy"  # within the graph: landmarks in pixels of the crops, [B, K, 2]

_SAMPLE = 64  # training images on which the reach of values is observed for int8


def export_onnx(run: Path, precisions: Sequence[Precision], output: Path | None) -> list[Path]:
    """Write a run's detector as ONNX, one file for each precision; return the files.

    Args:
        run: run folder; without "int8" its model folder will do.
        precisions: "int8" observes value ranges on the run's own training images, which must still be there.
        output: becomes a model folder with the files beside the weights; None is the run's model folder.
    """
    require_package("onnx", INSTALL)
    if output is None and is_packaged(run):
        raise InputError(f"the detector '{run}' belongs to selfmark: say where to write with --output")
    detector = Detector.load(run)
    sample = _sample(run, detector.card) if "int8" in precisions else torch.empty(0)
    folder = output if output is not None else model_folder(run)
    write: dict[Precision, Callable[[Path], Path]] = {
        "float32": partial(write_float32, detector),
        "float16": partial(write_float16, detector),
        "int8": partial(write_int8, detector, sample),
    }
    try:
        if output is not None:
            detector.save(output)
        return [write[precision](folder / FILES[precision]) for precision in precisions]
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error


def write_float32(detector: Detector, path: Path) -> Path:
    return _write(detector, detector.psi, Recorder(Graph()), path)


def write_float16(detector: Detector, path: Path) -> Path:
    """The network in half precision, its weights with it; crops, and reading the maps, stay in float32."""
    return _write(detector, detector.psi, Recorder(Graph(), np.float16), path)


def write_int8(detector: Detector, sample: torch.Tensor, path: Path) -> Path:
    """Convolutions in 8 bits, for values as far as they reach in `sample` ([N, 3, S, S] uint8)."""
    card = detector.card
    psi = Psi(card.network, len(card.names))  # a copy to change, on the CPU
    psi.load_state_dict(detector.psi.state_dict())
    fold_scales(psi)
    reaches = observe(psi, sample, card.flip_test)
    return _write(detector, psi, Int8Recorder(Graph(), reaches), path)


def _sample(run: Path, card: ModelCard) -> torch.Tensor:
    """Some of the run's training images [N, 3, S, S], evenly spaced."""
    if not (run / "run.json").exists():
        raise InputError(f"{run} is not a run folder: --int8 needs the images a run was trained on")
    refs = Run.open(run).refs()
    chosen = evenly_spaced(len(refs), _SAMPLE, nearest=True)
    try:
        return load_store([refs[row] for row in chosen], card.images, np.inf, None).pixels
    except InputError as error:
        raise InputError(f"--int8 needs the images the run was trained on, but {error}") from error


def _write(detector: Detector, psi: Psi, recorder: Recorder, path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper

    card, graph = detector.card, recorder.graph
    size, landmarks = card.images.size, len(card.names)
    squares, regions = add_crops(graph, "images", "boxes", card.images)
    crops = graph.call(squares, CROPS)
    if card.flip_test:
        maps = add_mirrored_maps(recorder, psi, crops, size, card.mirror)
    else:
        maps = add_maps(recorder, psi, crops, size)
    xy, score = (Value(graph, name) for name in add_places(graph, maps, card.refine))
    graph.call(add_to_original(graph.call(xy, PLACES), regions, size), "points")
    graph.call(score, "scores")
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "selfmark",
            [
                helper.make_tensor_value_info("images", TensorProto.UINT8, ["images", "height", "width", 3]),
                helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["boxes", 4]),
            ],
            [
                helper.make_tensor_value_info("points", TensorProto.FLOAT, ["batch", landmarks, 2]),
                helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", landmarks]),
            ],
            graph.constants,
            value_info=[
                helper.make_tensor_value_info(CROPS, TensorProto.FLOAT, ["batch", 3, size, size]),
                helper.make_tensor_value_info(PLACES, TensorProto.FLOAT, ["batch", landmarks, 2]),
            ],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="selfmark",
        producer_version=__version__,
    )
    helper.set_model_props(model, build_metadata(detector))
    onnx.checker.check_model(model, full_check=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
    return path
