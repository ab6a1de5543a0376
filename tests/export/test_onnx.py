"""Test the ONNX export: files agree with torch, belong to one model, and stay accurate in int8.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

import copy
import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

import selfmark as selfmark_package
from selfmark.config import Images, Network, preset
from selfmark.demo.scene import Scene
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.export.onnx_detector import OnnxDetector, load_detector
from selfmark.export.onnx_export import FILES, export_onnx, write_float16, write_float32, write_int8
from selfmark.export.onnx_graph import Maps, add_positions
from selfmark.export.onnx_int8 import ValueRange, fold_scales, quantize_conv
from selfmark.export.onnx_metadata import append_checksum
from selfmark.export.onnx_nodes import OPSET, Graph
from selfmark.model.card import ModelCard
from selfmark.model.heatmaps import PeakMethod, draw_gaussians, read_heatmaps, to_cells, to_pixels
from selfmark.model.network import Psi
from tests.conftest import selfmark

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
TensorProto, helper = onnx.TensorProto, onnx.helper

NETWORK = Network(channels=32, depth=2, descriptor=16, norm_groups=4)
CARD = ModelCard(
    ("nose", "left", "right"), (0, 2, 1), (), Images(size=64), NETWORK, "parabola", True, {"seed": 0}
)


def _build_network(settings: Network, landmarks: int, seed: int = 0) -> Psi:
    """Return a network with random weights; some scales of its group norms are negative."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        psi = Psi(settings, landmarks)
    for module in psi.modules():
        if isinstance(module, nn.GroupNorm):
            module.weight.data.normal_(1.0, 0.5, generator=generator)
            module.bias.data.normal_(0.0, 0.5, generator=generator)
    return psi


def _select_pixels(scene: Scene, count: int) -> torch.Tensor:
    return torch.from_numpy(scene.images[:count]).permute(0, 3, 1, 2)


def _export(detector: Detector, folder: Path) -> OnnxDetector:
    return OnnxDetector(detector, write_float32(detector, folder / "model.onnx"))


@pytest.mark.parametrize("refine", get_args(PeakMethod))
@pytest.mark.parametrize("flip", [True, False])
def test_the_graph_agrees_with_torch(refine: PeakMethod, flip: bool, scene: Scene, tmp_path: Path) -> None:
    # With the method "cell", landmark 0 has no mirror partner, so it is not averaged with a mirror image.
    unpaired = (0,) if refine == "cell" else ()
    card = replace(CARD, refine=refine, flip_test=flip, unpaired=unpaired)
    detector = Detector(_build_network(NETWORK, 3), card)
    images = _select_pixels(scene, 12)
    expected, predicted = detector.locate(images), _export(detector, tmp_path).locate(images)
    assert expected.xy.std(dim=0).min() > 1  # landmarks differ between images
    assert (predicted.xy - expected.xy).abs().max() < 0.05
    assert (predicted.score - expected.score).abs().max() < 1e-4


def test_the_network_of_the_tiny_preset_is_exported(tmp_path: Path) -> None:
    config = preset("tiny")
    card = replace(
        CARD,
        names=tuple(f"landmark_{index}" for index in range(config.K)),
        mirror=tuple(reversed(range(config.K))),
        images=config.images,
        network=config.network,
    )
    detector = Detector(_build_network(config.network, config.K), card)
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(2, 3, 9, 9, generator=generator)
    images = (nn.functional.interpolate(coarse, (128, 128), mode="bicubic").clamp(0, 1) * 255).to(torch.uint8)
    predicted = _export(detector, tmp_path).locate(images)
    assert (predicted.xy - detector.locate(images).xy).abs().max() < 0.05


@pytest.mark.parametrize("refine", get_args(PeakMethod))
def test_peaks_at_borders_and_between_cells_agree_with_torch(refine: PeakMethod) -> None:
    side = 16
    cells = [(0.0, 0.0), (15.0, 0.0), (0.3, 15.0), (15.0, 14.6), (7.25, 3.8), (8.5, 8.4), (0.0, 7.7)]
    maps = torch.stack([draw_gaussians(torch.tensor(cell), side, 1.0) for cell in cells])[None]
    # Also test scores outside 0..1, and values below 0, which have no logarithm.
    maps = torch.cat([maps, maps - 1.0, 2.0 * maps])
    graph = Graph()
    xy, score = add_positions(graph, Maps("maps", len(cells), side), refine)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "peaks",
            [helper.make_tensor_value_info("maps", TensorProto.FLOAT, ["batch", len(cells), side, side])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (xy, score)],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    graph_xy, graph_score = session.run([xy, score], {"maps": maps.numpy()})
    expected = read_heatmaps(maps, refine)
    np.testing.assert_allclose(graph_xy, to_pixels(expected.cells), atol=1e-4)
    np.testing.assert_allclose(graph_score, expected.score.clamp(0, 1), atol=1e-6)
    np.testing.assert_allclose(to_cells(torch.from_numpy(graph_xy[0])), cells, atol=0.51)


def test_batches_of_different_sizes_give_the_points_of_the_detector(scene: Scene, tmp_path: Path) -> None:
    detector = Detector(_build_network(NETWORK, 3), CARD)
    exported = _export(detector, tmp_path)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    images = _select_pixels(scene, 5)
    for count in (1, 2, 5):
        feed = {"images": scene.images[:count], "boxes": np.zeros((1, 4), np.float32)}  # whole images
        points = session.run(["points"], feed)[0]
        np.testing.assert_allclose(points, exported.locate(images[:count]).xy, atol=1e-3)
    assert exported.locate(images[:0]).xy.shape == (0, 3, 2)
    assert exported.locate(images[:0]).score.shape == (0, 3)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 64, 64),
        torch.zeros(2, 3, 32, 32, dtype=torch.uint8),
        torch.zeros(3, 64, 64, dtype=torch.uint8),
    ],
)
def test_images_of_wrong_type_or_shape_are_an_error(images: torch.Tensor, tmp_path: Path) -> None:
    exported = _export(Detector(_build_network(NETWORK, 3), CARD), tmp_path)
    with pytest.raises(ValueError, match=r"\[B, 3, 64, 64\] uint8, not"):
        exported.locate(images)


def test_a_file_exported_from_another_model_is_an_error(tmp_path: Path) -> None:
    detector = Detector(_build_network(NETWORK, 3), CARD)
    path = write_float32(detector, tmp_path / "model.onnx")
    renamed = Detector(detector.psi, replace(CARD, names=("a", "b", "c"), provenance={}))
    assert OnnxDetector(renamed, path).names == ("a", "b", "c")
    for other in (
        Detector(_build_network(NETWORK, 3, seed=1), CARD),
        Detector(detector.psi, replace(CARD, refine="quarter")),
        Detector(detector.psi, replace(CARD, images=Images(size=64, margin=0.2))),
    ):
        with pytest.raises(InputError, match="was exported from another model"):
            OnnxDetector(other, path)
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), len(content) // 50):
        content[position] ^= 1
        path.write_bytes(content)
        with pytest.raises(InputError, match="has been changed or damaged"):
            OnnxDetector(detector, path)
        content[position] ^= 1
    path.write_bytes(append_checksum(b"not a model"))
    with pytest.raises(InputError, match="is not an ONNX file"):
        OnnxDetector(detector, path)


def test_files_use_only_standard_operators(scene: Scene, tmp_path: Path) -> None:
    detector = Detector(_build_network(NETWORK, 3), CARD)
    for path in (
        write_float32(detector, tmp_path / "a.onnx"),
        write_int8(detector, _select_pixels(scene, 4), tmp_path / "b.onnx"),
        write_float16(detector, tmp_path / "c.onnx"),
    ):
        model = onnx.load(path)
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", OPSET)]
        assert {node.domain for node in model.graph.node} == {""}
        assert [value.name for value in model.graph.input] == ["images", "boxes"]
        assert [value.name for value in model.graph.output] == ["points", "scores"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "c.onnx"]


# --- int8 ---------------------------------------------------------------------------------------------


def test_folding_scales_keeps_the_output(scene: Scene) -> None:
    psi = _build_network(NETWORK, 3).eval()
    images = _select_pixels(scene, 4).float() / 255
    with torch.no_grad():
        for spread in (0.1, 0.5):  # at 0.5, each norm has a negative scale, and such norms are not folded
            for module in psi.modules():
                if isinstance(module, nn.GroupNorm):
                    module.weight.data = 1 + spread * torch.linspace(-2.1, 2.1, module.num_channels)
            folded = copy.deepcopy(psi)
            fold_scales(folded)
            scales = [module.weight for module in folded.modules() if isinstance(module, nn.GroupNorm)]
            folded_fraction = np.mean([bool((scale == 1).all()) for scale in scales])
            if spread == 0.1:
                assert folded_fraction > 0.9
            else:
                assert folded_fraction <= 0.1
            torch.testing.assert_close(folded(images), psi(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [None, np.array([20.0, -3.0, 0.4], np.float32)])
def test_quantization_keeps_small_channels_accurate(bias: np.ndarray | None) -> None:
    """Compare integer arithmetic with the convolution in floats, channel by channel."""
    rng = np.random.default_rng(0)
    size = np.array([30.0, 1.0, 0.1], np.float32)
    weight = (rng.normal(size=(3, 8, 1, 1)) * size[:, None, None, None]).astype(np.float32)
    values = rng.exponential(size=(8, 500)).astype(np.float32)
    exact_output = weight[:, :, 0, 0] @ values + (0 if bias is None else bias[:, None])
    values_range = ValueRange.measure(
        torch.from_numpy(values)[None, :, :, None],
        torch.from_numpy(exact_output.astype(np.float32))[None, :, :, None],
    )
    quantized = quantize_conv(weight, values_range, bias)
    levels_in = np.clip(np.round(values / quantized.input_scale), 0, 255)
    total = (
        quantized.weight[:, :, 0, 0].astype(np.int64) @ levels_in.astype(np.int64) + quantized.bias[:, None]
    )
    scaled = total * (quantized.input_scale * quantized.weight_scale)[:, None]
    levels_out = np.clip(np.round(scaled) + 128, 0, 255)
    restored = (levels_out - quantized.output_zero_point[:, None]) * quantized.output_scale[:, None]
    span = exact_output.max(axis=1) - exact_output.min(axis=1)
    assert (np.abs(restored - exact_output).max(axis=1) < 0.02 * span).all()


def test_a_convolution_that_saw_only_zeros_is_quantized() -> None:
    zeros = torch.zeros(1, 4, 2, 2)
    quantized = quantize_conv(np.zeros((4, 4, 3, 3), np.float32), ValueRange.measure(zeros, zeros))
    for values in (quantized.input_scale, quantized.weight_scale, quantized.output_scale):
        assert np.isfinite(values).all()
        assert (values > 0).all()


@pytest.fixture(scope="module")
def spot_detector() -> tuple[Detector, torch.Tensor]:
    """A detector trained to find a red and a green spot, and images it was not trained on."""
    generator = torch.Generator().manual_seed(0)
    network, size = replace(NETWORK, depth=1), 32

    def draw_images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        xy = 4 + (size - 8) * torch.rand(count, 2, 2, generator=generator)
        images = 0.3 * torch.rand(count, 3, size, size, generator=generator)
        images[:, :2] += 0.7 * draw_gaussians(xy, size, 2.0)
        return (images * 255).to(torch.uint8), xy

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        psi = Psi(network, 2)
    optimizer = torch.optim.Adam(psi.parameters(), lr=2e-3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads are slower for such small maps
    for _ in range(60):
        images, xy = draw_images(8)
        target = draw_gaussians(to_cells(xy), size // 4, 1.0)
        loss = (psi(images.float() / 255) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    card = replace(CARD, names=("red", "green"), mirror=(0, 1), images=Images(size=size), network=network)
    images, xy = draw_images(48)
    detector = Detector(psi, card)
    assert (detector.locate(images).xy - xy).norm(dim=-1).median() < 2  # the training succeeded
    return detector, images


def test_int8_is_close_to_float32(spot_detector: tuple[Detector, torch.Tensor], tmp_path: Path) -> None:
    detector, images = spot_detector
    quantized = OnnxDetector(detector, write_int8(detector, images[:24], tmp_path / "int8.onnx"))
    model = onnx.load(tmp_path / "int8.onnx")
    weights = [
        tensor
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.INT8 and len(tensor.dims) == 4
    ]
    assert len(weights) > 20
    distance = (quantized.locate(images[24:]).xy - detector.locate(images[24:]).xy).norm(dim=-1)
    assert 0 < distance.mean() < 0.5
    assert distance.max() < 4


# --- Folders and commands -----------------------------------------------------------------------------


@pytest.fixture
def run(quick_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(quick_run, tmp_path / "run")
    return tmp_path / "run"


def _read_table(folder: Path) -> tuple[Sequence[str], np.ndarray]:
    with open(folder / "landmarks.csv", newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    keys = [f"{row['image']} {row['landmark']}" for row in rows]
    return keys, np.array([[float(row["x"]), float(row["y"]), float(row["score"])] for row in rows])


def test_export_and_predict_from_the_command_line(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selfmark("export", run, "--onnx", "--int8", "--fp16") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"exported: {run / 'model' / name}" for name in FILES.values()
    ]
    for runtime in ("torch", "onnx", "onnx-int8"):
        options = ["-o", tmp_path / runtime, "--runtime", runtime, "--device=cpu", "--batch=5"]
        assert selfmark("predict", run, photos, *options) == 0
    names, expected = _read_table(tmp_path / "torch")
    assert len(names) == 24 * 4
    onnx_names, predicted = _read_table(tmp_path / "onnx")
    assert onnx_names == names
    assert np.abs(predicted - expected)[:, :2].max() < 0.05
    assert np.abs(predicted - expected)[:, 2].max() < 0.001
    onnx_names, predicted = _read_table(tmp_path / "onnx-int8")
    assert onnx_names == names
    assert np.abs(predicted - expected)[:, 2].max() < 0.05


def test_an_exported_folder_needs_no_run(run: Path, scene: Scene, tmp_path: Path) -> None:
    (written,) = export_onnx(run, ["float32"], output=tmp_path / "model")
    assert written == tmp_path / "model" / "model.onnx"
    images = list(scene.images[:2])
    expected = Detector.load(run)(images)
    shutil.rmtree(run)
    for runtime in ("torch", "onnx"):
        predicted = load_detector(tmp_path / "model", runtime)(images)
        np.testing.assert_allclose(predicted.xy, expected.xy, atol=0.05)


def test_missing_files_and_invalid_options_are_clear_errors(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"write it with 'selfmark export {run} --onnx'"):
        load_detector(run, "onnx")
    with pytest.raises(InputError, match=rf"write it with 'selfmark export {run} --onnx --int8'"):
        load_detector(run, "onnx-int8")
    with pytest.raises(InputError, match="unknown runtime 'other'; choose one of torch, onnx, onnx-int8"):
        load_detector(run, "other")
    with pytest.raises(InputError, match="works on the CPU only"):
        load_detector(run, "onnx", "cuda")
    with pytest.raises(InputError, match="is not a run folder"):
        export_onnx(run / "model", ["float32", "int8"], output=None)
    with pytest.raises(InputError, match="contains no model"):
        export_onnx(tmp_path, ["float32"], output=None)
    taken = tmp_path / "taken"
    taken.write_text("a file where a folder should be")
    with pytest.raises(InputError, match="cannot write to"):
        export_onnx(run, ["float32"], output=taken)
    (run / "images.json").write_text('[{"path": "gone.png", "frame": null, "box": null}]')
    with pytest.raises(
        InputError,
        match=r"needs the training images of the run, but none of the images could be read \(0 of 1\)",
    ):
        export_onnx(run, ["float32", "int8"], output=None)
    assert not (run / "model" / "model.onnx").exists()


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_missing_packages_are_a_clear_error(
    package: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if package == "onnxruntime":
        export_onnx(run, ["float32"], output=None)
    monkeypatch.setitem(sys.modules, package, None)
    command = ["export", run, "--onnx"] if package == "onnx" else ["predict", run, run, "--runtime=onnx"]
    assert selfmark(*command) == 2
    sentence = (
        f"selfmark: this needs the package {package}, which is not installed: pip install onnx onnxruntime"
    )
    assert capsys.readouterr().err.strip() == sentence


def test_export_needs_a_format(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert selfmark("export", run) == 2
    assert "no format chosen: add --onnx" in capsys.readouterr().err


def test_torch_runs_without_onnx_packages(run: Path, photos: Path, tmp_path: Path) -> None:
    """Predict in a process in which neither onnx nor onnxruntime can be imported."""
    program = "import sys; sys.modules['onnx'] = sys.modules['onnxruntime'] = None\n"
    program += "import runpy; runpy.run_module('selfmark', run_name='__main__')"
    command = [sys.executable, "-c", program, "predict", run, photos, "-o", tmp_path / "out", "--device=cpu"]
    source = str(Path(selfmark_package.__file__).parent.parent)
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": source})
    assert len(_read_table(tmp_path / "out")[0]) == 24 * 4


def test_the_demo_detector_needs_an_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is part of selfmark: choose an output folder with --output"):
        export_onnx(Path("demo"), ["float32"], None)
    assert export_onnx(Path("demo"), ["float32"], tmp_path / "out") == [tmp_path / "out" / "model.onnx"]
