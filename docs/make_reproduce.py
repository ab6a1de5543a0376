"""Update the table of docs/reproduce.md from the experiment files: commands, costs and the paper's numbers.

Run `python docs/make_reproduce.py` after you change an experiment file or a rate of the cost estimate. A test
fails until you do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from selfmark.paper.reproduction.cost import DatasetNames, estimate_minutes
from selfmark.paper.reproduction.experiment import Experiment, list_experiment_names, load_experiment
from selfmark.paper.reproduction.experiment_plan import list_required_datasets, make_plan

PAGE = Path(__file__).parent / "reproduce.md"
_MARK = "<!-- table: experiments -->\n\n"
_HEADER = (
    "command",
    "in the paper",
    "data",
    "training runs",
    "GPU min, paper",
    "GPU min, fast",
    "paper's numbers",
)


def build_page(page: str) -> str:
    """Return the page with an updated table."""
    experiments = sorted(map(load_experiment, list_experiment_names()), key=_sort_key)
    rows = [_HEADER, ("---", "---", "---", "---:", "---:", "---:", "---"), *map(_format_row, experiments)]
    rows.append(("`selfmark reproduce all`", "", "", *_format_costs(experiments), ""))
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return re.sub(re.escape(_MARK) + r"(\|.*\n)*", lambda _: _MARK + table + "\n", page)


def _sort_key(experiment: Experiment) -> tuple[bool, str, int, str]:
    """Return a sort key: tables by number, then figures by number, then experiments not in the paper."""
    word, _, number = experiment.place.split(",")[0].partition(" ")
    return (
        not experiment.place,
        {"Table": "a", "Figure": "b"}.get(word, "c"),
        int(number or 0),
        experiment.name,
    )


def _format_row(experiment: Experiment) -> tuple[str, ...]:
    data = [
        f"{name} ({points} points)" if points else name
        for name, points in list_required_datasets([experiment])
    ]
    place = f"{experiment.place}: {experiment.title}" if experiment.place else experiment.title
    return (
        f"`selfmark reproduce {experiment.name}`",
        place,
        ", ".join(data),
        *_format_costs([experiment]),
        _format_paper_numbers(experiment),
    )


def _format_costs(experiments: Sequence[Experiment]) -> tuple[str, str, str]:
    """Return the number of training runs and the GPU minutes with the presets `paper` and `fast`."""
    plans = [make_plan(experiments, DatasetNames(), name, {}) for name in ("paper", "fast")]
    paper, fast = (f"{estimate_minutes(plan):,.0f}" for plan in plans)
    return str(len(plans[0].trainings)), paper, fast


def _format_paper_numbers(experiment: Experiment) -> str:
    rows = [row for row in experiment.own_rows if row.paper]
    if not rows:
        return "none printed" if experiment.place else "not in the paper"
    numbers = {row.name: [number for number in row.paper if number is not None] for row in rows}
    return "; ".join(f"{name}: {', '.join(f'{number:g}' for number in row)}" for name, row in numbers.items())


if __name__ == "__main__":
    PAGE.write_text(build_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
