"""Build the section on how the number of landmarks was chosen, from the events of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from selfmark.report.sections import ReportCurves, ReportTable


def build_count_section(
    history: Iterable[dict[str, Any]],
) -> tuple[str, tuple[ReportTable, ...], tuple[ReportCurves, ...]]:
    """Return text, tables and charts that explain the choice; all are empty if the user set the number."""
    events = [event for event in history if event.get("event") in ("landmark_count", "merge")]
    if not events or events[-1]["event"] == "merge":
        return "", (), ()
    if "trials" not in events[-1]:
        return _build_merge_section(str(events[-1]["why"]), events[:-1])
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
                (f"chosen: {chosen}", K[chosen == K], score[chosen == K]),
            ),
        ),
        ReportCurves(
            title="Parts of the score",
            note="With more landmarks, each is found less often. Agreement is low if points are grouped "
            "arbitrarily.",
            x_label="landmarks",
            y_label="fraction",
            lines=(line("detection"), line("separation"), line("agreement")),
        ),
    )
    table = ReportTable(
        title="Numbers of landmarks tried",
        note="Detection: the fraction of the images in which a landmark is found. Separation: the fraction "
        "of the points that clearly belong to one landmark. Agreement: two halves of the images are "
        "clustered separately. Of the points that clearly belong to one landmark, agreement is the fraction "
        "that both clusterings assign to the same landmark, corrected for chance. ± is the standard error of "
        "the score.",
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


def _build_merge_section(
    reason: str, events: Iterable[dict[str, Any]]
) -> tuple[str, tuple[ReportTable, ...], tuple[ReportCurves, ...]]:
    """Return text and table for a number of landmarks that was found by merging clusters."""
    merges = [event for event in events if event["event"] == "merge"]
    table = ReportTable(
        title="Clusters merged",
        note="Clusters of keypoints are merged if the detector places them at the same spot in most images.",
        header=("iteration of Stage 2", "clusters before", "clusters after"),
        rows=tuple((str(event["iteration"]), str(event["before"]), str(event["after"])) for event in merges),
    )
    return reason, (table,), ()
