"""Test that ONNX models from strangers are refused, or stopped, with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.export.onnx_detector import OnnxDetector
from selfmark.export.onnx_export import CROP_XY, write_float32
from selfmark.export.onnx_metadata import append_checksum, remove_checksum
from selfmark.features.loading import build_encoder
from tests.features.onnx_models import IMAGE_SHAPE, MAP_SHAPE, make_model
from tests.features.random_images import random_images

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, TensorProto = onnx.helper, onnx.TensorProto

UNKNOWN_SHAPE = ["batch", "channels", "rows", "columns"]
TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"
Change = Callable[[Any], None]


def constant(name: str, value: Any, dtype: Any = np.int64) -> Any:
    return helper.make_node(
        "Constant", [], [name], value=onnx.numpy_helper.from_array(np.array(value, dtype), name)
    )


def convolve(output: str, **attributes: Any) -> Any:
    attributes = {"kernel_shape": [4, 4], "strides": [4, 4], **attributes}
    return helper.make_node("Conv", ["x0", "weight"], [output], **attributes)


def slice_maps(end: int, axis: int) -> list[Any]:
    """Return a convolution, and nodes that keep its first `end` channels (axis 1), rows or columns."""
    numbers = [constant("begin", [0]), constant("end", [end]), constant("axis", [axis])]
    return [convolve("maps"), *numbers, helper.make_node("Slice", ["maps", "begin", "end", "axis"], ["y0"])]


def hide_channels() -> list[Any]:
    """Return nodes whose output has 6 channels; ONNX Runtime learns this number only by running them."""
    return [
        convolve("maps"),
        constant("begin", [0]),
        constant("axis", [1]),
        helper.make_node("Abs", ["x0"], ["positive"]),
        helper.make_node("ReduceMax", ["positive"], ["largest"], keepdims=0),
        constant("many", [1e6], np.float32),
        helper.make_node("Add", ["largest", "many"], ["number"]),
        helper.make_node("Cast", ["number"], ["end"], to=TensorProto.INT64),
        helper.make_node("Slice", ["maps", "begin", "end", "axis"], ["y0"]),
    ]


def add_to_maps(name: str) -> list[Any]:
    """Return a convolution, and nodes that add the largest value of the tensor `name` to its maps."""
    largest = helper.make_node("ReduceMax", [name], ["largest"], keepdims=0)
    return [convolve("maps"), largest, helper.make_node("Add", ["maps", "largest"], ["y0"])]


def make_endless_loop(value: str, output: str) -> list[Any]:
    """Return nodes that copy a tensor 2^62 times."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["goes_on"], ["goes_on_again"]),
            helper.make_node("Identity", ["old"], ["new"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("old", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("goes_on_again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("new", TensorProto.FLOAT, None),
        ],
    )
    limits = [constant("times", 2**62), constant("start", True, bool)]
    return [*limits, helper.make_node("Loop", ["times", "start", value], [output], body=body)]


def add_condition(model: Any, nodes: list[Any]) -> None:
    """Add an If whose two branches consist of the same nodes, the last of which computes "chosen"."""
    result = helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None)
    branch = helper.make_graph(nodes, "branch", [], [result])
    output = model.graph.output[0].name
    model.graph.node[-1].output[0] = "maps"
    choice = helper.make_node("If", ["is_true"], [output], then_branch=branch, else_branch=branch)
    model.graph.node.extend([constant("is_true", True, bool), choice])


def add_external_weights(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


def add_function(model: Any) -> None:
    identity = helper.make_node("Identity", ["a"], ["b"])
    opset = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Copy", ["a"], ["b"], [identity], opset))


def add_sparse_tensor(model: Any) -> None:
    values, places = (
        helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("i", TensorProto.INT64, [1], [0]),
    )
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [1 << 40]))


def add_strings(model: Any) -> None:
    model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [1], [b"word" * 100]))


def add_text_conversion(model: Any) -> None:
    model.graph.node.append(helper.make_node("Cast", ["y0"], ["words"], to=TensorProto.STRING))


def add_foreign_operator(model: Any) -> None:
    model.graph.node.append(helper.make_node("LabelEncoder", ["y0"], ["z"], domain="ai.onnx.ml"))


def add_unlimited_operator(model: Any) -> None:
    model.graph.node.append(helper.make_node("RoiAlign", ["y0", "a", "b"], ["z"], sampling_ratio=1 << 20))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda model: model.graph.node.extend(make_endless_loop("y0", "z")),
            r"a loop \(the operator Loop\)",
        ),
        (
            lambda model: add_condition(model, make_endless_loop("maps", "chosen")),
            r"a loop \(the operator Loop\)",
        ),
        (add_external_weights, "weights in another file"),
        (add_function, "the function 'Copy'"),
        (add_sparse_tensor, "sparse tensors"),
        (add_strings, "strings"),
        (add_text_conversion, "strings"),
        (add_foreign_operator, "the operator LabelEncoder of the domain 'ai.onnx.ml'"),
        (add_unlimited_operator, "the operator RoiAlign"),
    ],
)
def test_graphs_without_a_limit_are_refused(change: Change, problem: str) -> None:
    model = onnx.load_from_string(make_model())
    change(model)
    with pytest.raises(InputError, match=f"^'own.onnx' has {problem}, which selfmark does not run: "):
        build_encoder("onnx:own.onnx", model.SerializeToString())


def test_conditions_without_loops_are_run() -> None:
    model = onnx.load_from_string(make_model())
    expected = build_encoder("onnx:own.onnx", model.SerializeToString())(random_images(1, 64))
    add_condition(model, [helper.make_node("Identity", ["maps"], ["chosen"])])
    chosen = build_encoder("onnx:own.onnx", model.SerializeToString())(random_images(1, 64))
    assert torch.equal(chosen, expected)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            make_model(output_shape=["batch", 99, "rows", "columns"], nodes=hide_channels()),
            r"\[2, 6, 16, 16\] instead of 99 channels",
        ),
        (
            make_model(output_shape=["batch", 1 << 40, "rows", "columns"], nodes=hide_channels()),
            "has the declared shape .* 1 to 8192 channels",
        ),
        (make_model(output_shape=UNKNOWN_SHAPE, nodes=slice_maps(0, 1)), r"has shape \[1, 0, 64, 64\]"),
        (make_model(nodes=slice_maps(0, 2)), r"has shape \[2, 6, 0, 16\] for images of 64 x 64 pixels"),
        (make_model(nodes=slice_maps(0, 3)), r"has shape \[2, 6, 16, 0\] for images of 64 x 64 pixels"),
        (make_model(["batch", 3, 60000, 60000]), "which is more than 256 MiB; export the model for smaller"),
        (make_model([2_000_000, 3, 64, 64]), "which is more than 256 MiB; export the model for smaller"),
        (
            make_model(
                output_shape=UNKNOWN_SHAPE,
                nodes=[
                    *slice_maps(1, 1)[:-1],
                    helper.make_node("Slice", ["maps", "begin", "end", "axis"], ["one"]),
                    constant("copies", [1, 200_000, 1, 1]),
                    helper.make_node("Tile", ["one", "copies"], ["y0"]),
                ],
            ),
            "has the declared shape .* 200000, .* 1 to 8192 channels",
        ),
        (
            make_model(
                nodes=[
                    convolve("maps"),
                    constant("scales", [1, 1, 64, 64], np.float32),
                    helper.make_node("Resize", ["maps", "", "scales"], ["y0"], mode="nearest"),
                ]
            ),
            r"has shape \[2, 6, 1024, 1024\] .* no more cells than pixels",
        ),
        (
            make_model(
                nodes=[
                    convolve("maps"),
                    constant("factor", 1e30, np.float32),
                    helper.make_node("Mul", ["maps", "factor"], ["y0"]),
                ]
            ),
            r"has values up to .*e\+3\d; .* at most 1e\+15",
        ),
    ],
    ids=[
        "channels",
        "huge channels",
        "no channel",
        "no row",
        "no column",
        "huge image",
        "huge batch",
        "many channels",
        "many cells",
        "huge values",
    ],
)
def test_declared_and_real_shapes_of_features_are_checked(model: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build_encoder("onnx:own.onnx", model)(random_images(2, 64))
    assert "onnx:own.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "nodes",
    [
        [constant("size", [3 << 30]), helper.make_node("ConstantOfShape", ["size"], ["huge"])],
        [
            constant("one", [1.0], np.float32),
            constant("size", [3 << 30]),
            helper.make_node("Tile", ["one", "size"], ["huge"]),
        ],
        # The size is known only when the model runs.
        [
            helper.make_node("Shape", ["x0"], ["shape"]),
            constant("factor", [1 << 28, 1, 1, 1]),
            helper.make_node("Mul", ["shape", "factor"], ["product"]),
            helper.make_node("ConstantOfShape", ["product"], ["huge"]),
        ],
    ],
    ids=[
        "constant",
        "tile",
        "dynamic",
    ],
)
def test_the_memory_of_features_is_limited(nodes: list[Any]) -> None:
    encoder = build_encoder("onnx:own.onnx", make_model(nodes=[*nodes, *add_to_maps("huge")]))
    with pytest.raises(InputError, match=r"the model of onnx:own.onnx fails on images of 64 x 64 pixels"):
        encoder(random_images(2, 64))


def test_models_that_fail_on_several_images_get_one_image_at_a_time() -> None:
    nodes = [
        convolve("maps"),
        constant("shape", [1, 6, 16, 16]),
        helper.make_node("Reshape", ["maps", "shape"], ["y0"]),
    ]
    images = random_images(5, 64)
    expected = build_encoder("onnx:own.onnx", make_model())(images)
    features = build_encoder("onnx:own.onnx", make_model(nodes=nodes))(images)
    torch.testing.assert_close(features, expected)


def test_features_of_no_images_are_empty() -> None:
    assert build_encoder("onnx:own.onnx", make_model())(random_images(1, 64)[:0]).shape == (0, 6, 8, 8)


def test_names_of_nodes_do_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    node = convolve("y0")
    node.name = "\x1b]0;title\x07\x1b[31m"
    encoder = build_encoder("onnx:own.onnx", make_model(IMAGE_SHAPE, MAP_SHAPE, [node]))
    with pytest.raises(InputError):
        encoder.compute_maps(torch.zeros(1, 3, 1, 1))  # The image is smaller than the kernel.
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "")


# --- exported detectors -------------------------------------------------------------------------------


def change_output(name: str, *nodes: Any) -> Change:
    """Return a change that puts nodes behind an output, whose old value is called `old`."""

    def change(model: Any) -> None:
        for node in model.graph.node:
            node.output[:] = ["old" if output == name else output for output in node.output]
            node.input[:] = ["old" if value == name else value for value in node.input]
        model.graph.node.extend(nodes)

    return change


def multiply(name: str, factor: float) -> Change:
    product = helper.make_node("Mul", ["old", "factor"], [name])
    return change_output(name, constant("factor", factor, np.float32), product)


def add_huge_tensor(model: Any) -> None:
    change_output(
        CROP_XY,
        constant("size", [3 << 30]),
        helper.make_node("ConstantOfShape", ["size"], ["huge"]),
        helper.make_node("ReduceMax", ["huge"], ["largest"], keepdims=0),
        helper.make_node("Add", ["old", "largest"], [CROP_XY]),
    )(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (multiply(CROP_XY, 1e30), "landmarks far outside the image, at"),
        (multiply(CROP_XY, float("nan")), "landmarks far outside the image, at nan"),
        (multiply("scores", -1e30), r"scores from .*e\+2\d to .* instead of 0 to 1"),
        (multiply("scores", 1e30), r"scores from .* to .*e\+2\d instead of 0 to 1"),
        (
            change_output(CROP_XY, helper.make_node("Transpose", ["old"], [CROP_XY], perm=[0, 2, 1])),
            r"shapes \[1, 2, 16\] and \[1, 16\] for 16 landmarks",
        ),
        (
            change_output(
                CROP_XY,
                constant("copies", [1, 1000, 1]),
                helper.make_node("Tile", ["old", "copies"], [CROP_XY]),
            ),
            r"shapes \[1, 16000, 2\] and \[1, 16\] for 16 landmarks",
        ),
        (
            change_output("scores", helper.make_node("ReduceSum", ["old"], ["scores"], keepdims=0)),
            r"shapes \[1, 16, 2\] and \[\] for 16 landmarks",
        ),
        (change_output(CROP_XY, *make_endless_loop("old", CROP_XY)), r"a loop \(the operator"),
        (add_huge_tensor, "ONNX Runtime cannot run .*ConstantOfShape"),
    ],
    ids=["far", "nan", "negative", "large", "transposed", "tiled", "one score", "loop", "memory"],
)
def test_results_of_a_changed_detector_are_checked(change: Change, message: str, tmp_path: Path) -> None:
    """Checksums do not protect against crafted files: anybody can compute the checksum of a changed file."""
    detector = Detector.load(TOY_DETECTOR)
    path = write_float32(detector, tmp_path / "model.onnx")
    model = onnx.load_from_string(remove_checksum(path.read_bytes(), path))
    change(model)
    path.write_bytes(append_checksum(model.SerializeToString()))
    size = detector.card.images.size
    pixels = torch.randint(0, 255, (2, 3, size, size), dtype=torch.uint8)
    with pytest.raises(InputError, match=message) as caught:
        OnnxDetector(detector, path).locate(pixels)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("write it again with 'selfmark export'")
