"""An experiment's numbers beside the paper's: as Markdown, as CSV and as LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from selfmark.paper.reproduction.experiment import Experiment, Row
from selfmark.paper.reproduction.table_metrics import Value
from selfmark.run.files import atomic_write

ABSENT = "absent"  # a cell whose data set is not here
FAILED = "failed"  # a cell whose training or measurement came to nothing

Values = Mapping[tuple[str, str], Value]  # by row and column


@dataclass(frozen=True)
class TableOrigin:
    """How numbers were made: what a reader must know to compare them; `notes` are on the data sets."""

    preset: str
    seed: int
    changes: Mapping[str, str]
    version: str
    device: str
    regressor: str = ""
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """
        >>> Origin("fast", 0, {"M": "50"}, "0.1", "cpu", "ridge 0.01").sentence()
        'selfmark 0.1, preset fast, seed 0, set M=50, regressor ridge 0.01, cpu.'
        """
        words = [f"selfmark {self.version}", f"preset {self.preset}", f"seed {self.seed}"]
        if self.changes:
            words.append("set " + " ".join(f"{name}={value}" for name, value in self.changes.items()))
        if self.regressor:
            words.append(f"regressor {self.regressor}")
        return ", ".join([*words, self.device]) + "."


@dataclass(frozen=True)
class TableEntry:
    """One cell in words: our number, the paper's and the difference, each empty where there is none."""

    ours: str
    paper: str
    difference: str


def build_entries(experiment: Experiment, values: Values) -> list[list[TableEntry]]:
    """A list of cells for each row."""
    return [
        [
            _entry(experiment, row, place, values.get((row.name, column.name)))
            for place, column in enumerate(experiment.columns)
        ]
        for row in experiment.rows
    ]


def _entry(experiment: Experiment, row: Row, place: int, value: Value) -> TableEntry:
    digits = experiment.digits
    theirs = row.paper[place] if row.paper else None
    paper = "" if theirs is None else _printed(theirs, digits)
    if isinstance(value, float):
        # Of the number as it is shown, so that the three agree.
        difference = "" if theirs is None else f"{round(value, digits) - theirs:+.{digits}f}"
        return TableEntry(f"{value:.{digits}f}", paper, difference)
    return TableEntry(value if isinstance(value, str) else "", paper, "")


def _printed(number: float, digits: int) -> str:
    """A number of the paper with so many digits, or with more where it has more.

    >>> _printed(2.0, 1), _printed(2.15, 1)
    ('2.0', '2.15')
    """
    text = f"{number:.{digits}f}"
    return text if float(text) == number else f"{number:g}"


def write_tables(experiment: Experiment, values: Values, origin: TableOrigin, folder: Path) -> list[Path]:
    """NAME.md, NAME.csv and NAME.tex."""
    made = {
        ".md": to_markdown(experiment, values, origin),
        ".csv": to_csv(experiment, values),
        ".tex": to_latex(experiment, values, origin),
    }
    paths = []
    for suffix, text in made.items():
        path = folder / f"{experiment.name}{suffix}"
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def to_markdown(experiment: Experiment, values: Values, origin: TableOrigin) -> str:
    """Each cell as `3.31 (3.25, +0.06)`: ours, then in brackets the paper's and how much ours is more."""
    compared = any(row.paper for row in experiment.rows)
    lines = [
        f"# {experiment.title}",
        "",
        *build_paragraphs(experiment, origin),
        *(["Ours; in brackets the paper's number and how much ours is more.", ""] if compared else []),
        _line(["", *(column.name for column in experiment.columns)]),
        _line(["---", *("---:" for _ in experiment.columns)]),
    ]
    for row, cells in zip(experiment.rows, build_entries(experiment, values), strict=True):
        lines.append(_line([row.name, *map(_in_brackets, cells)]))
    return "\n".join(lines) + "\n"


def build_paragraphs(experiment: Experiment, origin: TableOrigin) -> list[str]:
    """What stands above a table or figure: its place in the paper, the note, how it was made."""
    place = f"{experiment.place} of the paper." if experiment.place else "Not in the paper."
    texts = (place, experiment.note, *origin.notes, origin.sentence())
    return [line for text in texts if text for line in (text, "")]


def _in_brackets(cell: TableEntry) -> str:
    inside = ", ".join(filter(None, (cell.paper, cell.difference)))
    return " ".join(filter(None, (cell.ours, f"({inside})" if inside else ""))) or "-"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def to_csv(experiment: Experiment, values: Values) -> str:
    """A column each for our number, the paper's and the difference."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header = [
        f"{column.name}{what}" for column in experiment.columns for what in ("", " (paper)", " (difference)")
    ]
    writer.writerow(["row", *header])
    for row, cells in zip(experiment.rows, build_entries(experiment, values), strict=True):
        writer.writerow([row.name, *(word for c in cells for word in (c.ours, c.paper, c.difference))])
    return stream.getvalue()


def to_latex(experiment: Experiment, values: Values, origin: TableOrigin) -> str:
    """A table with the package booktabs, three columns under each of the experiment's."""
    above = " & ".join(
        ["", *(rf"\multicolumn{{3}}{{c}}{{{escape_latex(c.name)}}}" for c in experiment.columns)]
    )
    rules = "".join(rf"\cmidrule(lr){{{3 * i + 2}-{3 * i + 4}}}" for i in range(len(experiment.columns)))
    below = " & ".join(["", *("ours & paper & diff." for _ in experiment.columns)])
    caption = " ".join(filter(None, [f"{experiment.title}.", *build_paragraphs(experiment, origin)]))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\begin{{tabular}}{{l{'rrr' * len(experiment.columns)}}}",
        r"\toprule",
        above + r" \\",
        rules,
        below + r" \\",
        r"\midrule",
    ]
    for row, cells in zip(experiment.rows, build_entries(experiment, values), strict=True):
        words = [escape_latex(row.name)]
        words += [_mathematical(word) for c in cells for word in (c.ours, c.paper, c.difference)]
        lines.append(" & ".join(words) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _mathematical(word: str) -> str:
    """Signed numbers in mathematics, where a minus is one."""
    return f"${word}$" if word[:1] in ("+", "-") else escape_latex(word)


_SPECIAL = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def escape_latex(text: str) -> str:
    r"""Text as LaTeX shows it, sign by sign.

    >>> escape("50 % of x_1 & y")
    '50 \\% of x\\_1 \\& y'
    """
    return "".join(_SPECIAL.get(sign, sign) for sign in text)
