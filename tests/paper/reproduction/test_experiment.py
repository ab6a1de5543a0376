"""The files: valid, complete, and with exactly the paper's numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from selfmark.errors import InputError
from selfmark.paper.reproduction import experiment
from selfmark.paper.reproduction.cost import IMAGES
from selfmark.paper.reproduction.experiment import Experiment, parse_experiment

PAPER = Path(__file__).parents[4] / "shared" / "paper.tex"
DATA = {"celeba", "aflw", "ls3d", "mtfl", "bbcpose", "human36m", "human36m32", "pennaction", "cats", "cub"}
EXPERIMENTS = {name: experiment.load_experiment(name) for name in experiment.experiment_names()}


@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=lambda one: one.name)
def test_every_data_set_is_one_that_there_is(one: Experiment) -> None:
    cells = [one.cell(row, column) for row in one.own_rows for column in one.columns]
    assert {cell.train for cell in cells} | {cell.test for cell in cells} <= DATA
    assert set(IMAGES) == DATA


@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=lambda one: one.name)
def test_rows_and_columns_can_be_told_apart(one: Experiment) -> None:
    assert len({row.name for row in one.rows}) == len(one.rows)
    assert len({column.name for column in one.columns}) == len(one.columns)


def _numbers(lines: list[str]) -> list[list[float | None]]:
    """The numbers of every line of a LaTeX table that has any; a dash is a number not given."""
    found = []
    for line in lines:
        cells = re.sub(r"\\(textbf|textit)\{([^{}]*)\}", r"\2", line).replace("\\\\", "").split("&")
        values = [cell.strip().replace("$", "") for cell in cells]
        row = [None if value == "-" else float(value) for value in values if re.fullmatch(r"-|[\d.]+", value)]
        if row:
            found.append(row)
    return found


def _table(label: str) -> list[list[float | None]]:
    """The numbers of the table that has this label."""
    text = PAPER.read_text()
    end = text.index(f"\\label{{{label}}}")
    begin = max(text.rfind("\\begin{table", 0, end), text.rfind("\\begin{figure", 0, end))
    stop = text.index("\\end{", text.index("\\bottomrule", begin))
    body = text[text.index("\\toprule" if "\\toprule" in text[begin:stop] else "\\midrule", begin) : stop]
    return _numbers(body.splitlines())


# Which rows and columns of the paper's table a file has, where it is not all of them.
PARTS: dict[str, tuple[slice, slice]] = {
    "negatives": (slice(None), slice(1, None)),  # lines are numbered
    "human36m-accuracy": (slice(0, 3), slice(None)),
    "human36m-pck": (slice(3, 6), slice(None)),
    "human36m-oks": (slice(6, 9), slice(None)),
}
WITH_NUMBERS = [one for one in EXPERIMENTS.values() if any(row.paper for row in one.rows)]


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not here")
@pytest.mark.parametrize("one", WITH_NUMBERS, ids=lambda one: one.name)
def test_the_numbers_are_the_papers_all_of_them(one: Experiment) -> None:
    rows, columns = PARTS.get(one.name, (slice(None), slice(None)))
    expected = [row[columns] for row in _table(one.label)[rows]]
    if one.name == "cats":  # printed as one line, a column for each method
        expected = [[value] for value in expected[0]]
    stated = [list(row.paper) for row in one.rows if row.paper]
    if one.name == "bbcpose":  # our own column beside the paper's
        assert all(row.pop() is None for row in stated)
    assert stated == expected


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not here")
def test_every_table_and_figure_with_results_has_its_file() -> None:
    text = PAPER.read_text()
    experiments = text[text.index("\\label{fig:tsne}") - 500 :]
    labels = re.findall(r"\\label\{((?:table|fig|ref):\w+|pennraw|humanraw)\}", experiments)
    assert set(labels) == {one.label for one in EXPERIMENTS.values() if one.place}


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not here")
def test_places_count_as_the_paper_does() -> None:
    text = re.sub(r"\\begin\{algorithm\}.*?\\end\{algorithm\}", "", PAPER.read_text(), flags=re.DOTALL)
    numbers: dict[str, str] = {}
    for what in ("table", "figure"):
        blocks = re.findall(rf"\\begin\{{{what}\*?\}}.*?\\end\{{{what}\*?\}}", text, flags=re.DOTALL)
        for number, block in enumerate(blocks, 1):
            for label in re.findall(r"\\label\{([^}]+)\}", block):
                numbers[label] = f"{what.capitalize()} {number}"
    for one in EXPERIMENTS.values():
        if one.place:
            assert one.place.split(",")[0] == numbers[one.label], one.name


def _valid() -> dict[str, Any]:
    return {
        "title": "A table",
        "kind": "table",
        "train": "cub",
        "columns": [{"name": "Fwd", "metric": "forward"}],
        "rows": [{"name": "ours", "settings": {"K": 10}, "paper": [1.5]}],
    }


def test_a_cell_is_what_file_column_and_row_say() -> None:
    one = parse_experiment("x", {**_valid(), "settings": {"M": 50}})
    cell = one.cell(one.rows[0], one.columns[0])
    assert (cell.train, cell.test, cell.metric) == ("cub", "cub", "forward")
    assert cell.settings == {"M": 50, "K": 10}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colums": []}, "the key 'colums'"),
        ({"kind": "cake"}, "no kind 'cake'"),
        ({"columns": [{"name": "a", "metric": "fourward"}]}, "no metric 'fourward'"),
        ({"columns": [{"name": "a", "metric": "raw_accuracy ears"}]}, "no part 'ears'"),
        ({"columns": [{"name": "a", "metric": "forward 3"}]}, "takes no argument"),
        ({"columns": [{"name": "a", "metric": "precision"}]}, "takes DETECTOR"),
        ({"columns": [{"name": "a", "metric": "forward_curve"}]}, "cannot be shown as table"),
        ({"columns": [{"name": "a"}]}, "must be said"),
        ({"rows": [{"name": "a", "paper": [1, 2]}]}, "2 numbers for 1 columns"),
        (
            {"rows": [{"name": "a", "settings": {"keypoints.detectr": "orb"}}]},
            "unknown setting 'keypoints.detectr'",
        ),
        ({"rows": [{"name": "a", "train": "cats"}]}, "'train' is said twice"),
        ({"settings": {"K": 10}}, "the setting 'K' is said twice"),
        ({"evaluation": {"rigde": 1}}, "unknown setting 'evaluation.rigde'"),
    ],
)
def test_what_is_wrong_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        parse_experiment("x", {**_valid(), **change})


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(InputError, match="no table 'table-one'"):
        experiment.load_experiment("table-one")


def test_old_names_of_tables_are_accepted() -> None:
    assert experiment.load_experiment("initialisation") == EXPERIMENTS["initialization"]
    assert experiment.load_experiment("generalisation") == EXPERIMENTS["generalization"]
