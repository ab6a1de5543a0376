"""Implement `selfmark demo`: run the whole pipeline on generated pictures with exact landmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfmark.config import DEFAULT_FEATURES
from selfmark.demo.scene import generate_scene, write_scene
from selfmark.discovery import discover
from selfmark.errors import InputError, TrainingError
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.evaluation.run_models import RunModels
from selfmark.report.run_report import build_report
from selfmark.run.folder import Listener, Run

TRAIN_IMAGES, TEST_IMAGES, SIZE = 750, 200, 96
TRAIN_SEED, TEST_SEED = 1, 2
REQUIRED_FACTOR = 2.0  # The error of the mean shape must be at least this many times that of the landmarks.

# Changes to the preset `tiny`: pretrained features are used. To keep the demo below five minutes on two CPU
# cores, images are fewer and smaller than usual for features, and rounds are shorter.
SETTINGS: dict[str, Any] = {
    "K": 16,
    "M": 48,
    "images.size": 192,
    "features.name": DEFAULT_FEATURES,
    "features.max_images": 300,
    "student.iterations": 150,
    "evaluation.num_samples": 80,
}


@dataclass(frozen=True)
class DemoResult:
    """Errors of the demo, in percent of the object's size, and the path of its report.

    Attributes:
        forward: Error of predicting the true points from the landmarks.
        backward: Error of predicting the landmarks from the true points.
        mean_shape: Forward error of always predicting the mean shape.
        mean_shape_backward: Backward error of always predicting the mean shape.
        report: Path of the report.
    """

    forward: float
    backward: float
    mean_shape: float
    mean_shape_backward: float
    report: Path

    def require_useful(self) -> None:
        """Raise if the landmarks are not clearly better than the mean shape."""
        if not self.forward * REQUIRED_FACTOR <= self.mean_shape:
            raise TrainingError(
                f"the demo failed: the forward error is {self.forward:.2f} %, but must be at most "
                f"1/{REQUIRED_FACTOR:g} of the error of the mean shape, which is {self.mean_shape:.2f} %"
            )


def run_demo(output: Path, device: str, listener: Listener | None) -> DemoResult:
    """Generate the data set, discover its landmarks without labels, and compare them with the true points.

    Args:
        output: Folder for the data and the run, new or empty.
        device: `auto`, `cpu`, `cuda`, ...
        listener: Called with every log event.

    Raises:
        InputError: If the folder is not empty.
    """
    if output.exists() and any(output.iterdir()):
        raise InputError(f"{output} is not empty; remove it or choose another folder with --output")
    data, folder = output / "data", output / "run"
    write_scene(generate_scene(TRAIN_IMAGES, SIZE, TRAIN_SEED), data / "train")
    write_scene(generate_scene(TEST_IMAGES, SIZE, TEST_SEED), data / "test")
    detector = discover(
        data / "train" / "images",
        output=folder,
        preset="tiny",
        settings=SETTINGS,
        device=device,
        listener=listener,
    )
    result = measure_errors(folder, data, device)
    build_report(RunModels.of(Run.open(folder), detector))
    return result


def measure_errors(run: Path, data: Path, device: str) -> DemoResult:
    """Measure the errors on the test pictures, with regressors fitted on the training pictures.

    Hidden points are ignored, because the pictures do not show where they are.
    """
    metrics = evaluate_run(
        run,
        EvaluationInputs(
            data / "test" / "images",
            data / "test" / "labels.json",
            data / "train" / "images",
            data / "train" / "labels.json",
        ),
        EvaluationOptions(settings={"min_visibility": 2}),
        device=device,
    )
    headline, guessing = metrics["headline"], metrics["guessing"]
    return DemoResult(
        forward=headline["forward"]["error"],
        backward=headline["backward"]["error"],
        mean_shape=guessing["forward"],
        mean_shape_backward=guessing["backward"],
        report=run / "report" / "index.html",
    )
