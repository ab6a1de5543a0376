"""The detector as an ONNX file: network images in, landmarks out, as `Detector.locate` does it.

    images [B, 3, S, S] uint8  ->  xy [B, K, 2] float32, network pixels; score [B, K] float32, 0..1

Mirroring at test time and reading the maps below one cell are part of the graph. Which model a file was made
from is written into it, so that one left over from an earlier training is not taken for the present one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from selfmark._version import __version__
from selfmark.detector import Detector, ModelCard, fingerprint, is_packaged, model_folder
from selfmark.errors import InputError
from selfmark.export.media import need
from selfmark.export.onnx_graph import OPSET, Graph, Recorder, add_maps, add_mirrored_maps, add_places
from selfmark.export.onnx_int8 import Int8Recorder, fold_scales, observe
from selfmark.images.store import load_store
from selfmark.model.network import Psi
from selfmark.run import Run

Precision = Literal["float32", "int8"]
FILES: dict[Precision, str] = {"float32": "model.onnx", "int8": "model-int8.onnx"}
INSTALL = "onnx onnxruntime"  # what pip calls the packages
MODEL = "selfmark.model"  # the entry of the file's metadata that says which model it was made from

_SAMPLE = 64  # training images on which the reach of values is observed for int8
_IR_VERSION = 8  # the oldest file format that knows OPSET, so that older runtimes read it


def export_onnx(run: Path, int8: bool, output: Path | None) -> list[Path]:
    """Write a run's detector as ONNX, and with `int8` once more in 8 bits; return the files.

    Args:
        run: run folder; without `int8` its model folder will do.
        int8: observes value ranges on the run's own training images, which must still be there.
        output: becomes a model folder with the files beside the weights; None is the run's model folder.
    """
    need("onnx", INSTALL)
    if output is None and is_packaged(run):
        raise InputError(f"the detector '{run}' belongs to selfmark: say where to write with --output")
    detector = Detector.load(run)
    sample = _sample(run, detector.card) if int8 else None
    folder = output if output is not None else model_folder(run)
    try:
        if output is not None:
            detector.save(output)
        written = [write_float32(detector, folder / FILES["float32"])]
        if sample is not None:
            written.append(write_int8(detector, sample, folder / FILES["int8"]))
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    return written


def write_float32(detector: Detector, path: Path) -> Path:
    return _write(detector, detector.psi, Recorder(Graph()), path)


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
    chosen = np.unique(np.linspace(0, len(refs) - 1, min(_SAMPLE, len(refs))).round().astype(int))
    try:
        return load_store([refs[row] for row in chosen], card.images, np.inf, None).pixels
    except InputError as error:
        raise InputError(f"--int8 needs the images the run was trained on, but {error}") from error


def _write(detector: Detector, psi: Psi, recorder: Recorder, path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper

    card, graph = detector.card, recorder.graph
    size, landmarks = card.images.size, len(card.names)
    if card.flip_test:
        maps = add_mirrored_maps(recorder, psi, "images", size, card.mirror)
    else:
        maps = add_maps(recorder, psi, "images", size)
    found = add_places(graph, maps, card.refine)
    for inside, outside in zip(found, ("xy", "score"), strict=True):
        graph.nodes.append(helper.make_node("Identity", [inside], [outside]))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "selfmark",
            [helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", 3, size, size])],
            [
                helper.make_tensor_value_info("xy", TensorProto.FLOAT, ["batch", landmarks, 2]),
                helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", landmarks]),
            ],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="selfmark",
        producer_version=__version__,
    )
    helper.set_model_props(model, {MODEL: fingerprint(detector)})
    onnx.checker.check_model(model, full_check=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(model.SerializeToString())
    os.replace(temporary, path)
    return path
