"""Test `selfmark evaluate`, from the command line to metrics.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor
from typer.testing import CliRunner

from selfmark.cli.entry import app
from selfmark.detector import Detector, NetworkLandmarks
from selfmark.discovery import discover
from selfmark.errors import InputError
from selfmark.evaluation import detector_precision, run_evaluation
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.points import Keypoints
from selfmark.run.folder import Run
from tests.conftest import QUICK

SIDE = 64  # pixels; images and the network's input have the same side, so that coordinates are the same


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with two landmarks; it is too short to learn anything."""
    output = tmp_path_factory.mktemp("study") / "run"
    discover(photos, output=output, preset="tiny", settings=QUICK | {"K": 2, "M": 6}, device="cpu")
    return output


@pytest.fixture
def known_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace prediction: landmark 0 is at (red value of the first pixel, 40), landmark 1 at (50, 40)."""

    def locate(self: Detector, pixels: Tensor) -> NetworkLandmarks:
        x = pixels[:, 0, 0, 0].float()
        y = torch.full_like(x, 40.0)
        first = torch.stack([x, y], dim=-1)
        second = torch.stack([torch.full_like(x, 50.0), y], dim=-1)
        return NetworkLandmarks(torch.stack([first, second], dim=1), torch.ones(len(x), 2))

    monkeypatch.setattr(Detector, "locate", locate)


def _write_images_and_labels(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    """Write images and their COCO file, and return the path of the file.

    Each row describes an image: its first pixel has the value row["landmark"], point a is at (row["a"], 40),
    and point b is at (50, 40), or not annotated if row["b"] is False.
    """
    image_folder = folder / name
    image_folder.mkdir(parents=True)
    images, annotations = [], []
    for number, row in enumerate(rows):
        picture = np.random.default_rng(number).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
        picture[0, 0] = row["landmark"]
        cv2.imwrite(str(image_folder / f"{number}.png"), picture)
        images.append({"id": number, "file_name": f"{number}.png", "width": SIDE, "height": SIDE})
        b = [50, 40, 2] if row.get("b", True) else [0, 0, 0]
        annotations.append(
            {
                "id": number,
                "image_id": number,
                "keypoints": [row["a"], 40, 2, *b],
                "bbox": [0, 0, 32, 32],
                "pose": row.get("pose", "front"),
                "angle": float(number),
                **row.get("fields", {}),
            }
        )
    labels = folder / f"{name}.json"
    category = {"id": 1, "name": "toy", "keypoints": ["a", "b"]}
    labels.write_text(json.dumps({"images": images, "annotations": annotations, "categories": [category]}))
    return labels


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Training and test images in which point a is at 1.5 times the x of landmark 0."""
    _write_images_and_labels(
        tmp_path, "train", [{"landmark": 10, "a": 15}, {"landmark": 20, "a": 30}, {"landmark": 30, "a": 45}]
    )
    _write_images_and_labels(
        tmp_path,
        "test",
        [{"landmark": 24, "a": 36, "pose": "left"}, {"landmark": 16, "a": 24, "b": False, "pose": "right"}],
    )
    return tmp_path


def _evaluate(run: Path, toy: Path, *options: str) -> dict[str, Any]:
    arguments = ["evaluate", str(run), str(toy / "test"), "--labels", str(toy / "test.json")]
    arguments += ["--train-images", str(toy / "train"), "--train-labels", str(toy / "train.json")]
    result = CliRunner().invoke(app, [*arguments, "--output", str(toy / "out"), "--device", "cpu", *options])
    assert result.exit_code == 0, result.output
    metrics: dict[str, Any] = json.loads((toy / "out" / "metrics.json").read_text())
    assert (toy / "out" / "report" / "index.html").exists()
    return metrics


def _collect_errors_by_regressor(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the errors of each regressor fitted on all training images, not on random draws of them."""
    return {row["regressor"]: row for row in metrics["errors"] if row["all"]}


def test_every_metric_matches_a_hand_computed_case(run: Path, toy: Path, known_landmarks: None) -> None:
    """Errors are percentages of the side of 64 pixels.

    Forward: in the training images, x of landmark 0 has mean 20 and that of a has mean 30. With centered
    coordinates, X'X = 200 and X'Y = 300. With ridge r, the slope is 300 / (200 + 200 r) = 1.5 / (1 + r).
    In the test images, landmark 0 is at 24 and 16, and a is at 36 and 24. So the error of a is
    e = 6 - 6 / (1 + r) in both. b never moves and has no error. The first image shows both points
    (mean e / 2), the second only a (mean e), so the mean over both images is 0.75 e.

    Backward: a has X'X = 450, so the slope is 300 / 450 / (1 + r), and the error of landmark 0 is
    4 - 4 / (1 + r). Landmark 1 never moves, so the mean is half of that.
    """
    metrics = _evaluate(run, toy, "--normalizer", "side")
    by_regressor = _collect_errors_by_regressor(metrics)
    for ridge in (0.1, 0.01, 0.001, 0.0):
        row = by_regressor[f"ridge {ridge:g}"]
        assert row["forward"]["mean"] == pytest.approx(
            100 * 0.75 * (6 - 6 / (1 + ridge)) / 64, rel=1e-9, abs=1e-9
        )
        assert row["backward"]["mean"] == pytest.approx(
            100 * 0.5 * (4 - 4 / (1 + ridge)) / 64, rel=1e-9, abs=1e-9
        )
    # Without a bias, the forward error is 0: x of a is exactly 1.5 times x of landmark 0, and a constant
    # coordinate of a landmark serves as the bias of the other targets, which are constant.
    assert by_regressor["no bias"]["forward"]["mean"] == pytest.approx(0, abs=1e-9)
    # If the mean shape is guessed, the error of a is 6 in both images, and that of landmark 0 is 4.
    assert metrics["guessing"]["forward"] == pytest.approx(100 * 0.75 * 6 / 64, abs=1e-9)
    assert metrics["guessing"]["backward"] == pytest.approx(100 * 0.5 * 4 / 64, abs=1e-9)

    error = 100 * (6 - 6 / 1.01) / 64  # the error of a; the headline uses the ridge 0.01
    assert metrics["headline"]["forward"]["by_point"] == pytest.approx([error, 0], abs=1e-9)
    assert metrics["headline"]["forward"]["cumulative"] == pytest.approx([0, error / 2], abs=1e-9)
    # Raw landmarks: in the training images, landmark 0 is 5, 10 and 15 pixels from a, and landmark 1 is on b.
    # A hit is within 6 pixels at a side of 128, so within 3 pixels here. In the test images, landmark 0
    # misses a by 12 and 8 pixels, and landmark 1 hits b.
    assert metrics["matched"] == [0, 1]
    (hits,) = metrics["raw"].values()
    assert hits["by_point"] == [0, 100]
    assert hits["average"] == 50
    # Points predicted by the regression: the error of a is 0.06 pixels.
    (hits,) = metrics["regressed"].values()
    assert hits["by_point"] == [100, 100]


def test_errors_are_divided_by_the_normalizer(run: Path, toy: Path, known_landmarks: None) -> None:
    side = _evaluate(run, toy, "--normalizer", "side")["guessing"]["forward"]
    bbox = _evaluate(run, toy, "--normalizer", "bbox")["guessing"]["forward"]
    assert bbox == pytest.approx(2 * side)  # the annotated boxes have half the side of the image


def test_errors_are_averaged_by_field(run: Path, toy: Path, known_landmarks: None) -> None:
    metrics = _evaluate(run, toy, "--normalizer", "side", "--by", "pose", "--by", "angle")
    error = 100 * (6 - 6 / 1.01) / 64
    # The backward error is half of 4 - 4 / 1.01 pixels, a third of the error of a: see the hand-computed case
    # above. Guessing misses a by 6 pixels, and landmark 0 by 4.
    mean_shape_error = 100 * 6 / 64
    assert metrics["by"]["pose"] == {
        name: {
            "images": 1,
            "forward": pytest.approx(share * error),
            "backward": pytest.approx(error / 3),
            "guessing_forward": pytest.approx(share * mean_shape_error),
            "guessing_backward": pytest.approx(mean_shape_error / 3),
        }
        for name, share in (("left", 1 / 2), ("right", 1))
    }
    assert list(metrics["by"]["angle"]) == ["0.0", "1.0"]


@pytest.mark.parametrize(
    ("start", "step", "names"),
    [
        (0, 1, ["0 to 3.75", "3.75 to 7.5", "7.5 to 11.2", "11.2 to 15"]),
        (10_000, 4, ["10000 to 10015", "10015 to 10030", "10030 to 10045", "10045 to 10060"]),
        (2000, 1, ["2000 to 2003.75", "2003.75 to 2007.5", "2007.5 to 2011.25", "2011.25 to 2015"]),
        (1_700_000_000, 5_000, None),
        (1e-300, 1e-306, None),
        (-3, 1e-15, None),
    ],
)
def test_numbers_are_grouped_by_quartile(
    start: float, step: float, names: list[str] | None, run: Path, toy: Path, known_landmarks: None
) -> None:
    """Quartiles stay separate, however close to each other their limits are."""
    rows = [
        {"landmark": 10 + number, "a": 20, "fields": {"value": start + step * number}} for number in range(16)
    ]
    _write_images_and_labels(toy / "many", "test", rows)
    for path in (toy / "train", toy / "train.json"):
        path.rename(toy / "many" / path.name)
    groups = _evaluate(run, toy / "many", "--normalizer", "side", "--by", "value")["by"]["value"]
    assert [group["images"] for group in groups.values()] == [4, 4, 4, 4]
    if names is not None:
        assert list(groups) == names
    limits = [name.split(" to ") for name in groups]
    assert [high for _, high in limits[:-1]] == [low for low, _ in limits[1:]]


def test_one_label_file_is_split_in_half(run: Path, toy: Path, known_landmarks: None) -> None:
    metrics = evaluate_run(
        run,
        EvaluationInputs(toy / "train", toy / "train.json"),
        EvaluationOptions(normalizer="side"),
        output=toy / "out",
        device="cpu",
    )
    assert (metrics["train_images_used"], metrics["test_images_used"]) == (1, 2)
    assert "half" in metrics["notes"][-1]


def test_across_data_sets_only_common_points_count(run: Path, toy: Path, known_landmarks: None) -> None:
    labels = json.loads((toy / "train.json").read_text())
    labels["categories"][0]["keypoints"] = ["c", "a"]
    for annotation in labels["annotations"]:
        x, y, v, *_ = annotation["keypoints"]
        annotation["keypoints"] = [1, 1, 2, x, y, v]
    (toy / "train.json").write_text(json.dumps(labels))
    metrics = _evaluate(run, toy, "--normalizer", "side")
    assert metrics["points"] == ["a"]
    error = 100 * (6 - 6 / 1.1) / 64
    assert _collect_errors_by_regressor(metrics)["ridge 0.1"]["forward"]["mean"] == pytest.approx(
        error, rel=1e-9
    )


def test_without_labels_the_landmarks_are_ranked(run: Path, photos: Path, tmp_path: Path) -> None:
    metrics = evaluate_run(run, EvaluationInputs(photos), output=tmp_path, device="cpu")
    assert "headline" not in metrics
    assert sorted(metrics["unlabelled"]["order"]) == [0, 1]
    assert all(0 <= value <= 1 for value in metrics["unlabelled"]["trust"])
    with pytest.raises(InputError, match="--labels"):
        evaluate_run(run, EvaluationInputs(photos), EvaluationOptions(by=["pose"]), tmp_path, "cpu")


def test_mirroring_at_test_time_can_be_switched_off(run: Path, toy: Path, tmp_path: Path) -> None:
    """flip=never gives the result of a detector that never flips, which differs from the default result."""
    with_flip = _evaluate(run, toy, "--normalizer", "side")
    without_flip = _evaluate(run, toy, "--normalizer", "side", "--set", "flip=never")
    never_flips = tmp_path / "never_flips"
    shutil.copytree(run, never_flips)
    shutil.rmtree(never_flips / "predictions")
    card = json.loads((never_flips / "model" / "model.json").read_text())
    (never_flips / "model" / "model.json").write_text(json.dumps(card | {"flip_test": False}))
    expected = _evaluate(never_flips, toy, "--normalizer", "side")
    assert without_flip["headline"] == expected["headline"]
    assert without_flip["headline"] != with_flip["headline"]
    assert without_flip["stage1"] == with_flip["stage1"]


def test_random_draws_and_the_precision_of_keypoint_detectors_are_listed(
    run: Path, toy: Path, known_landmarks: None
) -> None:
    metrics = _evaluate(
        run, toy, "--normalizer", "side", "--set", "fit_images=[2]", "--set", "draws=4", "--detectors", "orb"
    )
    draws_by_images = {(row["images"], row["forward"]["draws"]) for row in metrics["errors"]}
    assert draws_by_images == {(2, 4), (3, 1)}
    assert [(curve["images"], curve["draws"]) for curve in metrics["curves"]] == [(2, 4)]
    assert set(metrics["precision"]) == {"orb"}


def test_without_keypoints_on_labeled_images_the_precision_is_null(
    run: Path, toy: Path, known_landmarks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The labeled images are training images, but neither the run nor ORB has found keypoints in them."""
    no_keypoints = Keypoints(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    monkeypatch.setattr(detector_precision, "detect_first_keypoints", lambda *_: no_keypoints)
    monkeypatch.setattr(Run, "load_or_compute_keypoints", lambda *_: no_keypoints)
    monkeypatch.setattr(Run, "refs", lambda _: list_images([toy / "train"]))
    # The run stores the sizes of other images, with which the report would compare these.
    monkeypatch.setattr(
        "selfmark.report.run_report.load_run_images",
        lambda _, refs, images: load_store(refs, images, float("inf"), None),
    )
    metrics = _evaluate(run, toy, "--normalizer", "side", "--detectors", "orb")
    assert metrics["precision"] == {"selfmark, outliers removed": None, "orb": None}
    assert metrics["headline"]["forward"]["error"] > 0


def test_the_smallest_allowed_numbers_can_be_evaluated(run: Path, toy: Path, known_landmarks: None) -> None:
    smallest_settings = {
        "draws": 1,
        "num_samples": 1,
        "max_curve_error": 0.001,
        "fit_images": "[1]",
        "hit_side": 1,
    }
    options = [word for name, value in smallest_settings.items() for word in ("--set", f"{name}={value}")]
    metrics = _evaluate(run, toy, "--normalizer", "side", *options)
    assert metrics["unlabelled"]["images"] == 1
    assert len(metrics["curves"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--normalizer", "nose"], "nose"),
        (["--normalizer", "side", "--by", "color"], "no field 'color'"),
        (["--normalizer", "inter_ocular"], "does not name the points"),
        # Unlike "bbox", "box" is the box around the visible points. Here the points lie on a line.
        (["--normalizer", "box"], "annotations[0]"),
        (["--normalizer", "side", "--set", "draws=often"], "draws"),
        (["--normalizer", "side", "--set", "draws=0"], "evaluation.draws must be between 1 and"),
        (["--normalizer", "side", "--detectors", "eyes"], "detector"),
    ],
)
def test_invalid_options_are_input_errors(
    run: Path, toy: Path, known_landmarks: None, options: list[str], message: str
) -> None:
    arguments = ["evaluate", str(run), str(toy / "test"), "--labels", str(toy / "test.json"), *options]
    arguments += ["--train-images", str(toy / "train"), "--train-labels", str(toy / "train.json")]
    result = CliRunner().invoke(app, [*arguments, "--output", str(toy / "out")])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_regressions_use_one_thread(
    run: Path, toy: Path, known_landmarks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def record(*_: Any) -> dict[str, Any]:
        threads.extend(library["num_threads"] for library in threadpool_info() if _is_blas(library))
        raise InputError("stop here")

    monkeypatch.setattr(run_evaluation, "_measure", record)
    with threadpool_limits(2, user_api="blas"):
        inputs = EvaluationInputs(toy / "train", toy / "train.json")
        with pytest.raises(InputError, match="stop here"):
            evaluate_run(run, inputs, EvaluationOptions(normalizer="side"), tmp_path, "cpu")
        after = [library["num_threads"] for library in threadpool_info() if _is_blas(library)]
    assert threads
    assert set(threads) == {1}
    assert set(after) == {2}


def _is_blas(library: dict[str, Any]) -> bool:
    return bool(library["user_api"] == "blas")
