"""Test progress displays: plain lines without a terminal, bars with the same content on a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.cli.progress import (
    CountDisplay,
    CountedPredictions,
    ProgressDisplay,
    describe_unreadable_images,
)
from selfmark.detector import Prediction
from selfmark.image_ref import ImageRef
from selfmark.points import Landmarks
from selfmark.terminal import PlainConsole

PLAN = {"event": "plan", "rounds": 2, "stage1": 30, "stage2": 10}


def make_console(terminal: bool = False) -> PlainConsole:
    return PlainConsole(file=io.StringIO(), width=200, force_terminal=terminal)


def read_output(display_console: PlainConsole) -> str:
    assert isinstance(display_console.file, io.StringIO)
    return display_console.file.getvalue()


def make_train_event(stage: str, number: int, iteration: int, start: int, stop: int) -> dict[str, Any]:
    """Return a log event of training; `number` is the round, or 0 if the stage has no rounds."""
    event = {"event": "train", "stage": stage, "round": number, "iteration": iteration, "start": start}
    return event | {"stop": stop, "seconds": 1.0, "loss": {"total": 0.5}}


def test_lines_name_stage_round_and_loss_in_plain_words() -> None:
    out = make_console()
    with ProgressDisplay(out) as display:
        display(PLAN)
        display({"event": "progress", "stage": "applying Phi", "round": 1, "done": 5, "of": 5})
        display({"event": "recovery", "round": 1, "found_per_image": 9.5, "kept_per_image": 8.0})
        display(make_train_event("round", 1, 20, 10, 20))
        display({"event": "recovery", "round": 3, "found_per_image": 9.0, "kept_per_image": 7.5})
        display(make_train_event("stage 2", 0, 10, 0, 10))
        display({"event": "unknown event"})
    assert read_output(out).splitlines() == [
        "describing keypoints: 5 of 5",
        "grouped keypoints (round 1 of 2): 9.5 points per image found, 8.0 used",
        "training round 1 of 2: 10 of 10 loss 0.5000",
        "grouped keypoints into landmarks: 9.0 points per image found, 7.5 used",
        "training the detector: 10 of 10 loss 0.5000",
    ]


def test_a_line_says_that_iterations_are_skipped() -> None:
    out = make_console()
    with ProgressDisplay(out) as display:
        display(PLAN | {"student": 30, "student_rounds": 3})
        display(make_train_event("student", 2, 4, 0, 10))
        movement = {"event": "movement", "stage": "student", "round": 2, "percent": 0.5}
        display(movement | {"iteration": 3, "skipped": 0})
        display(movement | {"iteration": 4, "skipped": 3})
    assert read_output(out).splitlines()[1:] == [
        "learning landmarks, round 2 of 3: landmarks stand still, so 3 iterations are skipped"
    ]


def test_the_first_line_mentions_an_automatic_number_of_landmarks() -> None:
    out = make_console()
    with ProgressDisplay(out) as display:
        start = {"event": "start", "preset": "tiny", "device": "cpu", "why": "as requested", "images": 60}
        display(start | {"K": "auto", "output": "runs/cats"})
    assert "60 images, an automatic number of landmarks, output runs/cats" in read_output(out)


def test_lines_are_limited_in_rate_but_the_last_one_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = make_console()
    with ProgressDisplay(out) as display:
        for done in range(1, 41):
            now[0] += 1
            display({"event": "progress", "stage": "reading images", "round": 0, "done": done, "of": 40})
    done = [int(line.split()[2]) for line in read_output(out).splitlines()]
    assert done == [1, 17, 33, 40]  # lines more than 15 seconds apart, and the last line


def test_lines_state_the_estimate_the_survey_and_the_time_left() -> None:
    estimate = {"seconds_per_iteration": {"round": 2.0, "stage 2": 1.0}, "after": 5.0}
    out = make_console()
    with ProgressDisplay(out) as display:
        display({"event": "estimate", "text": "about 2 minutes", **estimate})
        display({"event": "survey", "sentences": ["9 images", "1 of 9 images is a copy of [a].png"]})
        display(PLAN | {"stages": {"round": 20, "stage 2": 10}})
        display(make_train_event("round", 1, 20, 10, 20))
        display({"event": "progress", "stage": "describing keypoints", "round": 2, "done": 9, "of": 9})
    assert read_output(out).splitlines() == [
        "about 2 minutes",
        "9 images",
        "note: 1 of 9 images is a copy of [a].png",
        "training round 1 of 2: 10 of 10 loss 0.5000, 35 s left",
        "describing keypoints: 9 of 9 35 s left",
    ]


def test_the_overall_bar_counts_both_stages() -> None:
    out = make_console(terminal=True)
    with ProgressDisplay(out) as display:
        display(PLAN)
        display(make_train_event("warm-up", 0, 10, 0, 10))
        display(make_train_event("round", 1, 20, 10, 20))
        task = display.progress.tasks[0]
        assert (task.description, task.completed, task.total) == ("training", 20, 40)
        display(make_train_event("round", 2, 30, 20, 30))
        display(make_train_event("stage 2", 0, 4, 0, 10))
        assert task.completed == 34


def test_the_overall_bar_includes_the_iterations_before_a_run_was_resumed() -> None:
    with ProgressDisplay(make_console(terminal=True)) as display:
        display(PLAN)
        display({"event": "resumed", "stage": "stage1", "iteration": 30})
        display({"event": "resumed", "stage": "stage2", "iteration": 2})
        task = display.progress.tasks[0]
        assert task.completed == 32
        display(make_train_event("stage 2", 0, 4, 0, 10))
        assert task.completed == 34


def test_a_run_with_features_has_lines_and_an_overall_bar() -> None:
    plan = {"event": "plan", "rounds": 1, "stage1": 10, "stage2": 8, "student": 8, "student_rounds": 2}
    events = [
        {"event": "orientation", "upright_accuracy": 0.97, "orientation": "upright"},
        {"event": "places", "places": "used"},
        {"event": "places", "places": "ignored"},
        {"event": "preview", "path": "runs/[cats]/preview/zero-shot.jpg"},
        make_train_event("student", 1, 4, 0, 4),
        {"event": "agreement", "stage": "student", "round": 1, "is_kept": True},
        make_train_event("student", 2, 4, 0, 4),
        {"event": "agreement", "stage": "student", "round": 2, "is_kept": False},
        {"event": "agreement", "stage": "keypoints", "round": 0, "is_kept": True},
        {"event": "agreement", "stage": "keypoints", "round": 0, "is_kept": False},
        make_train_event("keypoints", 1, 4, 0, 4),
    ]
    out = make_console()
    with ProgressDisplay(out) as display:
        display(plan)
        for event in events:
            display(event)
        task = display.progress.tasks[0]
        assert (task.completed, task.total) == (12, 26)
    assert read_output(out).splitlines() == [
        "recipe upright: the objects are upright; upside-down copies are recognized in 97% of cases",
        "the place of a part in the image helps to recognize it (features.places=used)",
        "the place of a part in the image says little about it, and is ignored (features.places=ignored)",
        "first landmarks: runs/[cats]/preview/zero-shot.jpg",
        "learning landmarks, round 1 of 2: 4 of 4 loss 0.5000",
        "learning landmarks, round 2 of 2: 4 of 4 loss 0.5000",
        "round 2 is undone: its landmarks are worse than the first landmarks",
        "landmarks from keypoints agree with the first landmarks and are used",
        "landmarks from keypoints contradict the first landmarks and are not used",
        "learning keypoints, round 1 of 2: 4 of 4 loss 0.5000",
    ]


def test_notes_keep_brackets_of_file_names() -> None:
    out = make_console()
    with ProgressDisplay(out) as display:
        display({"event": "note", "text": "2 frames of [red]fly.mp4 could not be read"})
        display({"event": "verification", "images": 40, "held_out": 9})
        display({"event": "agreement_of_runs", "text": "A second detector agrees."})
        display({"event": "advice", "text": "landmarks 1 and 2 mark the same place: lower -k to about 9"})
        display({"event": "verdict", "verdict": "good", "text": "The landmarks mark the same parts."})
    assert read_output(out).splitlines() == [
        "note: 2 frames of [red]fly.mp4 could not be read",
        "verifying: a second detector learns from 40 images, and the two are compared on 9 others",
        "A second detector agrees.",
        "advice: landmarks 1 and 2 mark the same place: lower -k to about 9",
        "verdict: good. The landmarks mark the same parts.",
    ]


def make_prediction(*refs: ImageRef) -> Prediction:
    landmarks = Landmarks(
        np.zeros((len(refs), 1, 2), np.float32), np.ones((len(refs), 1), np.float32), ("a",)
    )
    sizes = np.full((len(refs), 2), 8)
    return Prediction(refs, sizes, landmarks)


def test_unreadable_images_are_counted_and_described() -> None:
    video = [ImageRef(Path("fly.mp4"), frame) for frame in range(4)]
    stills = [ImageRef(Path(f"{name}.jpg")) for name in "abc"]
    out = make_console()
    with CountDisplay(out, "predicting", "images") as display:
        counted = CountedPredictions(
            iter([make_prediction(*video[:3]), make_prediction(stills[0])]), 7, display
        )
        assert len(list(counted)) == 2
    assert counted.images == 4
    assert display.rate > 0
    assert describe_unreadable_images([*video, *stills], counted) == [
        "1 of 4 frames of fly.mp4 could not be read and was left out",
        "2 of 3 images could not be read and were left out",
    ]
    assert describe_unreadable_images(video[:3], counted) == []
