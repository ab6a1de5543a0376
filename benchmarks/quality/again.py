"""How a published row is made again: by `run.py`, or by hand with the commands that everyone has."""

from __future__ import annotations

import json
import shlex
from typing import Any

from rows import Declared
from sets import SETS

_SCRIPT = "PYTHONPATH=src python benchmarks/quality/"


def how_to_make(what_row_is: str) -> str:
    """The command that makes a row anew and puts it into quality.json and the pages."""
    run = f"{_SCRIPT}run.py --data-folder DATA --weights-folder WEIGHTS --out made --again --only ROW"
    return (
        "To make a row again, with the data sets in `DATA` and the weights of other detectors in "
        f"`WEIGHTS` ({what_row_is}):\n\n"
        f"```\n{run} && \\\n{_SCRIPT}merge.py made && {_SCRIPT}quality_pages.py\n```"
    )


def command(declared: Declared) -> str:
    """`selfmark discover` as the row asks for it; files are below the folder of the data set."""
    inputs = [f"{declared.data}/{one}" for one in SETS[declared.data].inputs]
    settings = {name: value for name, value in declared.settings.items() if name != "K"}
    changes = [
        word
        for name, value in settings.items()
        if not name.startswith("evaluation.")
        for word in ("--set", f"{name}={_text(value)}")
    ]
    words = ["selfmark", "discover", *inputs, "-k", str(declared.settings["K"])]
    return shlex.join([*words, "--preset", declared.preset, "--seed", str(declared.seeds[0]), *changes])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
