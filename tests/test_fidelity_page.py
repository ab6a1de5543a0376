"""Compare docs/fidelity.md with the preset `paper` and with the recorded runs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from selfmark.config import preset, to_dict

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/fidelity.md").read_text(encoding="utf-8")
# Pattern of a setting and its value in the text, like `loss.margin` = `0.8`.
_SETTING = re.compile(r"`([a-z0-9_]+(?:\.[a-zA-Z0-9_]+)?|K|M)` = `([^`]+)`")
# Mapping from the first cell of a row on the page to the name of the recorded run.
_RUNS = {
    "`repeated`": "tiny, repeated borders",
    "`black`": "tiny, black borders",
    "`paper` with black borders, short schedule": "short schedule",
    "the same with `loss.descriptors=unit`": "short, unit descriptors",
    "settings of `paper` in version 0.1, short schedule": "short, as in version 0.1",
    "`paper` with black borders, **a fifth of the schedule**": "a fifth of the schedule",
    "settings of version 0.1": "short, as in version 0.1",
    "`paper`, **a fifth of the schedule**": "a fifth, repeated borders",
    "`paper`, a fifth of the schedule": "a fifth, repeated borders",
    "`paper` with black borders, a fifth of the schedule": "a fifth of the schedule",
    "`tiny`, repeated borders, K = 10": "tiny, repeated borders",
}


def _read_recorded_rows() -> dict[tuple[str, str], dict[str, Any]]:
    """Return a mapping from the name of a recorded run and its reading to the recorded row.

    A reading is a way to get landmarks from heatmaps; "" is the reading that the detector of the run uses.
    """
    content = json.loads((ROOT / "docs/results/paper_variants.json").read_text(encoding="utf-8"))
    rows = {}
    for run in content["runs"]:
        for row in run["rows"]:
            rows[run["name"], row["reading"]] = row
        own = next(row for row in run["rows"] if row["reading"] == run["refine"])
        rows[run["name"], ""] = own | {"without_partner": f"{len(run['unpaired'])} of {run['k']}"}
    return rows


def test_every_setting_of_the_page_has_its_value_in_the_preset() -> None:
    values = to_dict(preset("paper"))
    documented = _SETTING.findall(PAGE)
    assert len(documented) > 60
    for name, text in documented:
        section, _, setting = name.rpartition(".")
        value = values[section][setting] if section else values[setting]
        shown = ast.literal_eval(text)
        assert (list(shown) if isinstance(shown, tuple) else shown) == value, name


def test_errors_on_the_page_match_the_recorded_runs() -> None:
    recorded, num_compared = _read_recorded_rows(), 0
    for line in PAGE[PAGE.index("## What the differences change") :].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        run = _RUNS.get(re.sub(r", (validation|test)$", "", cells[0]))
        if run is None:
            continue
        own = recorded[run, ""]
        is_table_of_partners = "of" in cells[1]  # Only in this table, the second cell is like "3 of 10".
        if is_table_of_partners:
            not_mirrored, all_mirrored = recorded[run, "not mirrored"], recorded[run, "all mirrored"]
            errors = [f"{row['forward']:.2f}" for row in (not_mirrored, all_mirrored, own)]
            assert cells[1:] == [own["without_partner"], *errors[:2], f"**{errors[2]}**"], line
        else:
            pairs = [f"{own[name]:.2f} ({own[f'guessing_{name}']:.2f})" for name in ("forward", "backward")]
            assert cells[2:] == [*pairs, f"{own['hits']:.1f} %"], line
        num_compared += 1
    assert num_compared == 13


def test_readings_on_the_page_match_the_records() -> None:
    content = json.loads((ROOT / "docs/results/readings.json").read_text(encoding="utf-8"))
    for run in content["runs"]:
        rows = {row["reading"]: row for row in run["rows"]}
        cells = [
            f"{row['forward']:.2f} / {row['backward']:.2f} ({row['guessing_backward']:.2f}) / "
            f"{row['hits']:.1f} % / {row['spread']:.2f}"
            for row in (rows["quarter"], rows["parabola"], rows["centroid"])
        ]
        assert f"| {run['name']}, K = {run['k']} | {' | '.join(cells)} |" in PAGE
