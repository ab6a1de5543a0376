"""Build small ONNX models for the tests of features."""

from __future__ import annotations

from typing import Any

import pytest
import torch

onnx = pytest.importorskip("onnx")
helper = onnx.helper

WEIGHT = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(0))
IMAGE_SHAPE = ["batch", 3, "height", "width"]
MAP_SHAPE = ["batch", 6, "rows", "columns"]


def make_model(
    input_shape: list[Any] | None = IMAGE_SHAPE,
    output_shape: list[Any] | None = MAP_SHAPE,
    nodes: list[Any] | None = None,
    input_type: int = onnx.TensorProto.FLOAT,
    output_type: int = onnx.TensorProto.FLOAT,
    num_inputs: int = 1,
    num_outputs: int = 1,
) -> bytes:
    """Return an ONNX model, by default one convolution with 6 outputs and cells of 4 pixels."""
    inputs = [helper.make_tensor_value_info(f"x{i}", input_type, input_shape) for i in range(num_inputs)]
    outputs = [helper.make_tensor_value_info(f"y{i}", output_type, output_shape) for i in range(num_outputs)]
    convolutions = [
        helper.make_node("Conv", ["x0", "weight"], [f"y{i}"], kernel_shape=[4, 4], strides=[4, 4])
        for i in range(num_outputs)
    ]
    weight = onnx.numpy_helper.from_array(WEIGHT.numpy(), "weight")
    graph = helper.make_graph(nodes or convolutions, "features", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content
