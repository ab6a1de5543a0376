"""Measure the errors of recipes on labeled data sets, to compare the automatic choice with the best recipe.

    PYTHONPATH=src:benchmarks:benchmarks/quality:benchmarks/features \
        python benchmarks/trust/recipe_runs.py DATA WORK OUT NAME:RECIPE [NAME:RECIPE ...]

DATA, WORK and NAME are those of `calibration_runs.py`. As in that script, runs train on four fifths of the
training images and are evaluated on the other fifth, except for runs on `demo`. OUT gets a JSON file for each
run. `trust_model.py` makes the comparison.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from calibration_runs import MAX_TRAINING_IMAGES, NUM_LANDMARKS, find_parts, limit_inputs, measure_truth

import selfmark
from selfmark.errors import InputError, TrainingError
from selfmark.run.files import write_json
from selfmark.run.folder import Run


def main() -> None:
    """Make the runs that are named on the command line, one after the other."""
    data, work, out = (Path(argument) for argument in sys.argv[1:4])
    out.mkdir(parents=True, exist_ok=True)
    for argument in sys.argv[4:]:
        name, _, recipe = argument.partition(":")
        started = time.monotonic()
        parts = find_parts(name, data, work)
        folder = work / "recipes" / f"{name}--{recipe}"
        row = {"data": name, "recipe": recipe}
        try:
            detector = selfmark.discover(
                limit_inputs(parts.inputs, MAX_TRAINING_IMAGES),
                landmarks=NUM_LANDMARKS[name],
                output=folder,
                preset="tiny",
                features="efficientnet-lite0",
                recipe=recipe,
                verify=False,
            )
        except (InputError, TrainingError) as error:
            row |= {"error": str(error)}
        else:
            settings = Run.open(folder).config
            row |= measure_truth(detector, parts)
            row |= {"orientation": settings.features.orientation, "partner": settings.flip.partner}
        row["seconds"] = round(time.monotonic() - started, 1)
        write_json(row, out / f"recipe--{name}--{recipe}.json")
        print(name, recipe, row.get("forward_share", row.get("error")), flush=True)


if __name__ == "__main__":
    main()
