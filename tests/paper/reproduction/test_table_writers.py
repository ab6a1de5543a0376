"""Test tables in Markdown, CSV and LaTeX: numbers, differences, missing cells and special characters."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from pathlib import Path

import pytest

from selfmark.paper.reproduction.experiment import Experiment, parse_experiment
from selfmark.paper.reproduction.table_writers import (
    ABSENT,
    TableOrigin,
    escape_latex,
    to_csv,
    to_latex,
    to_markdown,
)

ORIGIN = TableOrigin("fast", 3, {"M": "50"}, "9.9", "CPU", "ridge 0.01")


@pytest.fixture
def table() -> Experiment:
    return parse_experiment(
        "trial",
        {
            "title": "Cats & dogs",
            "place": "Table 9",
            "kind": "table",
            "note": "50 % of x_1.",
            "train": "cats",
            "columns": [{"name": "Fwd", "metric": "forward"}, {"name": "a|b", "metric": "backward"}],
            "rows": [
                {"name": "Zhang", "quoted": True, "paper": [14.84, None]},
                {"name": "Ours", "paper": [9.31, 2.0]},
            ],
        },
    )


def test_markdown_has_our_number_the_paper_number_and_the_difference(table: Experiment) -> None:
    page = to_markdown(table, {("Ours", "Fwd"): 9.456, ("Ours", "a|b"): 1.5}, ORIGIN)
    lines = page.splitlines()
    assert lines[0] == "# Cats & dogs"
    assert "selfmark 9.9, preset fast, seed 3, set M=50, regressor ridge 0.01, CPU." in lines
    assert lines[-2] == "| Zhang | (14.84) | - |"
    assert lines[-1] == "| Ours | 9.46 (9.31, +0.15) | 1.50 (2.00, -0.50) |"
    assert lines[-4] == "|  | Fwd | a\\|b |"


def test_csv_can_be_read_back(table: Experiment) -> None:
    text = to_csv(table, {("Ours", "Fwd"): 9.456, ("Ours", "a|b"): ABSENT})
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[1]["Fwd"] == "9.46"
    assert rows[1]["Fwd (paper)"] == "9.31"
    assert rows[1]["Fwd (difference)"] == "+0.15"
    assert (rows[1]["a|b"], rows[1]["a|b (paper)"], rows[1]["a|b (difference)"]) == ("absent", "2.00", "")
    assert (rows[0]["Fwd"], rows[0]["Fwd (paper)"]) == ("", "14.84")


def test_latex_has_escaped_text_and_the_right_number_of_columns(table: Experiment) -> None:
    text = to_latex(table, {("Ours", "Fwd"): 9.456, ("Ours", "a|b"): 1.5}, ORIGIN)
    assert "Cats \\& dogs." in text
    assert "50 \\% of x\\_1." in text
    assert "Ours & 9.46 & 9.31 & $+0.15$ & 1.50 & 2.00 & $-0.50$ \\\\" in text
    assert "\\begin{tabular}{lrrrrrr}" in text
    rows = [line for line in text.splitlines() if line.startswith(("Ours", "Zhang"))]
    assert {line.count("&") for line in rows} == {6}


@pytest.mark.parametrize("char", list("&%$#_{}\\~^<>"))
def test_every_special_character_of_latex_is_escaped(char: str) -> None:
    assert escape_latex(char) != char
    assert escape_latex(f"a{char}b").startswith("a\\")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
def test_latex_compiles(table: Experiment, tmp_path: Path) -> None:
    text = to_latex(table, {("Ours", "Fwd"): 9.456}, ORIGIN)
    page = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}{text}\\end{{document}}"
    (tmp_path / "t.tex").write_text(page)
    subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True)
