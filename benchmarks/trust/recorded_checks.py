"""Repeat the checks across individuals on the landmarks that `calibration_runs.py` recorded.

    PYTHONPATH=src:benchmarks:benchmarks/quality:benchmarks/features \
        python benchmarks/trust/recorded_checks.py DATA WORK OUT

Run the script after changing a check, instead of making all runs again. DATA, WORK and OUT are those of
`calibration_runs.py`. The results replace those in OUT/*.json.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calibration_runs import NUM_LANDMARKS, find_parts

from selfmark.config import from_dict
from selfmark.evaluation.individuals import check_individuals
from selfmark.evaluation.protocol import to_json_list, to_json_number
from selfmark.image_ref import ImageRef
from selfmark.images.store import load_store
from selfmark.run.files import read_json, write_json

PER_LANDMARK = ("purity", "constellation", "unexplained", "appearance_error", "spread")


def main() -> None:
    """Repeat the checks of all runs of a folder."""
    data, work, out = (Path(argument) for argument in sys.argv[1:4])
    for name in NUM_LANDMARKS:
        find_parts(name, data, work)  # unzips the data set into WORK
    for path in sorted(out.glob("*.npz")):
        run = read_json(path.with_suffix(".json"))
        if "error" not in run:
            run["checks"] |= repeat_checks(path, run, work)
            write_json(run, path.with_suffix(".json"))
            print(path.stem, run["forward_share"], run["checks"]["kind_separation"], flush=True)


def repeat_checks(path: Path, run: dict[str, Any], work: Path) -> dict[str, Any]:
    """Return the repeated checks of one run.

    Args:
        path: .npz file of the recorded landmarks.
        run: content of the run's JSON file.
        work: folder of the unzipped data.
    """
    recorded = np.load(path)
    refs = [_parse_ref(name, work) for name in recorded["names"]]
    config = from_dict(run["config"])
    store = load_store(refs, config.images, float("inf"), None)
    checks = check_individuals(recorded["xy"].astype(np.float64), store.pixels, config, torch.device("cpu"))
    return {name: to_json_list(getattr(checks, name)) for name in PER_LANDMARK} | {
        "duplicates": checks.duplicates,
        "kind_separation": to_json_number(checks.kind_separation),
        "upright_accuracy": to_json_number(checks.upright_accuracy),
        "missed_movement": to_json_number(checks.missed_movement),
    }


def _parse_ref(name: str, work: Path) -> ImageRef:
    """Return the image that a recorded name, FILE[#FRAME]|BOX, stands for.

    FILE may be a path of another machine. Only the part from `data/` on is used, as a path in the folder
    `work`.
    """
    file, _, box = str(name).partition("|")
    file, _, frame = file.partition("#")
    path_in_data = re.sub(r".*?/data/", "data/", file, count=1)
    limits = json.loads(box)
    return ImageRef(work / path_in_data, int(frame) if frame else None, tuple(limits) if limits else None)


if __name__ == "__main__":
    main()
