"""Test the remaining time of a run, from events whose times are known."""

from __future__ import annotations

from typing import Any

from selfmark.run.time_left import SECOND_TRAINING, TimeLeft


def _make_train_event(
    stage: str, number: int, iteration: int, start: int, stop: int, seconds: float
) -> dict[str, Any]:
    event = {"event": "train", "stage": stage, "round": number, "iteration": iteration, "seconds": seconds}
    return event | {"start": start, "stop": stop}


def _compute_time_left(*events: dict[str, Any]) -> float | None:
    """Return the seconds that remain after these events, or None if unknown."""
    time_left = TimeLeft()
    for event in events:
        time_left(event)
    return time_left.seconds()


# Events with the planned number of iterations of each stage.
PAPER = {"event": "plan", "stages": {"warm-up": 10, "round": 20, "stage 2": 30}}
FEATURES = {"event": "plan", "stages": {"warm-up": 10, "round": 10, "student": 20}}
# Event with the estimated seconds for each iteration, and after the training.
ESTIMATE = {
    "event": "estimate",
    "after": 7.0,
    "seconds_per_iteration": {"warm-up": 2.0, "round": 2.0, "student": 1.0},
}


def test_the_time_left_is_unknown_before_the_first_steps() -> None:
    assert _compute_time_left(PAPER) is None
    assert _compute_time_left({"event": "start"}) is None


def test_each_stage_has_its_own_pace() -> None:
    warmup = (
        _make_train_event("warm-up", 0, 5, 0, 10, 20.0),
        _make_train_event("warm-up", 0, 10, 0, 10, 25.0),
    )
    # With one event, the pace is measured from the start: 20 s for 5 iterations.
    assert _compute_time_left(PAPER, warmup[0]) == 55 * 4.0
    # With two events, the pace is measured between them, without the costs of starting: 5 s for 5 iterations.
    assert _compute_time_left(PAPER, *warmup) == 50 * 1.0
    rounds = (_make_train_event("round", 2, 24, 20, 30, 8.0), _make_train_event("round", 2, 26, 20, 30, 14.0))
    assert _compute_time_left(PAPER, *warmup, *rounds) == 4 * 3.0 + 30 * 3.0


def test_the_estimate_is_used_until_a_stage_has_started() -> None:
    assert _compute_time_left(ESTIMATE, FEATURES) == 20 + 20 + 20 + 7
    # Two iterations of the warm-up are left. The last 4 iterations took 16 s.
    steps = (_make_train_event("warm-up", 0, 4, 0, 10, 30.0), _make_train_event("warm-up", 0, 8, 0, 10, 46.0))
    assert _compute_time_left(ESTIMATE, FEATURES, *steps) == 2 * 4 + 20 + 20 + 7


def test_stages_that_end_early_take_no_more_time() -> None:
    contradicted = {"event": "agreement", "stage": "warm-up", "is_kept": False}
    assert _compute_time_left(ESTIMATE, FEATURES, contradicted) == 20 + 7
    undone = {"event": "agreement", "stage": "student", "is_kept": False}
    assert _compute_time_left(ESTIMATE, FEATURES, contradicted, undone) == 7
    kept = {"event": "agreement", "stage": "warm-up", "is_kept": True}
    assert _compute_time_left(ESTIMATE, FEATURES, kept) == 60 + 7
    assert _compute_time_left(ESTIMATE, FEATURES, {"event": "done"}) == 0


def test_skipped_iterations_do_not_change_the_pace() -> None:
    first = _make_train_event("student", 1, 2, 0, 10, 20.0), _make_train_event("student", 1, 4, 0, 10, 28.0)
    skip = {"event": "movement", "stage": "student", "round": 1, "iteration": 4, "skipped": 3}
    # Two iterations take 8 s before the skip, and one takes 4 s after it, so the pace is 4 s.
    after = _make_train_event("student", 1, 8, 0, 10, 32.0), _make_train_event("student", 1, 9, 0, 10, 36.0)
    assert _compute_time_left(ESTIMATE, FEATURES, *first, skip, *after) == 11 * 4 + 7


def test_rounds_on_keypoints_replace_the_planned_rounds() -> None:
    steps = (
        _make_train_event("keypoints", 1, 5, 0, 10, 30.0),
        _make_train_event("keypoints", 1, 10, 0, 10, 50.0),
    )
    # Of the 20 iterations planned for the student, 10 are done. The last 5 iterations took 20 s.
    assert _compute_time_left(ESTIMATE, FEATURES, *steps) == 10 * 4 + 7


def test_the_pace_is_measured_anew_after_resuming_and_during_the_verification() -> None:
    # Resuming sets the seconds of the events back to 0. Afterwards, two iterations take 4 s.
    resumed = (
        _make_train_event("student", 1, 6, 0, 10, 60.0),
        _make_train_event("student", 1, 7, 0, 10, 1.0),
    )
    assert (
        _compute_time_left(ESTIMATE, FEATURES, *resumed, _make_train_event("student", 1, 9, 0, 10, 5.0))
        == 11 * 2 + 7
    )
    progress = {"event": "progress", "stage": SECOND_TRAINING, "of": 100}
    second = ({**progress, "time": 50.0, "done": 10}, {**progress, "time": 70.0, "done": 20})
    assert _compute_time_left(ESTIMATE, FEATURES, *second) == 80 * 2.0
