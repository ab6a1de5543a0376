"""Write an experiment's numbers beside those of the paper as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from selfmark.paper.reproduction.experiment import Experiment, Row
from selfmark.paper.reproduction.table_metrics import Value
from selfmark.run.files import write_text

ABSENT = "absent"  # shown in cells whose data set is missing
FAILED = "failed"  # shown in cells whose training or measurement failed

Values = Mapping[tuple[str, str], Value]  # from the names of row and column to the value of the cell


@dataclass(frozen=True)
class TableOrigin:
    """Origin of the numbers of a table.

    Attributes:
        preset: Name of the preset.
        seed: Random seed.
        changes: Settings that the user changed.
        version: Version of selfmark.
        device: Name of the GPU, or "CPU".
        regressor: How landmarks are mapped to annotated points; empty if nothing is regressed.
        notes: Sentences about the data sets.
    """

    preset: str
    seed: int
    changes: Mapping[str, str]
    version: str
    device: str
    regressor: str = ""
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Return everything except the notes as one sentence.

        >>> TableOrigin("fast", 0, {"M": "50"}, "0.1", "CPU", "ridge 0.01").sentence()
        'selfmark 0.1, preset fast, seed 0, set M=50, regressor ridge 0.01, CPU.'
        """
        parts = [f"selfmark {self.version}", f"preset {self.preset}", f"seed {self.seed}"]
        if self.changes:
            parts.append("set " + " ".join(f"{name}={value}" for name, value in self.changes.items()))
        if self.regressor:
            parts.append(f"regressor {self.regressor}")
        return ", ".join([*parts, self.device]) + "."


@dataclass(frozen=True)
class TableEntry:
    """The text of one cell: our number, the paper's number and the difference; each is empty if unknown.

    `ours` can also be `ABSENT` or `FAILED`.
    """

    ours: str
    paper: str
    difference: str


def build_entries(experiment: Experiment, values: Values) -> list[list[TableEntry]]:
    """Return the entries of the table, row by row."""
    return [
        [
            _build_entry(experiment, row, index, values.get((row.name, column.name)))
            for index, column in enumerate(experiment.columns)
        ]
        for row in experiment.rows
    ]


def _build_entry(experiment: Experiment, row: Row, column: int, value: Value) -> TableEntry:
    digits = experiment.digits
    paper_number = row.paper[column] if row.paper else None
    paper = "" if paper_number is None else _format_paper_number(paper_number, digits)
    if isinstance(value, float):
        # Round first, so that the printed difference agrees with the printed numbers.
        difference = "" if paper_number is None else f"{round(value, digits) - paper_number:+.{digits}f}"
        return TableEntry(f"{value:.{digits}f}", paper, difference)
    return TableEntry(value if isinstance(value, str) else "", paper, "")


def _format_paper_number(number: float, digits: int) -> str:
    """Format a number with `digits` decimals, or with more if it has more.

    >>> _format_paper_number(2.0, 1), _format_paper_number(2.15, 1)
    ('2.0', '2.15')
    """
    text = f"{number:.{digits}f}"
    return text if float(text) == number else f"{number:g}"


def write_tables(experiment: Experiment, values: Values, origin: TableOrigin, folder: Path) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.tex; return their paths."""
    texts = {
        ".md": to_markdown(experiment, values, origin),
        ".csv": to_csv(experiment, values),
        ".tex": to_latex(experiment, values, origin),
    }
    paths = []
    for suffix, text in texts.items():
        path = folder / f"{experiment.name}{suffix}"
        write_text(text, path)
        paths.append(path)
    return paths


def to_markdown(experiment: Experiment, values: Values, origin: TableOrigin) -> str:
    """Return a Markdown table. A cell is like `3.31 (3.25, +0.06)`: ours (the paper's, the difference)."""
    has_paper_numbers = any(row.paper for row in experiment.rows)
    legend = "Our number; in parentheses the paper's number and the difference (ours minus the paper's)."
    lines = [
        f"# {experiment.title}",
        "",
        *build_paragraphs(experiment, origin),
        *([legend, ""] if has_paper_numbers else []),
        _markdown_row(["", *(column.name for column in experiment.columns)]),
        _markdown_row(["---", *("---:" for _ in experiment.columns)]),
    ]
    for row, entries in zip(experiment.rows, build_entries(experiment, values), strict=True):
        lines.append(_markdown_row([row.name, *map(_markdown_cell, entries)]))
    return "\n".join(lines) + "\n"


def build_paragraphs(experiment: Experiment, origin: TableOrigin) -> list[str]:
    """Return the lines above a table or figure: its place in the paper, its note, and how it was produced."""
    place = f"{experiment.place} of the paper." if experiment.place else "Not in the paper."
    texts = (place, experiment.note, *origin.notes, origin.sentence())
    return [line for text in texts if text for line in (text, "")]


def _markdown_cell(entry: TableEntry) -> str:
    comparison = ", ".join(filter(None, (entry.paper, entry.difference)))
    parenthesis = f"({comparison})" if comparison else ""
    return " ".join(filter(None, (entry.ours, parenthesis))) or "-"


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def to_csv(experiment: Experiment, values: Values) -> str:
    """Return CSV text with three fields per column: our number, the paper's number and the difference."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    suffixes = ("", " (paper)", " (difference)")
    writer.writerow(
        ["row", *(f"{column.name}{suffix}" for column in experiment.columns for suffix in suffixes)]
    )
    for row, entries in zip(experiment.rows, build_entries(experiment, values), strict=True):
        writer.writerow([row.name, *_flatten(entries)])
    return stream.getvalue()


def _flatten(entries: list[TableEntry]) -> list[str]:
    return [text for entry in entries for text in (entry.ours, entry.paper, entry.difference)]


def to_latex(experiment: Experiment, values: Values, origin: TableOrigin) -> str:
    """Return a LaTeX table (booktabs) with three subcolumns per column: ours, paper and difference."""
    columns = experiment.columns
    names = " & ".join(
        ["", *(rf"\multicolumn{{3}}{{c}}{{{escape_latex(column.name)}}}" for column in columns)]
    )
    rules = "".join(rf"\cmidrule(lr){{{3 * i + 2}-{3 * i + 4}}}" for i in range(len(columns)))
    subheadings = " & ".join(["", *("ours & paper & diff." for _ in columns)])
    caption = " ".join(filter(None, [f"{experiment.title}.", *build_paragraphs(experiment, origin)]))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\begin{{tabular}}{{l{'rrr' * len(columns)}}}",
        r"\toprule",
        names + r" \\",
        rules,
        subheadings + r" \\",
        r"\midrule",
    ]
    for row, entries in zip(experiment.rows, build_entries(experiment, values), strict=True):
        cells = [escape_latex(row.name), *map(_latex_cell, _flatten(entries))]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _latex_cell(text: str) -> str:
    """Return the escaped text; signed numbers are in math mode, which has a proper minus sign."""
    return f"${text}$" if text[:1] in ("+", "-") else escape_latex(text)


_LATEX_ESCAPES = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def escape_latex(text: str) -> str:
    r"""Escape the special characters of LaTeX.

    >>> escape_latex("50 % of x_1 & y")
    '50 \\% of x\\_1 \\& y'
    """
    return "".join(_LATEX_ESCAPES.get(char, char) for char in text)
