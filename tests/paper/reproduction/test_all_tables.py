"""Every table and figure from its YAML file to its pages, with the real readers on miniature data sets.

One short run replaces all training runs; `test_harness` and `test_official_layouts` train.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from selfmark.paper.reproduction import experiment
from selfmark.paper.reproduction.experiment_plan import Training
from selfmark.paper.reproduction.harness import ReproductionOptions, reproduce_tables
from tests.paper.reproduction.conftest import short


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one output folder for all tables, which share training runs and measurements."""
    return tmp_path_factory.mktemp("reproduced")


@pytest.mark.usefixtures("without_weights", "no_training", "real_readers")
@pytest.mark.parametrize("name", experiment.experiment_names())
def test_reproduction_from_file_to_page(name: str, official_data: Path, output: Path) -> None:
    table = experiment.load_experiment(name)
    options = ReproductionOptions("tiny", short(name), "cpu")
    paths = reproduce_tables([name], official_data, output, options, log=lambda line: None)
    suffixes = {"table": {".md", ".csv", ".tex"}, "sheet": {".md", ".png"}}
    assert {path.suffix for path in paths} == suffixes.get(table.kind, {".md", ".svg", ".png", ".csv"})
    assert all(path.stat().st_size > 100 for path in paths)
    page = (output / f"{name}.md").read_text()
    assert "preset tiny, seed 0" in page
    if table.kind == "sheet":
        return
    rows = list(csv.reader((output / f"{name}.csv").open()))
    if table.kind == "table":
        assert [row[0] for row in rows[1:]] == [row.name for row in table.rows]
        for row, line in zip(table.rows, rows[1:], strict=True):
            ours, paper, difference = line[1::3], line[2::3], line[3::3]
            assert all(cell == "" if row.is_quoted else float(cell) >= 0 for cell in ours)
            for index, theirs in enumerate(row.paper):
                assert (float(paper[index]) if paper[index] else None) == theirs
            for mine, theirs, delta in zip(ours, paper, difference, strict=True):
                if mine and theirs:
                    assert float(delta) == pytest.approx(float(mine) - float(theirs), abs=1e-9)
    else:
        drawn = {(row[0], row[1]) for row in rows[1:]}
        assert drawn == {(column.name, row.name) for column in table.columns for row in table.own_rows}


@pytest.mark.usefixtures("real_readers")
def test_bodies_are_cropped_as_in_the_paper(
    official_data: Path, tmp_path: Path, no_training: list[Training]
) -> None:
    names = ["pennaction", "human36m-pck"]
    options = ReproductionOptions("tiny", short(*names), "cpu")
    reproduce_tables(names, official_data, tmp_path, options, log=lambda line: None)
    crops = {
        training.data: (training.config.images.box_rule, training.config.images.body_scale)
        for training in no_training
    }
    assert crops == {"pennaction": ("body", 1.35), "human36m": ("body", 1.1)}
