"""Compare features of ONNX models with torch, and test models that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from selfmark.errors import InputError
from selfmark.features.loading import build_encoder, load_encoder
from tests.features.onnx_models import IMAGE_SHAPE, MAP_SHAPE, WEIGHT, make_model
from tests.features.random_images import random_images

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper = onnx.helper


def compute_expected_features(images: Tensor, size: int, grid: int) -> Tensor:
    """Compute the expected features with torch."""
    images = F.interpolate(images, (size, size), mode="bilinear", antialias=True)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    maps = F.conv2d((images - mean[:, None, None]) / std[:, None, None], WEIGHT, stride=4)
    return F.normalize(F.interpolate(maps, (grid, grid), mode="bilinear"), dim=1)


@pytest.mark.parametrize(
    ("input_shape", "output_shape", "size"),
    [
        (IMAGE_SHAPE, MAP_SHAPE, 64),  # dynamic sizes
        (IMAGE_SHAPE, ["batch", "channels", "rows", "columns"], 64),  # channels known only from a result
        (IMAGE_SHAPE, None, 64),  # output of unknown shape
        (["batch", 3, 32, 32], MAP_SHAPE, 32),  # fixed image size
        ([1, 3, 48, 48], [1, 6, 12, 12], 48),  # fixed batch and image size
        ([4, 3, 64, 64], [4, 6, 16, 16], 64),  # fixed batch that does not divide the number of images
    ],
)
def test_features_match_torch(
    tmp_path: Path, input_shape: list[Any], output_shape: list[Any], size: int
) -> None:
    path = tmp_path / "own.onnx"
    path.write_bytes(make_model(input_shape, output_shape))
    encoder = load_encoder(f"onnx:{path}")
    images = random_images(5, 64)
    assert encoder.channels == encoder.part_channels == 6
    assert not encoder.is_trainable
    head, parts = encoder.forward_and_describe(images.requires_grad_())
    assert torch.equal(head, parts)
    assert not head.requires_grad
    torch.testing.assert_close(
        head, compute_expected_features(images.detach(), size, 8), rtol=1e-4, atol=1e-5
    )


def test_a_stored_copy_gives_the_same_features(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    path.write_bytes(make_model())
    encoder: Any = load_encoder(f"onnx:{path}")
    assert encoder.model_bytes == path.read_bytes()
    assert encoder.state_dict() == {}
    path.unlink()
    copy = build_encoder(f"onnx:{path}", encoder.model_bytes)
    images = random_images(2, 64)
    assert torch.equal(copy(images), encoder(images))


def make_flatten_node() -> list[Any]:
    return [helper.make_node("Flatten", ["x0"], ["y0"])]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (make_model(num_inputs=2), "has 2 inputs and 1 outputs; features need a model with one input"),
        (make_model(num_outputs=2), "has 1 inputs and 2 outputs; features need a model with one input"),
        (make_model(["batch", 3, 64]), "is not an ONNX model that ONNX Runtime can read"),
        (
            make_model(["batch", 4, 8, 8], ["batch", 256], make_flatten_node()),
            r"input of .* has type tensor\(float\) and shape \['batch', 4, 8, 8\]; features need",
        ),
        (
            make_model(
                IMAGE_SHAPE,
                IMAGE_SHAPE,
                [helper.make_node("Identity", ["x0"], ["y0"])],
                onnx.TensorProto.UINT8,
                onnx.TensorProto.UINT8,
            ),
            r"input of .* has type tensor\(uint8\) .* need a model with a float32 input",
        ),
        (
            make_model(["batch", 12], ["batch", 12], make_flatten_node()),
            r"input of .* and shape \['batch', 12\]",
        ),
        (
            make_model(IMAGE_SHAPE, ["batch", "features"], make_flatten_node()),
            r"output of .* has type tensor\(float\) and shape \['batch', 'features'\]; features need",
        ),
        (
            make_model(
                IMAGE_SHAPE,
                MAP_SHAPE,
                [helper.make_node("Cast", ["x0"], ["y0"], to=onnx.TensorProto.DOUBLE)],
                output_type=onnx.TensorProto.DOUBLE,
            ),
            r"output of .* has type tensor\(double\)",
        ),
        (b"no model", "'own.onnx' is not an ONNX model that ONNX Runtime can read: "),
        (b"", "'own.onnx' is not an ONNX model that ONNX Runtime can read: "),
    ],
)
def test_unsuitable_models_are_refused(model: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build_encoder("onnx:own.onnx", model)
    assert "\n" not in str(caught.value)


def test_a_model_that_fails_on_the_image_size_is_reported() -> None:
    shape = onnx.numpy_helper.from_array(np.array([1, 3, 16, 16]), "shape")
    nodes = [
        helper.make_node("Constant", [], ["shape"], value=shape),
        helper.make_node("Reshape", ["x0", "shape"], ["y0"]),
    ]
    encoder = build_encoder("onnx:own.onnx", make_model(IMAGE_SHAPE, [1, 3, 16, 16], nodes))
    with pytest.raises(InputError, match=r"fails on images of 64 x 64 pixels .*; export it for this size"):
        encoder(random_images(1, 64))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            helper.make_node("ReduceMean", ["x0"], ["y0"], axes=[0]),
            r"output of onnx:own.onnx has shape \[1, 3, 64, 64\] for 2 images; features need",
        ),
        (
            helper.make_node("Log", ["x0"], ["y0"]),  # the normalized colors of dark pixels are negative
            "output of onnx:own.onnx has values that are not finite; features need",
        ),
    ],
)
def test_unsuitable_results_are_refused(node: Any, message: str) -> None:
    encoder = build_encoder("onnx:own.onnx", make_model(IMAGE_SHAPE, None, [node]))
    with pytest.raises(InputError, match=message):
        encoder(random_images(2, 64))


def test_missing_files_are_reported(tmp_path: Path) -> None:
    for name in (f"onnx:{tmp_path / 'absent.onnx'}", f"onnx:{tmp_path}", "onnx:"):
        with pytest.raises(InputError, match="cannot read the ONNX model"):
            load_encoder(name)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"need the package onnxruntime.*pip install 'selfmark\[onnx\]'"):
        build_encoder("onnx:own.onnx", make_model())
