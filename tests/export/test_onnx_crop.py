"""Compare cropping in the ONNX graph with `images.crop`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from selfmark.config import Images
from selfmark.export.onnx_crop import add_crops, add_to_original
from selfmark.export.onnx_nodes import IR_VERSION, OPSET, Graph, Value
from selfmark.images.crop import compute_crop_regions, extract_crop, to_original

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
TensorProto, helper = onnx.TensorProto, onnx.helper

WHOLE = [np.nan] * 4  # no box; in the graph, a box of zeros means the same
CROP_POINTS = np.array([[[0, 0], [63, 0], [20.25, 41.5]]], np.float32)
SETTINGS = Images(size=64)
STRETCHED = replace(SETTINGS, aspect="stretched")


def _build_model(settings: Images) -> Any:
    """Return a model that crops images and maps points `crop_points` of the crops back to the images."""
    graph = Graph()
    crops, regions = add_crops(graph, "images", "boxes", settings)
    graph.add_alias(crops, "crops")
    graph.add_alias(add_to_original(Value(graph, "crop_points"), regions, settings.size), "points")
    inputs = {
        "images": (TensorProto.UINT8, ["images", "height", "width", 3]),
        "boxes": (TensorProto.FLOAT, ["boxes", 4]),
        "crop_points": (TensorProto.FLOAT, ["batch", "points", 2]),
    }
    return helper.make_model(
        helper.make_graph(
            graph.nodes,
            "crop",
            [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("crops", "points")],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )


def _make_feed(images: npt.NDArray[np.uint8], boxes: list[list[float]]) -> dict[str, npt.NDArray[Any]]:
    return {"images": images, "boxes": np.array(boxes, np.float32), "crop_points": CROP_POINTS}


def _draw_picture(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return fine and coarse noise, in which a shift by one pixel is visible."""
    rng = np.random.default_rng(seed)
    fine, coarse = rng.integers(0, 256, (height, width, 3)), rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)
    return ((fine + 2 * smooth.astype(int)) // 3).astype(np.uint8)


def _compute_expected(
    image: npt.NDArray[np.uint8], box: list[float], settings: Images
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]:
    size = settings.size
    (region,) = compute_crop_regions([image.shape[1::-1]], [box], settings)
    points = to_original(CROP_POINTS, region, size)
    return extract_crop(image, region, size).transpose(2, 0, 1), points


def _assert_agrees(session: Any, image: npt.NDArray[np.uint8], box: list[float], settings: Images) -> None:
    crops, points = session.run(["crops", "points"], _make_feed(image[None], [box]))
    expected, expected_points = _compute_expected(image, box, settings)
    # In float32, values near a half are sometimes rounded to the other integer, so a few pixels differ by 1.
    difference = np.abs(crops[0] - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.02
    np.testing.assert_allclose(points, expected_points, atol=2e-3)


@pytest.fixture(scope="module")
def session() -> Any:
    return onnxruntime.InferenceSession(_build_model(SETTINGS).SerializeToString())


@pytest.mark.parametrize(
    ("height", "width"),
    [
        (64, 64),
        (128, 128),  # averages of 2 x 2 pixels: OpenCV rounds halves up
        (256, 256),  # averages of 4 x 4 pixels: OpenCV rounds halves to even numbers
        (384, 384),  # averages of 6 x 6 pixels: 1/36 is not exact in binary
        (96, 96),  # averages of 1.5 x 1.5 pixels
        (48, 48),  # enlarged by 4/3
        (32, 32),
        (480, 640),
        (427, 640),
        (640, 361),
        (33, 1000),
        (1, 1),
        (5, 3),
        (1200, 900),
    ],
)
def test_whole_images_of_any_size_are_cropped(height: int, width: int, session: Any) -> None:
    _assert_agrees(session, _draw_picture(height, width), WHOLE, SETTINGS)
    if height == width and height % 64 == 0:  # averages over whole pixels must be exactly equal
        crops, _ = session.run(["crops", "points"], _make_feed(_draw_picture(height, width)[None], [[0] * 4]))
        np.testing.assert_array_equal(
            crops[0], _compute_expected(_draw_picture(height, width), WHOLE, SETTINGS)[0]
        )


@pytest.mark.parametrize("size", [(64, 64), (480, 640), (33, 1000), (5, 3)])
def test_whole_images_are_stretched(size: tuple[int, int]) -> None:
    session = onnxruntime.InferenceSession(_build_model(STRETCHED).SerializeToString())
    _assert_agrees(session, _draw_picture(*size), WHOLE, STRETCHED)


@pytest.mark.parametrize(
    "settings", [SETTINGS, STRETCHED, replace(SETTINGS, box_rule="body", body_scale=1.35)]
)
def test_boxes_inside_and_beyond_the_border_are_cropped(settings: Images) -> None:
    session = onnxruntime.InferenceSession(_build_model(settings).SerializeToString())
    rng = np.random.default_rng(1)
    for seed in range(25):
        height, width = (int(side) for side in rng.integers(30, 500, 2))
        corner = rng.integers(-40, [width, height])
        box = [*corner, *rng.integers(2, [width, height])]
        if seed % 2:
            box = [value + fraction for value, fraction in zip(box, rng.random(4), strict=True)]
        _assert_agrees(session, _draw_picture(height, width, seed), [float(value) for value in box], settings)


def test_images_and_boxes_broadcast(session: Any) -> None:
    images = np.stack([_draw_picture(200, 300, seed) for seed in range(3)])
    boxes = [[10.0, 20.0, 50.0, 80.0], [150.0, 90.0, 100.0, 100.0], [0.0] * 4]
    paired = session.run(["crops", "points"], _make_feed(images, boxes))
    for row, (image, box) in enumerate(zip(images, boxes, strict=True)):
        outputs_alone = session.run(["crops", "points"], _make_feed(image[None], [box]))
        for together, single in zip(paired, outputs_alone, strict=True):
            np.testing.assert_allclose(together[row], single[0], atol=1)
    crops, points = session.run(["crops", "points"], _make_feed(images[:1], boxes))
    np.testing.assert_array_equal(crops[1], _crop_single(session, images[0], boxes[1]))
    assert crops.shape == (3, 3, 64, 64)
    assert points.shape == (3, 3, 2)
    crops, _ = session.run(["crops", "points"], _make_feed(images, boxes[:1]))
    np.testing.assert_array_equal(crops[2], _crop_single(session, images[2], boxes[0]))


def _crop_single(session: Any, image: npt.NDArray[np.uint8], box: list[float]) -> Any:
    return session.run(["crops"], _make_feed(image[None], [box]))[0][0]


def test_the_onnx_reference_implementation_agrees(session: Any) -> None:
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator(_build_model(SETTINGS))
    for box in ([0.0] * 4, [20.5, 10.0, 70.0, 30.0]):
        feed = _make_feed(_draw_picture(90, 140)[None], [box])
        for ours, theirs in zip(session.run(None, feed), evaluator.run(None, feed), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1)
            assert (np.abs(ours - theirs) > 1e-3).mean() < 0.005
