"""Test that the ONNX file takes images of any size and returns landmarks in the pixels of these images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from selfmark.demo.scene import generate_scene
from selfmark.detector import Detector
from selfmark.export.onnx_export import write_float16, write_float32
from selfmark.image_ref import ImageRef

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"
WHOLE = np.zeros((1, 4), np.float32)  # a box without extent means the whole image


@pytest.fixture(scope="module")
def detector() -> Detector:
    """A trained hourglass that finds the demo animal."""
    return Detector.load(TOY_DETECTOR)


@pytest.fixture(scope="module")
def file(detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_float32(detector, tmp_path_factory.mktemp("onnx") / "model.onnx")


@pytest.fixture(scope="module")
def pictures() -> list[npt.NDArray[np.uint8]]:
    """100 images of the demo animal in different sizes, smaller and larger than the network image."""
    rng = np.random.default_rng(0)
    scenes = generate_scene(20, 192, seed=7).images
    pictures = []
    for index in range(100):
        image = scenes[index % len(scenes)]
        top, left = rng.integers(0, 50, 2)
        part = image[top : 192 - rng.integers(0, 50), left : 192 - rng.integers(0, 50)]
        scale = np.exp(rng.uniform(np.log(0.35), np.log(3)))
        pictures.append(cv2.resize(part, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC))
    assert len({picture.shape for picture in pictures}) > 90
    return pictures


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, which is faster for such a small network."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _open_session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


def _predict_points(session: Any, images: npt.NDArray[np.uint8], boxes: npt.ArrayLike) -> Any:
    return session.run(["points", "scores"], {"images": images, "boxes": np.asarray(boxes, np.float32)})


def test_images_of_mixed_sizes_agree_with_torch(
    detector: Detector, file: Path, pictures: list[npt.NDArray[np.uint8]]
) -> None:
    session = _open_session(file)
    distances = []
    for picture in pictures:
        expected = detector(picture)
        points, scores = _predict_points(session, picture[None], WHOLE)
        distances.append(np.abs(points - expected.xy).max())
        np.testing.assert_allclose(scores, expected.score, atol=2e-3)
    assert max(distances) < 0.05
    assert np.median(distances) < 0.005


def test_boxes_agree_with_torch(detector: Detector, file: Path, tmp_path: Path) -> None:
    pictures = generate_scene(4, 160, seed=11).images
    frame = np.concatenate([np.concatenate(pictures[:2], axis=1), np.concatenate(pictures[2:], axis=1)])
    Image.fromarray(frame).save(tmp_path / "frame.png")
    boxes = [(5.0, 8.0, 140.0, 150.0), (165.5, 3.0, 150.0, 140.0), (0.0, 170.0, 155.0, 150.0)]
    refs = [ImageRef(tmp_path / "frame.png", box=box) for box in boxes]
    (expected,) = (prediction.landmarks for prediction in detector.predict(refs))
    points, _ = _predict_points(_open_session(file), frame[None], boxes)  # several objects in one image
    np.testing.assert_allclose(points, expected.xy, atol=0.05)
    # One box applies to all images of a batch.
    points, _ = _predict_points(_open_session(file), np.stack([frame, frame[::-1]]), boxes[:1])
    np.testing.assert_allclose(points[0], expected.xy[0], atol=0.05)
    assert np.abs(points[1] - points[0]).max() > 1


def test_half_precision_is_small_and_accurate(
    detector: Detector, file: Path, pictures: list[npt.NDArray[np.uint8]], tmp_path: Path
) -> None:
    half_file = write_float16(detector, tmp_path / "half.onnx")
    assert half_file.stat().st_size < 0.6 * file.stat().st_size
    weights = [tensor for tensor in onnx.load(half_file).graph.initializer if len(tensor.dims) == 4]
    assert {tensor.data_type for tensor in weights} == {onnx.TensorProto.FLOAT16}
    float32, float16 = _open_session(file), _open_session(half_file)
    distances = []  # as fractions of the longer side
    for picture in pictures[:20]:
        expected, _ = _predict_points(float32, picture[None], WHOLE)
        predicted, _ = _predict_points(float16, picture[None], WHOLE)
        distances.append(np.abs(expected - predicted).max(axis=-1) / max(picture.shape))
    assert 0 < np.median(distances) < 0.001


def test_the_file_contains_its_metadata_and_shapes(detector: Detector, tmp_path: Path) -> None:
    names = tuple(f"point {index}" for index in range(len(detector.names)))
    network = detector.psi
    named = Detector(network, replace(detector.card, names=names, skeleton=((0, 1), (1, 2))))
    session = _open_session(write_float32(named, tmp_path / "model.onnx"))
    metadata = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(metadata["selfmark.names"])) == names
    assert json.loads(metadata["selfmark.skeleton"]) == [[0, 1], [1, 2]]
    assert tuple(json.loads(metadata["selfmark.mirror"])) == detector.card.mirror
    assert json.loads(metadata["selfmark.images"])["size"] == detector.card.images.size
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    assert shapes == {
        "images": ["images", "height", "width", 3],
        "boxes": ["boxes", 4],
        "points": ["batch", 16, 2],
        "scores": ["batch", 16],
    }


@pytest.mark.parametrize("box", [(), (20, 10, 100, 90)])
def test_the_example_needs_no_torch(
    box: tuple[int, ...], detector: Detector, file: Path, tmp_path: Path
) -> None:
    """Run the example in a process in which torch, OpenCV, SciPy, onnx and selfmark cannot be imported."""
    Image.fromarray(generate_scene(1, 150, seed=2).images[0]).save(tmp_path / "photo.png")
    program = "import runpy, sys\n"
    program += "for name in ('torch', 'cv2', 'scipy', 'selfmark', 'onnx'): sys.modules[name] = None\n"
    program += f"sys.argv = sys.argv[1:]; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    command = [
        sys.executable,
        "-c",
        program,
        "example",
        str(file),
        str(tmp_path / "photo.png"),
        *map(str, box),
    ]
    result = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
    assert result.stderr == ""
    rows = [line.rsplit(" ", 3) for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == list(detector.names)
    ref = ImageRef(tmp_path / "photo.png", box=tuple(map(float, box)) if box else None)
    (expected,) = (prediction.landmarks for prediction in detector.predict([ref]))
    np.testing.assert_allclose([[float(x), float(y)] for _, x, y, _ in rows], expected.xy[0], atol=0.06)


def test_the_example_is_short() -> None:
    code = EXAMPLE.read_text().split('"""')[2]
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) <= 10
