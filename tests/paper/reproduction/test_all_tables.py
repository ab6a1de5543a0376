"""Reproduce every table and figure, from reading its YAML file to writing its pages.

The real readers read miniature data sets. One short run replaces all training runs;
`test_official_layouts` and some tests of `test_harness` run real trainings.
"""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path

import pytest

from selfmark.paper.reproduction import experiment
from selfmark.paper.reproduction.experiment_plan import Training
from selfmark.paper.reproduction.harness import ReproductionOptions, reproduce_tables
from selfmark.paper.reproduction.reference_values import AUTHORS_EYES
from tests.paper.reproduction.conftest import select_short_settings


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one output folder for all tables, which share training runs and measurements."""
    return tmp_path_factory.mktemp("reproduced")


@pytest.mark.usefixtures("without_weights", "copied_trainings", "real_readers")
@pytest.mark.parametrize("name", experiment.list_experiment_names())
def test_pages_have_all_rows_and_columns_and_the_numbers_of_the_paper(
    name: str, official_data: Path, output: Path
) -> None:
    table = experiment.load_experiment(name)
    options = ReproductionOptions("tiny", select_short_settings(name), "cpu")
    paths = reproduce_tables([name], official_data, output, options, log=lambda line: None)
    suffixes = {"table": {".md", ".csv", ".tex"}, "sheet": {".md", ".png"}}
    assert {path.suffix for path in paths} == suffixes.get(table.kind, {".md", ".svg", ".png", ".csv"})
    assert all(path.stat().st_size > 100 for path in paths)
    page = (output / f"{name}.md").read_text()
    assert "preset tiny, seed 0" in page
    if table.kind == "sheet":
        return
    rows = list(csv.reader((output / f"{name}.csv").open()))
    row_by_name = {row.name: row for row in table.rows}
    if table.kind == "table":
        # The module `reference_values` adds rows and columns. If the errors of an added row are divided by
        # the authors' inter-ocular distance, the name of this row ends with AUTHORS_EYES.
        table_lines = [line for line in rows[1:] if line[0] in row_by_name]
        assert [line[0] for line in table_lines] == list(row_by_name)
        added = {line[0].removesuffix(f", {AUTHORS_EYES}") for line in rows[1:] if line[0] not in row_by_name}
        assert added <= set(row_by_name)
        header, columns = rows[0], [column.name for column in table.columns]
        for line in table_lines:
            row, cells = row_by_name[line[0]], dict(zip(header, line, strict=True))
            for index, column in enumerate(columns):
                ours, theirs = cells[column], cells[f"{column} (paper)"]
                if row.is_quoted:
                    assert ours == ""
                else:
                    assert float(ours) >= 0
                expected = row.paper[index] if row.paper else None
                assert (float(theirs) if theirs else None) == expected
                if ours and theirs:
                    difference = float(cells[f"{column} (difference)"])
                    assert difference == pytest.approx(float(ours) - float(theirs), abs=1e-9)
        for row, column in product(table.own_rows, table.columns):
            if "backward" in (table.cell_spec(row, column).metric or ""):
                line = next(line for line in table_lines if line[0] == row.name)
                guess = line[header.index(f"{column.name}, guessing")]
                assert float(guess) > 0
    else:
        drawn = {(row[0], row[1]) for row in rows[1:]}
        assert {(column, row) for column, row in drawn if row in row_by_name} == {
            (column.name, row.name) for column in table.columns for row in table.own_rows
        }
        if table.kind == "curves" and table.name != "noise":
            guesses = {
                (column.name, f"{row.name}, guessing") for column in table.columns for row in table.own_rows
            }
            assert guesses <= drawn


@pytest.mark.usefixtures("real_readers")
def test_bodies_are_cropped_as_in_the_paper(
    official_data: Path, tmp_path: Path, copied_trainings: list[Training]
) -> None:
    names = ["pennaction", "human36m-pck"]
    options = ReproductionOptions("tiny", select_short_settings(*names), "cpu")
    reproduce_tables(names, official_data, tmp_path, options, log=lambda line: None)
    crops = {
        training.data: (training.config.images.box_rule, training.config.images.body_scale)
        for training in copied_trainings
    }
    assert crops == {"pennaction": ("body", 1.35), "human36m": ("body", 1.1)}
