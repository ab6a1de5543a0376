"""Compare the hand-written ONNX graph with torch's ONNX exporter and ONNX Runtime's quantizer.

    python benchmarks/onnx_exporter.py --out docs/results/onnx_exporter.json

The script needs onnxscript and the extra `onnx`. It exports two detectors, each in every variant below.
`demo` ships with selfmark. `full` has the network of preset `paper` (256 channels, 256 px) with random
weights. The input of all graphs is network images, which are already cropped and resized. The output is
landmarks: the graphs contain the network, the averaging with the mirror image, and the reading of heatmaps.

float32: hand                selfmark.export.onnx_export
         exporter            torch.onnx.export(dynamo=True) with its default, opset 18
         exporter_opset21    the same with opset 21, which has GroupNormalization
         exporter_rewritten  opset 18; GroupNorm is rewritten in torch so that it becomes the same nodes as
                             in selfmark's graph (`RewrittenNorms`)
int8:    hand                selfmark.export.onnx_export
         quantizer_all       quantize_static of exporter_opset21, default operators (fails with opset 18)
         quantizer_conv      quantize_static of exporter, all convolutions
         quantizer_blocks    quantize_static of exporter, the convolutions that selfmark has in 8 bits
         quantizer_hand      quantize_static of selfmark's float32 graph, convolutions as in quantizer_blocks

All int8 graphs are calibrated on the same images. The quantizer uses QDQ nodes and per-channel weights.

Time is CPU time with one thread, because `selfmark predict` also runs each ONNX graph with one thread and
processes different images on different cores. In every round, all variants take a turn, in random order. A
turn opens the graph, calls it once to warm up, and then times some calls. Rows give the median and the
fastest of all calls. They also compare each variant with the hand-written graph of the same precision in two
ways: by the ratio of their times in each round, of which the row gives the median (`_slower`), and by the
ratio of their fastest calls (`_fastest_slower`). The two differ if other programs disturb the measurement.

Accuracy is the distance to the landmarks of `Detector` (torch, float32) in network pixels, on images that
were not used for calibration. The weights of `full` are random, so its heatmaps have many peaks of almost
the same height. For `full`, compare only how many landmarks moved far (`_far`).

Rows `crop` compare `F.interpolate`, which torch could export, with selfmark's `images.crop.extract_crop` on
whole square images. The modes are area averaging and antialiasing.
"""

from __future__ import annotations

import argparse
import copy
import logging
import random
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import onnxscript
import torch
from cpu_rows import SEED, Rows, write_rows
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from predict_cpu import make_random_detector
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import preset
from selfmark.demo.demo_run import TEST_SEED, TRAIN_SEED
from selfmark.demo.scene import generate_scene
from selfmark.detector import Detector
from selfmark.export.onnx_export import CROP_XY, CROPS, write_float32, write_int8
from selfmark.images.crop import extract_crop
from selfmark.model.heatmaps import read_heatmaps, to_pixels
from selfmark.model.network import ResidualBlock
from selfmark.model.plain_backend import PLAIN_BACKEND, PlainNetworkOps

QUANTIZED = {  # variant: the float32 graph that it is made from
    "int8_quantizer_all": "float32_exporter_opset21",
    "int8_quantizer_conv": "float32_exporter",
    "int8_quantizer_blocks": "float32_exporter",
    "int8_quantizer_hand": "float32_hand",
}
VARIANTS = (
    "float32_hand",
    "float32_exporter",
    "float32_exporter_opset21",
    "float32_exporter_rewritten",
    "int8_hand",
    *QUANTIZED,
)
# For each network and batch size: number of rounds, and timed calls of each variant per round.
TIMING_PLAN = {
    "demo": {1: (40, 10), 8: (30, 4)},
    "full": {1: (8, 3), 8: (6, 1)},
}
CALIBRATION_IMAGES = {"demo": 64, "full": 8}
TEST_IMAGES = {"demo": 200, "full": 16}
CROP_SIDES = (131, 200, 347)  # pixels, none a multiple of the network's size
CROP_IMAGES = 20  # for each side
FAR = 4.0  # network pixels, one heatmap cell; a landmark that moved more counts as far

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def main() -> None:
    """Compare all variants of the detectors and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", choices=TIMING_PLAN, default=list(TIMING_PLAN))
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows: Rows = {}
    for name in arguments.networks:
        detector = (
            Detector.load("demo") if name == "demo" else make_random_detector(preset("paper"), mirrored=True)
        )
        rows |= compare(name, detector)
        if name == "demo":
            rows |= compare_crops(detector)
    rounded = {name: (float(f"{value:.4g}"), unit) for name, (value, unit) in rows.items()}
    versions = {
        "onnx": onnx.__version__,
        "onnxscript": onnxscript.__version__,
        "onnxruntime": onnxruntime.__version__,
    }
    write_rows(rounded, arguments.out, "onnx_exporter.py", "1 core", versions)


def compare(name: str, detector: Detector) -> Rows:
    """Export a detector with every variant and measure export time, file size, accuracy and speed."""
    size = detector.card.images.size
    calibration = generate_network_images(CALIBRATION_IMAGES[name], size, TRAIN_SEED)
    test = generate_network_images(TEST_IMAGES[name], size, TEST_SEED)
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {variant: Path(folder) / f"{variant}.onnx" for variant in VARIANTS}
        for variant, path in paths.items():
            started = time.process_time()
            write_variant(variant, detector, calibration, path)
            prefix = f"onnx_exporter_{name}_{variant}"
            rows[f"{prefix}_export"] = time.process_time() - started, "s of processor time"
            rows[f"{prefix}_file"] = path.stat().st_size / 1e6, "MB"
        rows |= measure_accuracy(name, paths, detector, test)
        for batch, (rounds, calls) in TIMING_PLAN[name].items():
            images = test[:batch].float().numpy()
            rows |= measure_speed(name, paths, images, rounds, calls)
    return rows


def generate_network_images(count: int, size: int, seed: int) -> Tensor:
    """Return images of the demo's data set, [count, 3, size, size] uint8."""
    return torch.from_numpy(generate_scene(count, size, seed).images).permute(0, 3, 1, 2).contiguous()


# --- variants -------------------------------------------------------------------------------------------


def write_variant(variant: str, detector: Detector, calibration: Tensor, path: Path) -> None:
    """Write the graph of a variant. Quantizers read the graph of an earlier variant in the same folder."""
    if variant == "float32_hand":
        write_without_cropping(write_float32(detector, path), path)
    elif variant == "int8_hand":
        write_without_cropping(write_int8(detector, calibration, path), path)
    elif variant.startswith("float32_exporter"):
        layers = RewrittenNorms() if variant.endswith("rewritten") else None
        export(detector, path, 21 if variant.endswith("opset21") else 18, layers)
    else:
        source = path.with_name(f"{QUANTIZED[variant]}.onnx")
        options: dict[str, Any] = {}
        if variant != "int8_quantizer_all":
            options["op_types_to_quantize"] = ["Conv"]
        if variant in ("int8_quantizer_blocks", "int8_quantizer_hand"):
            options["nodes_to_exclude"] = find_float32_convolutions(source)
        quantize(source, calibration, path, options)


class LandmarkLocator(nn.Module):
    """`Detector.locate` as a module that torch can export.

    The maps of images and mirror images are separated by slicing, because the exporter's optimizer fails on
    `chunk` with a dynamic batch size.
    """

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.psi = copy.deepcopy(detector.psi)
        self.mirror = torch.tensor(detector.card.mirror)
        self.method = detector.card.refine

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Return points [B, K, 2] and scores [B, K] of network images [B, 3, S, S], floats 0..255."""
        images = crops / 255
        maps = self.psi(torch.cat([images, images.flip(-1)]))
        plain, mirrored = maps[: len(images)], maps[len(images) :]
        peaks = read_heatmaps((plain + mirrored.flip(-1)[:, self.mirror]) / 2, self.method)
        return to_pixels(peaks.cells), peaks.score.clamp(0, 1)


class RewrittenNorms(PlainNetworkOps):
    """Layers in which GroupNorm is instance normalization of the groups, then a depthwise 1x1 convolution."""

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Tensor) -> Tensor:
        return self._norm_relu(norm, conv(images - 0.5))

    def residual_block(self, block: ResidualBlock, x: Tensor) -> Tensor:
        normalized = self._normalize(block.norm1, x)
        first = block.conv1(self._affine_relu(block.norm1, normalized))
        second = block.conv2(self._norm_relu(block.norm2, first))
        third = block.conv3(self._norm_relu(block.norm3, second))
        skip = x
        if isinstance(block.skip, nn.Sequential):
            norm, _, conv = block.skip
            skip = conv(self._affine_relu(norm, normalized))
        return torch.cat([first, second, third], dim=1) + skip

    def conv_norm_relu(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        return self._norm_relu(norm, conv(x))

    def _norm_relu(self, norm: nn.Module, x: Tensor) -> Tensor:
        return self._affine_relu(norm, self._normalize(norm, x))

    def _normalize(self, norm: Any, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        grouped = x.reshape(batch, norm.num_groups, -1)
        return F.instance_norm(grouped, eps=norm.eps).reshape(batch, channels, height, width)

    def _affine_relu(self, norm: Any, x: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, norm.weight[:, None, None, None], norm.bias, groups=x.shape[1]))


@torch.no_grad()
def export(detector: Detector, path: Path, opset: int, layers: PlainNetworkOps | None) -> None:
    """Write the graph that torch makes of `LandmarkLocator`, with a dynamic batch size."""
    module = LandmarkLocator(detector).eval()
    if layers is not None:
        module.psi.backend = replace(PLAIN_BACKEND, layers=layers)
    size = detector.card.images.size
    program = torch.onnx.export(
        module,
        (torch.zeros(2, 3, size, size),),
        dynamo=True,
        opset_version=opset,
        input_names=[CROPS],
        output_names=[CROP_XY, "scores"],
        dynamic_shapes={CROPS: {0: torch.export.Dim.DYNAMIC}},
        verbose=False,
    )
    assert program is not None
    program.save(path)


def write_without_cropping(source: Path, path: Path) -> None:
    """Write selfmark's graph as `OnnxDetector` uses it: without the nodes that crop images."""
    graph = onnx.utils.Extractor(onnx.load(source)).extract_model([CROPS], [CROP_XY, "scores"])
    path.write_bytes(graph.SerializeToString())


class CalibrationImages(CalibrationDataReader):  # type: ignore[misc]
    """Calibration images, one at a time."""

    def __init__(self, images: Tensor) -> None:
        self._images = iter(images.float().numpy())

    def get_next(self) -> dict[str, Floats] | None:
        image = next(self._images, None)
        return None if image is None else {CROPS: image[None]}


def quantize(source: Path, calibration: Tensor, path: Path, options: dict[str, Any]) -> None:
    """Write the graph that ONNX Runtime's quantizer makes from another graph."""
    prepared_path = path.with_suffix(".prepared.onnx")
    # Symbolic shape inference fails on these graphs.
    quant_pre_process(str(source), str(prepared_path), skip_symbolic_shape=True)
    quantize_static(
        str(prepared_path),
        str(path),
        CalibrationImages(calibration),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        **options,
    )


def find_float32_convolutions(path: Path) -> list[str]:
    """Return the names of the convolutions that selfmark leaves in float32.

    These are the first one, the last two, and the depthwise ones.
    """
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "Conv"]
    groups = [
        next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1) for node in nodes
    ]
    ungrouped = [node.name for node, count in zip(nodes, groups, strict=True) if count == 1]
    depthwise = [node.name for node, count in zip(nodes, groups, strict=True) if count > 1]
    return [ungrouped[0], *ungrouped[-2:], *depthwise]


# --- measurements ---------------------------------------------------------------------------------------


def open_session(path: Path) -> Any:
    """Open a graph with ONNX Runtime on one CPU thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measure_accuracy(name: str, paths: dict[str, Path], detector: Detector, images: Tensor) -> Rows:
    """Measure how far each variant's landmarks are from torch's."""
    expected = detector.locate(images).xy.numpy()
    rows: Rows = {}
    for variant, path in paths.items():
        session = open_session(path)
        predicted = [session.run([CROP_XY], {CROPS: image[None].float().numpy()})[0] for image in images]
        distance = np.linalg.norm(np.concatenate(predicted) - expected, axis=-1)
        prefix = f"onnx_exporter_{name}_{variant}"
        rows[f"{prefix}_mean"] = float(distance.mean()), "px"
        rows[f"{prefix}_median"] = float(np.median(distance)), "px"
        rows[f"{prefix}_max"] = float(distance.max()), "px"
        rows[f"{prefix}_far"] = 100 * float((distance > FAR).mean()), f"% by more than {FAR:g} px"
    return rows


def measure_speed(name: str, paths: dict[str, Path], images: Floats, rounds: int, calls: int) -> Rows:
    """Measure the CPU time of one call of each variant, also relative to the hand-written graph."""
    durations: dict[str, list[list[float]]] = {variant: [] for variant in paths}
    rng = random.Random(SEED)
    for _ in range(rounds):
        for variant in rng.sample(list(paths), len(paths)):
            durations[variant].append(take_turn(paths[variant], images, calls))
    rows: Rows = {}
    for variant, turns in durations.items():
        hand_turns = durations[f"{variant.split('_')[0]}_hand"]
        ratio = median(
            median(turn) / median(hand_turn) for turn, hand_turn in zip(turns, hand_turns, strict=True)
        )
        fastest_call = min(map(min, turns))
        prefix = f"onnx_exporter_{name}_{variant}_batch{len(images)}"
        rows[prefix] = median(duration for turn in turns for duration in turn), "ms of processor time"
        rows[f"{prefix}_fastest"] = fastest_call, "ms of processor time"
        rows[f"{prefix}_slower"] = 100 * (ratio - 1), "% slower than hand"
        slower = 100 * (fastest_call / min(map(min, hand_turns)) - 1)
        rows[f"{prefix}_fastest_slower"] = slower, "% slower than hand"
    return rows


def take_turn(path: Path, images: Floats, calls: int) -> list[float]:
    """Open a graph, warm up, and return the CPU time of some calls in milliseconds."""
    session = open_session(path)
    durations = []
    for _ in range(calls + 1):
        started = time.process_time()
        session.run([CROP_XY, "scores"], {CROPS: images})
        durations.append(1000 * (time.process_time() - started))
    return durations[1:]


def compare_crops(detector: Detector) -> Rows:
    """Measure how much crops and landmarks change if torch resizes the images."""
    size = detector.card.images.size
    scenes = [image for side in CROP_SIDES for image in generate_scene(CROP_IMAGES, side, SEED).images]
    ours = torch.from_numpy(
        np.stack([extract_crop(image, (0, 0, *image.shape[1::-1]), size) for image in scenes])
    )
    ours = ours.permute(0, 3, 1, 2).contiguous()
    expected = detector.locate(ours).xy
    modes: dict[str, dict[str, Any]] = {
        "area": {"mode": "area"},
        "antialias": {"mode": "bilinear", "antialias": True},
    }
    rows: Rows = {}
    for mode, options in modes.items():
        theirs = torch.cat([resize(image, size, options) for image in scenes])
        levels = (theirs.int() - ours.int()).abs().float()
        distance = (detector.locate(theirs).xy - expected).norm(dim=-1)
        rows[f"onnx_exporter_crop_{mode}_levels_mean"] = float(levels.mean()), "gray levels"
        rows[f"onnx_exporter_crop_{mode}_levels_max"] = float(levels.max()), "gray levels"
        rows[f"onnx_exporter_crop_{mode}_moved_mean"] = float(distance.mean()), "px of the network"
        rows[f"onnx_exporter_crop_{mode}_moved_max"] = float(distance.max()), "px of the network"
    return rows


def resize(image: Pixels, size: int, options: dict[str, Any]) -> Tensor:
    """Resize an image [H, W, 3] with `F.interpolate` and return [1, 3, size, size] uint8."""
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    return F.interpolate(planes, size=(size, size), **options).round().clamp(0, 255).to(torch.uint8)


if __name__ == "__main__":
    main()
