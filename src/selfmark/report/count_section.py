"""Why a run has as many landmarks as it has, read from the events of the run; nothing where K was given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from selfmark.report.sections import ReportCurves, ReportTable


def landmark_count(
    history: Iterable[dict[str, Any]],
) -> tuple[str, tuple[ReportTable, ...], tuple[ReportCurves, ...]]:
    """The choice in words, as a table and as charts, from the last `landmark_count` event."""
    events = [event for event in history if event.get("event") == "landmark_count"]
    if not events:
        return "", (), ()
    chosen, trials = events[-1]["K"], events[-1]["trials"]
    K = np.array([trial["K"] for trial in trials], float)

    def line(name: str) -> tuple[str, Any, Any]:
        return name, K, np.array([trial[name] for trial in trials], float)

    score = np.array([trial["score"] for trial in trials], float)
    here = np.array([float(chosen)])
    curves = (
        ReportCurves(
            title="Score by number of landmarks",
            note="High where each landmark is found again and again, and few points are left over.",
            x_label="landmarks",
            y_label="score",
            lines=(("score", K, score), (f"chosen: {chosen}", here, score[chosen == K])),
        ),
        ReportCurves(
            title="What the score is made of",
            note="The more landmarks, the rarer each is found; agreement falls where clusters are arbitrary.",
            x_label="landmarks",
            y_label="share",
            lines=(line("detection"), line("separation"), line("agreement")),
        ),
    )
    table = ReportTable(
        title="Numbers of landmarks tried",
        note="Detection: of the images, in how many a landmark is found. Separation: of the points found, "
        "how many do not lie between two landmarks. Agreement: of those, how many two halves of the images, "
        "clustered on their own, give to the same landmark, less chance. ± is the score's standard error.",
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
