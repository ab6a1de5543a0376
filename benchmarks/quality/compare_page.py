"""Build docs/results/compare.md from docs/results/compare.json: all methods on the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from summaries import NONE, format_table

Row = Mapping[str, Any]

_TITLES = {
    "faces-yt68": "Faces (faces-yt68)",
    "faces-mtfl-aflw": "Faces, also from the side (faces-mtfl-aflw)",
    "birds-cub": "Birds (birds-cub)",
    "flies-dpk": "Flies (flies-dpk)",
    "mouse-openfield": "A mouse (mouse-openfield)",
}
_OWN_METHODS = ("self-training", "zero-shot")
_HEADER = (
    "method",
    "forward",
    "backward",
    "hits, %",
    "on the object, %",
    "verdict",
    "training, min",
    "iterations",
)
_INTRODUCTION = """# Comparison of methods

[&larr; Results](quality.md) · [Methods](../methods.md)

This page compares the [methods](../methods.md) that selfmark contains on the same images, with the same
number of landmarks. It is made from [compare.json](compare.json) by `benchmarks/quality/compare_page.py`;
`benchmarks/quality/compare_methods.py` makes the rows. Errors are in percent of the
[normalizer](../glossary.md#terms), measured on validation images: a fixed fifth of the labeled training
images, on which no method was trained. The linear regression from landmarks to annotated points, and back,
has a ridge of 0.01. The error of guessing is in parentheses. For *hits*, each annotated point is matched to
one landmark, without regression. The point is a hit if this landmark is at most 6 pixels away, in an image of
128 pixels.

Read the rows with care:

- Each row is one seed, so differences of a few tenths of a percent mean nothing.
- Each method got a budget of 2 minutes of training. The number of iterations is planned for this budget
  before the training. Several trainings shared one H200, so a training takes longer if others start after it.
  The tables show wall-clock minutes.
- Methods of other papers used images of 128 x 128 pixels, as most of their papers do, and EfficientNet-Lite0
  instead of VGG16 for perceptual losses. They are new implementations of ours, trained for far less time
  than in their papers.
- `self-training` and `zero-shot` use features that were learned from labeled ImageNet photographs. The rows
  marked *default command* follow the schedule of that command instead of a budget.
- The verdict uses no labels. It was calibrated on detectors of `self-training` and is too optimistic for
  other methods: some that are called usable are hardly better than guessing."""


def build_compare_page(rows: Sequence[Row]) -> str:
    """Return docs/results/compare.md: for each data set, a table and the best of our and of other methods."""
    sections = [_INTRODUCTION]
    for data, title in _TITLES.items():
        chosen = [row for row in rows if row["data"] == data]
        if any(not row["failure"] for row in chosen):
            sections.append(_describe_dataset(title, chosen))
    absent_titles = [title for data, title in _TITLES.items() if all(row["data"] != data for row in rows)]
    missing_data = f"; data: {'; '.join(absent_titles)}" if absent_titles else ""
    sections.append(f"Not yet measured: budgets of 8 minutes; more seeds{missing_data}.")
    return "\n\n".join(sections) + "\n"


def _describe_dataset(title: str, rows: Sequence[Row]) -> str:
    finished_rows = sorted((row for row in rows if not row["failure"]), key=lambda row: float(row["forward"]))
    failed_rows = [row for row in rows if row["failure"]]
    lines = [_format_cells(row) for row in finished_rows]
    lines += [[row["method"], "failed", *[NONE] * (len(_HEADER) - 2)] for row in failed_rows]
    sentences = [_describe_rank(finished_rows)]
    constant = [row["method"] for row in finished_rows if _is_constant(row)]
    if constant:
        names = " and ".join(f"`{name}`" for name in constant)
        sentences.append(
            f"The landmarks of {names} stayed at the same place in every image: training failed."
        )
    sentences += [f"`{row['method']}`: {row['failure']}." for row in failed_rows]
    sentences += [f"`{row['method']}`: {row['note']}." for row in rows if row.get("note")]
    sentences.append(_describe_sharing(rows))
    heading = f"## {title}, K={max(row['k'] for row in rows)}"
    return "\n\n".join([heading, format_table(_HEADER, lines), " ".join(sentences)])


# Percent. If the error of guessing the mean positions of the landmarks is lower than this, they hardly move
# from image to image.
_MIN_MOTION = 0.5


def _is_constant(row: Row) -> bool:
    """Return True if the landmarks are known to stay at the same place in every image."""
    return row["guessing_backward"] is not None and bool(row["guessing_backward"] < _MIN_MOTION)


def _format_cells(row: Row) -> list[str]:
    iterations = (row["iterations"] or {}).get("methods.iterations")
    is_other = row["method"] not in _OWN_METHODS
    return [
        row["method"] + ("" if row["budget_minutes"] else " (default command)"),
        f"{row['forward']:.2f} ({row['guessing_forward']:.2f})",
        NONE if row["backward"] is None else f"{row['backward']:.2f} ({row['guessing_backward']:.2f})",
        NONE if row["hits"] is None else f"{row['hits']:.1f}",
        NONE if row["on_object"] is None else f"{100 * row['on_object']:.0f}",
        row["verdict"] or NONE,
        NONE if row["training_minutes"] is None else f"{row['training_minutes']:.1f}",
        f"{iterations:,}" if is_other and iterations else NONE,
    ]


def _describe_sharing(rows: Sequence[Row]) -> str:
    """Say how many runs were on the GPU at the same time."""
    shared = [row["runs_at_once"] for row in rows]
    return f"Up to {max(shared)} runs were on the GPU at the same time."


def _describe_rank(finished_rows: Sequence[Row]) -> str:
    """Name the best of our methods and the best of the others, the better one first."""
    trained_rows = [row for row in finished_rows if row["method"] != "untrained"]
    groups = [
        [row for row in trained_rows if row["method"] in _OWN_METHODS],
        [row for row in trained_rows if row["method"] not in _OWN_METHODS],
    ]
    best_rows = sorted(
        (min(rows, key=lambda row: float(row["forward"])) for rows in groups if rows),
        key=lambda row: float(row["forward"]),
    )
    sentence = f"`{best_rows[0]['method']}` has the lowest error, {best_rows[0]['forward']:.2f}"
    if len(best_rows) > 1:
        origin = "of our own" if best_rows[1]["method"] in _OWN_METHODS else "of another paper"
        sentence += (
            f"; the best method {origin}, `{best_rows[1]['method']}`, has {best_rows[1]['forward']:.2f}"
        )
    return sentence + "."
