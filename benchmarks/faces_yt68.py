"""Discover and evaluate landmarks on faces-yt68, for one row of docs/results/faces_yt68.json.

    python benchmarks/faces_yt68.py DATA --out row.json --run runs/yt68 -- --preset fast --detector superpoint

DATA is the unzipped data set (images/train, images/test, train.json, test.json). The script passes everything
after `--` to `selfmark discover`. `--images N` discovers landmarks in N evenly spaced training images only.
Errors are in percent of the square root of the area of the annotated box. Regressors are fitted on all
training images.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from selfmark.detector import Detector
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.report.landmark_pictures import draw_contact_sheet
from selfmark.run.files import write_json
from selfmark.run.folder import Run


def main() -> None:
    """Discover, evaluate and write the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--images", type=int, default=0, help="number of training images; 0: all")
    arguments, options = parser.parse_known_args()
    options = [option for option in options if option != "--"]

    folder = arguments.data / "images" / "train"
    inputs = [str(folder)]
    if arguments.images:
        paths = sorted(folder.iterdir())
        chosen = np.linspace(0, len(paths) - 1, arguments.images).astype(int)
        inputs = [str(paths[index]) for index in chosen]
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "selfmark", "discover", *inputs, "-o", str(arguments.run), *options],
        check=True,
    )
    minutes = (time.monotonic() - started) / 60
    row = measure(arguments.data, arguments.run) | {
        "minutes": round(minutes, 2),
        "options": options,
        "hardware": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {platform.processor()}",
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    }
    write_json(row, arguments.out)
    print(json.dumps(row))


def measure(data: Path, run: Path) -> dict[str, Any]:
    """Evaluate a finished run and draw 24 of its test images in `test_faces.png` in the run folder."""
    metrics = evaluate_run(
        run,
        EvaluationInputs(data / "images", data / "test.json", train_labels=data / "train.json"),
        EvaluationOptions(by=["yaw_bucket"]),
    )
    errors = {"mean_shape": metrics["guessing"]["forward"]}
    for row in metrics["errors"]:
        # "all" is True for regressors that are fitted on all training images.
        if row["all"] and row["regressor"].startswith("ridge"):
            name = row["regressor"].removeprefix("ridge ")
            errors |= {f"forward_{name}": row["forward"]["mean"], f"backward_{name}": row["backward"]["mean"]}
    paths = sorted((data / "images" / "test").iterdir())
    pictures = np.stack([cv2.imread(str(path))[..., ::-1] for path in paths[::32][:24]])
    points = Detector.load(run)([np.ascontiguousarray(picture) for picture in pictures])
    cv2.imwrite(str(run / "test_faces.png"), draw_contact_sheet(pictures, points.xy, 8)[..., ::-1])
    config = Run.open(run).config
    return {
        "data": "faces-yt68",
        "k": config.K,
        "m": config.M,
        "keypoints": config.keypoints.detector,
        "preset": config.preset,
        "seed": config.seed,
        "images": len(Run.open(run).refs()),
        **{name: round(value, 3) for name, value in errors.items()},
    }


if __name__ == "__main__":
    main()
