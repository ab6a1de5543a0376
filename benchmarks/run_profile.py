"""Show how many seconds of a run each of its parts took, according to its log.

    PYTHONPATH=src:benchmarks python benchmarks/run_profile.py RUN [RUN ...] [--out profile.json]

Every event of log.jsonl has a time and ends a part of the run. The seconds since the previous event are added
to this part. Events that this script does not know count as "features and zero-shot landmarks", also in runs
without features. Training steps are divided in two: those up to the first log line of each phase, and all
later steps. The former include compiling kernels and capturing a CUDA graph. The log does not contain the
time before the first event (start of Python, imports, listing the images); callers of `profile` can add it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

PARTS = (
    "before the log",
    "reading images",
    "estimate",
    "first keypoints",
    "features and zero-shot landmarks",
    "first steps of each phase",
    "steps",
    "describing and clustering keypoints",
    "finding landmarks",
    "previews",
    "verification",
    "checks and report",
)
# Mapping from the stage of a "progress" event to the part of the run that the event ends.
_BY_STAGE = {
    "reading images": "reading images",
    "first keypoints": "first keypoints",
    "detecting keypoints": "first keypoints",
    "describing keypoints": "describing and clustering keypoints",
    "finding landmarks": "finding landmarks",
    "training a second detector": "verification",
    "checking landmarks": "checks and report",
}
# Mapping from the name of an event to the part of the run that the event ends.
_BY_EVENT = {
    "images": "reading images",
    "survey": "reading images",
    "keypoints": "first keypoints",
    "keypoint_labels": "first keypoints",
    "recovery": "describing and clustering keypoints",
    "agreement": "describing and clustering keypoints",
    "preview": "previews",
    "checkpoint": "steps",
    "movement": "steps",  # measured between two steps
    "verdict": "checks and report",
    "verification": "previews",  # logged after the last preview, before the second training starts
    "agreement_of_runs": "checks and report",
    "estimate": "estimate",
    "done": "checks and report",
}


def main() -> None:
    """Print a table with one column per run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    columns = {str(run): profile(run) for run in arguments.runs}
    for part in PARTS:
        print(f"{part:38s}" + "".join(f"{column[part]:9.1f}" for column in columns.values()))
    print(f"{'sum':38s}" + "".join(f"{sum(column.values()):9.1f}" for column in columns.values()))
    if arguments.out:
        arguments.out.write_text(json.dumps(columns, indent=1) + "\n", encoding="utf-8")


def profile(run: Path, start_time: float | None = None) -> dict[str, float]:
    """Return the seconds of each part of a run.

    Args:
        run: the run folder.
        start_time: when the command started, in seconds since the epoch. None leaves "before the log" at 0.
    """
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    seconds = dict.fromkeys(PARTS, 0.0)
    if start_time is not None:
        seconds["before the log"] = events[0]["time"] - start_time
    previous_event: dict[str, Any] | None = None
    for event in events:
        if previous_event is not None:
            seconds[_find_part(event, previous_event)] += event["time"] - previous_event["time"]
        previous_event = event
    return {part: round(value, 2) for part, value in seconds.items()}


def _find_part(event: dict[str, Any], previous_event: dict[str, Any]) -> str:
    """Return the part of the run that an event ends."""
    name = event["event"]
    if name == "train":
        is_first = previous_event["event"] not in ("train", "movement", "checkpoint")
        return "first steps of each phase" if is_first else "steps"
    if name == "agreement" and event["stage"] == "student":
        return "features and zero-shot landmarks"  # the comparison with the zero-shot landmarks
    if name == "progress":
        if (
            event["stage"] == "checking landmarks"
            and previous_event.get("stage") == "training a second detector"
        ):
            return "verification"  # the comparison of the two detectors, after the second training
        return _BY_STAGE.get(event["stage"], "features and zero-shot landmarks")
    return _BY_EVENT.get(name, "features and zero-shot landmarks")


if __name__ == "__main__":
    main()
