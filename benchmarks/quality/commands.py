"""Build the commands that reproduce a published row, with `run.py` or with `selfmark discover`."""

from __future__ import annotations

import json
import shlex
from typing import Any

from experiments import Experiment
from quality_data import DATASETS

_SCRIPT = "PYTHONPATH=src python benchmarks/quality/"


def describe_reproduction(row_hint: str) -> str:
    """Return a paragraph with the command that recomputes a row and updates quality.json and the pages.

    Args:
        row_hint: Where to find ROW, the name of the row.
    """
    run = f"{_SCRIPT}run.py --data-folder DATA --weights-folder WEIGHTS --out made --again --only ROW"
    return (
        "To recompute a row, run this command with the data sets in `DATA` and the weights of other "
        f"detectors in `WEIGHTS` ({row_hint}):\n\n"
        f"```\n{run} && \\\n{_SCRIPT}merge.py made && {_SCRIPT}quality_pages.py\n```"
    )


def build_discover_command(experiment: Experiment) -> str:
    """Return the `selfmark discover` command of a row, with paths relative to the folder of all data sets."""
    inputs = [f"{experiment.data}/{name}" for name in DATASETS[experiment.data].inputs]
    settings = {name: value for name, value in experiment.settings.items() if name != "K"}
    changes = [
        word
        for name, value in settings.items()
        if not name.startswith("evaluation.")
        for word in ("--set", f"{name}={_format_value(value)}")
    ]
    words = ["selfmark", "discover", *inputs, "-k", str(experiment.settings["K"])]
    return shlex.join([*words, "--preset", experiment.preset, "--seed", str(experiment.seeds[0]), *changes])


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
