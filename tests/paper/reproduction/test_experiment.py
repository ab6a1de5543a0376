"""Test that experiment files are valid and complete and have exactly the paper's numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from selfmark.errors import InputError
from selfmark.paper.reproduction import experiment
from selfmark.paper.reproduction.cost import IMAGES
from selfmark.paper.reproduction.experiment import Experiment, parse_experiment

# Source of the paper, which is not in the repository; tests that need it are skipped without it.
PAPER = Path(__file__).parents[4] / "shared" / "paper.tex"
DATASETS = {
    "celeba",
    "aflw",
    "ls3d",
    "mtfl",
    "bbcpose",
    "human36m",
    "human36m32",
    "pennaction",
    "cats",
    "cub",
}
EXPERIMENTS = {name: experiment.load_experiment(name) for name in experiment.list_experiment_names()}


@pytest.mark.parametrize("table", EXPERIMENTS.values(), ids=lambda table: table.name)
def test_every_data_set_is_known(table: Experiment) -> None:
    cells = [table.cell_spec(row, column) for row in table.own_rows for column in table.columns]
    assert {cell.train for cell in cells} | {cell.test for cell in cells} <= DATASETS
    assert set(IMAGES) == DATASETS


@pytest.mark.parametrize("table", EXPERIMENTS.values(), ids=lambda table: table.name)
def test_names_of_rows_and_columns_are_unique(table: Experiment) -> None:
    assert len({row.name for row in table.rows}) == len(table.rows)
    assert len({column.name for column in table.columns}) == len(table.columns)


def _parse_numbers(lines: list[str]) -> list[list[float | None]]:
    """Return the numbers of each line of a LaTeX table that contains numbers; a dash becomes None."""
    rows = []
    for line in lines:
        cells = re.sub(r"\\(textbf|textit)\{([^{}]*)\}", r"\2", line).replace("\\\\", "").split("&")
        values = [cell.strip().replace("$", "") for cell in cells]
        row = [None if value == "-" else float(value) for value in values if re.fullmatch(r"-|[\d.]+", value)]
        if row:
            rows.append(row)
    return rows


def _read_paper_table(label: str) -> list[list[float | None]]:
    """Return the numbers of the table with this label."""
    text = PAPER.read_text()
    label_start = text.index(f"\\label{{{label}}}")
    begin = max(text.rfind("\\begin{table", 0, label_start), text.rfind("\\begin{figure", 0, label_start))
    stop = text.index("\\end{", text.index("\\bottomrule", begin))
    body = text[text.index("\\toprule" if "\\toprule" in text[begin:stop] else "\\midrule", begin) : stop]
    return _parse_numbers(body.splitlines())


# Some files contain only a part of one of the paper's tables. Mapping from the file's name to the rows and
# columns of this part.
PARTS: dict[str, tuple[slice, slice]] = {
    "negatives": (slice(None), slice(1, None)),  # The first column numbers the rows.
    "human36m-accuracy": (slice(0, 3), slice(None)),
    "human36m-pck": (slice(3, 6), slice(None)),
    "human36m-oks": (slice(6, 9), slice(None)),
}
WITH_NUMBERS = [table for table in EXPERIMENTS.values() if any(row.paper for row in table.rows)]


@pytest.mark.skipif(not PAPER.exists(), reason="paper.tex is not available")
@pytest.mark.parametrize("table", WITH_NUMBERS, ids=lambda table: table.name)
def test_files_have_all_numbers_of_the_paper(table: Experiment) -> None:
    rows, columns = PARTS.get(table.name, (slice(None), slice(None)))
    expected = [row[columns] for row in _read_paper_table(table.label)[rows]]
    if table.name == "cats":  # The paper prints one row with a column for each method.
        expected = [[value] for value in expected[0]]
    numbers = [list(row.paper) for row in table.rows if row.paper]
    if table.name == "bbcpose":  # The last column is not in the paper.
        assert all(row.pop() is None for row in numbers)
    assert numbers == expected


@pytest.mark.skipif(not PAPER.exists(), reason="paper.tex is not available")
def test_every_table_and_figure_with_results_has_a_file() -> None:
    text = PAPER.read_text()
    experiments = text[text.index("\\label{fig:tsne}") :]  # The experiments begin with this figure.
    labels = re.findall(r"\\label\{((?:table|fig|ref):\w+|pennraw|humanraw)\}", experiments)
    assert set(labels) == {table.label for table in EXPERIMENTS.values() if table.place}


@pytest.mark.skipif(not PAPER.exists(), reason="paper.tex is not available")
def test_tables_and_figures_are_numbered_as_in_the_paper() -> None:
    text = re.sub(r"\\begin\{algorithm\}.*?\\end\{algorithm\}", "", PAPER.read_text(), flags=re.DOTALL)
    places: dict[str, str] = {}  # mapping from the label to a text like "Table 3"
    for environment in ("table", "figure"):
        blocks = re.findall(
            rf"\\begin\{{{environment}\*?\}}.*?\\end\{{{environment}\*?\}}", text, flags=re.DOTALL
        )
        for number, block in enumerate(blocks, 1):
            for label in re.findall(r"\\label\{([^}]+)\}", block):
                places[label] = f"{environment.capitalize()} {number}"
    for table in EXPERIMENTS.values():
        if table.place:
            assert table.place.split(",")[0] == places[table.label], table.name


def _make_valid_content() -> dict[str, Any]:
    return {
        "title": "A table",
        "kind": "table",
        "train": "cub",
        "columns": [{"name": "Fwd", "metric": "forward"}],
        "rows": [{"name": "ours", "settings": {"K": 10}, "paper": [1.5]}],
    }


def test_a_cell_spec_merges_file_column_and_row() -> None:
    table = parse_experiment("x", {**_make_valid_content(), "settings": {"M": 50}})
    cell = table.cell_spec(table.rows[0], table.columns[0])
    assert (cell.train, cell.test, cell.metric) == ("cub", "cub", "forward")
    assert cell.settings == {"M": 50, "K": 10}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colums": []}, "unknown key 'colums' in tables/x.yaml. Did you mean 'columns'?"),
        ({"kind": "cake"}, "tables/x.yaml: unknown kind 'cake'"),
        (
            {"columns": [{"name": "a", "metric": "fourward"}]},
            "'fourward'. Did you mean 'forward'?",
        ),
        ({"columns": [{"name": "a", "metric": "raw_accuracy ears"}]}, "unknown body part 'ears'"),
        ({"columns": [{"name": "a", "metric": "forward 3"}]}, "takes no argument"),
        ({"columns": [{"name": "a", "metric": "precision"}]}, "takes DETECTOR"),
        ({"columns": [{"name": "a", "metric": "forward_curve"}]}, "cannot be shown as table"),
        ({"columns": [{"name": "a"}]}, "'train' and 'metric' are required"),
        ({"rows": [{"name": "a", "paper": [1, 2]}]}, "2 numbers for 1 columns"),
        (
            {"rows": [{"name": "a", "settings": {"keypoints.detectr": "orb"}}]},
            "unknown setting 'keypoints.detectr'",
        ),
        ({"rows": [{"name": "a", "train": "cats"}]}, "'train' is given twice"),
        ({"settings": {"K": 10}}, "the setting 'K' is given twice"),
        ({"evaluation": {"rigde": 1}}, "unknown setting 'evaluation.rigde'"),
    ],
)
def test_errors_name_the_mistake(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse_experiment("x", {**_make_valid_content(), **change})


def test_an_unknown_table_raises() -> None:
    with pytest.raises(InputError, match=r"no table 'table-one'\. 'selfmark reproduce list' shows the names"):
        experiment.load_experiment("table-one")
    with pytest.raises(InputError, match=r"no table 'stage'\. Did you mean 'stages'\?"):
        experiment.load_experiment("stage")


def test_old_names_of_tables_are_accepted() -> None:
    assert experiment.load_experiment("initialisation") == EXPERIMENTS["initialization"]
    assert experiment.load_experiment("generalisation") == EXPERIMENTS["generalization"]
