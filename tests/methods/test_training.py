"""Test that each method of another paper trains on generated images, beats the mean shape and resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import cv2
import numpy as np
import onnxruntime
import pytest
import torch

from selfmark.config import Config, Method, override, settings_of_method
from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.errors import InputError
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.export.onnx_export import write_float32
from selfmark.methods.method_registry import METHODS
from selfmark.methods.training import _plan_frame_pairs
from selfmark.model.soft_argmax import EmbeddingPsi, SoftArgmaxPsi, mean_positions, to_distributions
from tests.conftest import QUICK

_SMALL: dict[str, Any] = QUICK | {
    "K": 6,
    "methods.batch": 8,
    "runtime.checkpoint_every": 4,
    "zhang2018.side": 32,
    "autolink.size": 32,
    "autolink.perceptual_size": 64,
}
_DISCS = np.array([[20.0, 20.0], [44.0, 20.0], [32.0, 32.0], [20.0, 44.0], [44.0, 44.0]])
_COLORS = [(230, 40, 40), (40, 200, 40), (250, 250, 250), (40, 60, 230), (20, 20, 20)]
# mallis2020 also has a Stage 1, which must learn before Stage 2 finds useful landmarks.
_LEARNING: dict[str, Any] = {
    "M": 12,
    "heatmaps.threshold": 0.1,
    "correspondence.iterations": 20,
    "rounds.count": 3,
    "rounds.iterations": 60,
    "runtime.batch": 6,
    "stage2.batch": 8,
    "runtime.checkpoint_every": 100,
}
_NAMES = sorted({*METHODS, "mallis2020"})
# Iterations until the error is below that of guessing; other methods need 200.
_ITERATIONS = {
    "mallis2020": 120,
    "jakab2018": 600,
    "autolink": 400,
    "lorenz2019": 300,
}


def _write_discs(folder: Path, count: int, seed: int) -> None:
    """Write images of five discs of different colors. The discs move together, and slightly on their own."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    images, annotations = [], []
    for index in range(count):
        xy = _DISCS + rng.normal(0, 6, 2) + rng.normal(0, 2, (5, 2))
        image = rng.integers(90, 110, (64, 64, 3)).astype(np.uint8)
        for center, color in zip(xy.round().astype(int), _COLORS, strict=True):
            cv2.circle(image, (int(center[0]), int(center[1])), 5, color, -1)
        cv2.imwrite(str(folder / "images" / f"{index:03d}.png"), image)
        images.append({"id": index, "file_name": f"{index:03d}.png", "width": 64, "height": 64})
        points = [value for x, y in xy for value in (float(x), float(y), 2)]
        annotations.append(
            {"id": index, "image_id": index, "category_id": 1, "keypoints": points, "bbox": [8, 8, 48, 48]}
        )
    names = [f"disc {number}" for number in range(5)]
    category = {"id": 1, "name": "discs", "keypoints": names}
    content = {"images": images, "annotations": annotations, "categories": [category]}
    (folder / "labels.json").write_text(json.dumps(content))


def _discover(
    photos: Path,
    output: Path,
    method: Method,
    iterations: int,
    changes: dict[str, Any] | None = None,
    **more: Any,
) -> Detector:
    settings = {
        **_SMALL,
        "methods.iterations": iterations,
        "stage2.iterations": iterations,
        **(changes or {}),
    }
    return discover(
        photos, output=output, preset="tiny", settings=settings, device="cpu", method=method, **more
    )


def test_every_name_has_a_method() -> None:
    assert {*_NAMES, "self-training", "zero-shot"} == set(get_args(Method))


@pytest.mark.parametrize("method", _NAMES)
def test_a_method_trains_resumes_and_predicts(
    method: Method, labeled: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "train" and event["stage"] in ("method", "stage 2") and event["iteration"] == 6:
            raise KeyboardInterrupt

    photos, uninterrupted, interrupted = labeled / "images", tmp_path / "whole", tmp_path / "parts"
    detector = _discover(photos, uninterrupted, method, iterations=8)
    request.getfixturevalue("without_report")
    with pytest.raises(KeyboardInterrupt):
        _discover(photos, interrupted, method, iterations=8, listener=interrupt)
    resumed = discover(output=interrupted, resume=True, device="cpu")
    weights, resumed_weights = detector.psi.state_dict(), resumed.psi.state_dict()
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)
    # A saved detector gives the same landmarks, and the run can be evaluated.
    image = sorted(photos.iterdir())[0]
    np.testing.assert_allclose(Detector.load(uninterrupted)(image).xy, detector(image).xy, atol=1e-3)
    assert detector.card.provenance["method"] == method
    assert (uninterrupted / "report" / "index.html").exists()
    inputs = EvaluationInputs(photos, labeled / "labels.json")
    metrics = evaluate_run(uninterrupted, inputs, EvaluationOptions(settings={"fit_images": [], "draws": 1}))
    assert np.isfinite(metrics["headline"]["forward"]["error"])


@pytest.mark.slow
@pytest.mark.parametrize("method", _NAMES)
def test_a_method_beats_the_mean_shape(method: Method, tmp_path: Path) -> None:
    for name, count, seed in (("train", 120, 1), ("test", 60, 2)):
        _write_discs(tmp_path / name, count, seed)
    run = tmp_path / "run"
    # QUICK sets the depth of the hourglass. A method with a depth of its own must keep it.
    own_settings = {
        name: value for name, value in settings_of_method(method).items() if name == "network.depth"
    }
    _discover(
        tmp_path / "train" / "images", run, method, _ITERATIONS.get(method, 200), _LEARNING | own_settings
    )
    inputs = EvaluationInputs(
        tmp_path / "test" / "images",
        tmp_path / "test" / "labels.json",
        tmp_path / "train" / "images",
        tmp_path / "train" / "labels.json",
    )
    metrics = evaluate_run(run, inputs, EvaluationOptions(settings={"fit_images": [], "draws": 1}))
    assert metrics["headline"]["forward"]["error"] < 0.9 * metrics["guessing"]["forward"]
    # The landmarks are not all at one place.
    xy = Detector.load(run)(sorted((tmp_path / "test" / "images").iterdir())[0]).xy
    assert np.ptp(xy[0], axis=0).max() > 6


@pytest.mark.parametrize("kind", ["space", "axes", "channels", "embedding", "no hourglass"])
def test_onnx_gives_the_same_landmarks(kind: Any, quick_run: Path, tmp_path: Path) -> None:
    base = Detector.load(quick_run)
    torch.manual_seed(0)
    card = replace(base.card, refine="centroid", flip_test=False)
    if kind == "no hourglass":
        card, kind = replace(card, network=replace(card.network, depth=0)), "space"
    if kind == "embedding":
        psi: SoftArgmaxPsi = EmbeddingPsi(card.network, len(base.names))
        psi.references.copy_(20 * torch.randn_like(psi.references))
        detector = Detector(psi, replace(card, architecture="embedding"))
    else:
        psi = SoftArgmaxPsi(card.network, len(base.names), kind)
        detector = Detector(psi, replace(card, architecture="soft-argmax", softmax=kind))
    path = write_float32(detector, tmp_path / "model.onnx")
    image = np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    boxes = np.zeros((1, 4), np.float32)
    points, _ = session.run(["points", "scores"], {"images": image[None], "boxes": boxes})
    np.testing.assert_allclose(points[0], detector(image).xy[0], atol=0.05)


@pytest.mark.parametrize("softmax", ["space", "axes", "channels"])
def test_mean_positions_are_the_means_of_the_distributions(softmax: Any) -> None:
    scores = 3 * torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    distributions = to_distributions(scores, softmax)
    landmarks = 3 if softmax == "channels" else 4  # the last channel is the background
    torch.testing.assert_close(distributions.sum((2, 3)), torch.ones(2, landmarks))
    centers = (torch.arange(8) + 0.5) / 4 - 1  # a side from -1 to 1 has 8 cells
    for image in range(2):
        for landmark, p in enumerate(distributions[image]):
            x = sum(float(p[row, column]) * float(centers[column]) for row in range(8) for column in range(8))
            y = sum(float(p[row, column]) * float(centers[row]) for row in range(8) for column in range(8))
            mean = mean_positions(distributions)[image, landmark].tolist()
            assert mean == pytest.approx([x, y], abs=1e-5)


def test_frames_are_paired_within_their_video() -> None:
    video = np.array([-1, 3, 3, 3, 5, 5])
    find_others = _plan_frame_pairs(video, seed=0)  # row 0 is a still image
    rows = np.arange(6).repeat(50)
    other_rows = find_others(rows, 7)
    assert (video[other_rows] == video[rows]).all()
    assert (other_rows[rows == 0] == 0).all()
    assert set(other_rows[rows == 1]) == {1, 2, 3}
    assert np.array_equal(other_rows, find_others(rows, 7))


def test_other_methods_refuse_features_and_an_automatic_number_of_landmarks() -> None:
    config = override(Config(), {"method": "equivariance"})
    with pytest.raises(InputError, match="does not use features"):
        override(config, {"features.name": "efficientnet-lite0"})
    with pytest.raises(InputError, match="give it with -k"):
        override(config, {"K": 0})
