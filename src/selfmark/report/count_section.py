"""The section on how the number of landmarks was chosen, from the events of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from selfmark.report.sections import ReportCurves, ReportTable


def build_count_section(
    history: Iterable[dict[str, Any]],
) -> tuple[str, tuple[ReportTable, ...], tuple[ReportCurves, ...]]:
    """Return text, table and charts that explain the choice; all are empty if the user set the number."""
    events = [event for event in history if event.get("event") == "landmark_count"]
    if not events:
        return "", (), ()
    chosen, trials = events[-1]["K"], events[-1]["trials"]
    K = np.array([trial["K"] for trial in trials], float)

    def line(name: str) -> tuple[str, Any, Any]:
        return name, K, np.array([trial[name] for trial in trials], float)

    score = np.array([trial["score"] for trial in trials], float)
    curves = (
        ReportCurves(
            title="Score by number of landmarks",
            note="The score is high if each landmark is found in most images and few points are left over.",
            x_label="landmarks",
            y_label="score",
            lines=(
                ("score", K, score),
                (f"chosen: {chosen}", np.array([float(chosen)]), score[chosen == K]),
            ),
        ),
        ReportCurves(
            title="Parts of the score",
            note="With more landmarks, each is found less often. Agreement is low if groups are arbitrary.",
            x_label="landmarks",
            y_label="fraction",
            lines=(line("detection"), line("separation"), line("agreement")),
        ),
    )
    table = ReportTable(
        title="Numbers of landmarks tried",
        note="Detection: the fraction of the images in which a landmark is found. Separation: the fraction "
        "of the points that clearly belong to one landmark. Agreement: two halves of the images are "
        "clustered separately; this is the fraction of these clear points that both halves assign to the "
        "same landmark, corrected for chance. ± is the standard error of the score.",
        header=("landmarks", "score", "±", "detection", "separation", "agreement"),
        rows=tuple(
            (
                f"{trial['K']}{' (chosen)' if trial['K'] == chosen else ''}",
                *(
                    f"{trial[name]:.2f}"
                    for name in ("score", "error", "detection", "separation", "agreement")
                ),
            )
            for trial in trials
        ),
    )
    return str(events[-1]["why"]), (table,), curves
