"""`selfmark demo`: the whole pipeline on generated pictures whose landmarks are known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfmark.demo.scene import Scene, generate, write
from selfmark.detector import Detector
from selfmark.errors import InputError, TrainingError
from selfmark.evaluate import backward_nme, box_normaliser, forward_nme, mean_shape_nme
from selfmark.pipeline import discover
from selfmark.points import FloatArray
from selfmark.report.build import report_on_run
from selfmark.run import Listener, Run, write_json

TRAIN_IMAGES, TEST_IMAGES, SIZE = 750, 200, 96
TRAIN_SEED, TEST_SEED = 1, 2
RIDGE = 1e-2  # of the regressors that judge the landmarks
REQUIRED_FACTOR = 2.0  # landmarks must be this many times better than the mean shape

# The preset tiny at a smaller size, so that two CPU cores are done in under six minutes.
SETTINGS: dict[str, Any] = {
    "K": 16,
    "M": 48,
    "images.size": SIZE,
    "network.depth": 3,
    "heatmaps.nms_radius": 1,
    "loss.negative_distance": 2.5,
    "warmup.iterations": 270,
    "rounds.count": 2,
    "rounds.iterations": 150,
    "stage2.iterations": 250,
}


@dataclass(frozen=True)
class DemoResult:
    """Errors in percent of the object's size, and where the report is."""

    forward: float
    backward: float
    mean_shape: float
    mean_shape_backward: float
    report: Path

    def require_useful(self) -> None:
        """Fail loudly if the landmarks are not clearly better than guessing."""
        if not self.forward * REQUIRED_FACTOR <= self.mean_shape:
            raise TrainingError(
                f"the demo failed: forward error {self.forward:.2f} is not {REQUIRED_FACTOR:g} times better "
                f"than the mean shape's {self.mean_shape:.2f}"
            )


def run_demo(output: Path, device: str, listener: Listener | None) -> DemoResult:
    """Draw the data set, discover its landmarks without looking at the truth, then compare with the truth."""
    if output.exists() and any(output.iterdir()):
        raise InputError(f"{output} is not empty: remove it or choose another folder with --output")
    train = generate(TRAIN_IMAGES, SIZE, TRAIN_SEED)
    write(train, output / "data")
    detector = discover(
        output / "data" / "images",
        output=output / "run",
        preset="tiny",
        settings=SETTINGS,
        device=device,
        listener=listener,
    )
    test = generate(TEST_IMAGES, SIZE, TEST_SEED)
    result = judge(detector, train, test, output / "run" / "report" / "index.html")
    run = Run.open(output / "run", listener)
    write_json({"figures": figures(result)}, run.path / "metrics.json")
    report_on_run(run, detector)
    return result


def judge(detector: Detector, train: Scene, test: Scene, report: Path) -> DemoResult:
    """Forward and backward error on the test pictures, regressors fitted on the training pictures."""
    found_train, found_test = _landmarks(detector, train), _landmarks(detector, test)
    size = box_normaliser(test.xy, np.ones_like(test.visible))
    common = (train.xy, found_test, test.xy, test.visible, size, RIDGE, train.visible)
    # Guessing, backwards: the discovered landmarks' own mean, whatever the annotated points say.
    everywhere = np.ones(found_test.shape[:2], bool)
    return DemoResult(
        forward=forward_nme(found_train, *common),
        backward=backward_nme(found_train, *common),
        mean_shape=mean_shape_nme(train.xy, train.visible, test.xy, test.visible, size),
        mean_shape_backward=mean_shape_nme(
            found_train, np.ones(found_train.shape[:2], bool), found_test, everywhere, size
        ),
        report=report,
    )


def _landmarks(detector: Detector, scene: Scene) -> FloatArray:
    pixels = torch.from_numpy(scene.images).permute(0, 3, 1, 2)
    return np.concatenate([detector.locate(part).xy.cpu().numpy() for part in torch.split(pixels, 64)])


def figures(result: DemoResult) -> list[tuple[str, str, str]]:
    """The result as the report's headline figures."""
    return [
        (
            "Forward error",
            f"{result.forward:.2f} %",
            "How far a linear map from the discovered landmarks lands from the true points, "
            f"in percent of the object's size; guessing the mean shape gives {result.mean_shape:.2f} %.",
        ),
        (
            "Backward error",
            f"{result.backward:.2f} %",
            "The same from the true points to the discovered landmarks: low if no landmark wanders; "
            f"guessing their mean gives {result.mean_shape_backward:.2f} %.",
        ),
    ]
