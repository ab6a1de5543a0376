"""Name the stages of a training, as displayed to users."""

from __future__ import annotations

# Mapping from the names of stages in log events to their displayed names.
_NAMES = {
    "applying Phi": "describing keypoints",  # in logs of selfmark 0.1
    "stage 2": "training the detector",
    "method": "training",  # the only stage of `methods.training`
}
# The same mapping for stages that consist of rounds.
_ROUNDS = {"student": "learning landmarks", "keypoints": "learning keypoints"}


def describe_stage(stage: str, number: int, rounds: int, student_rounds: int) -> str:
    """Return the displayed name of the stage of a log event.

    >>> describe_stage("round", 2, 4, 0), describe_stage("student", 1, 4, 3)
    ('training round 2 of 4', 'learning landmarks, round 1 of 3')

    Args:
        stage: stage of the event.
        number: round of the event.
        rounds: number of rounds of Stage 1.
        student_rounds: number of rounds of the stages `student` and `keypoints`.
    """
    if stage == "round":
        return f"training round {number} of {rounds}"
    if stage in _ROUNDS:
        return f"{_ROUNDS[stage]}, round {number} of {student_rounds}"
    return _NAMES.get(stage, stage)
