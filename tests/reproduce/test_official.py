"""Real trainings, of a schedule of seconds, on what the real readers give of miniature official layouts."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark import pipeline
from selfmark.images.flow import carry
from selfmark.reproduce import command
from tests.datasets import small_bodies
from tests.reproduce.conftest import short

pytestmark = pytest.mark.usefixtures("real_readers")


def _made(name: str, data: Path, output: Path, **more: Any) -> dict[str, list[float]]:
    """The numbers of each row that was made here, every training and measurement of it real."""
    changes = short(name) | more
    command.reproduce([name], data, output, "tiny", changes, "cpu", say=lambda line: None)
    with (output / f"{name}.csv").open() as handle:
        lines = list(csv.reader(handle))[1:]
    return {line[0]: [float(cell) for cell in line[1::3]] for line in lines if line[1]}


@pytest.mark.parametrize("films", [False, True])
def test_bbcpose_is_trained_on_pairs_in_time(
    films: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the frames of the official archive, and of films."""
    small_bodies.make_bbcpose(tmp_path / "data" / "bbcpose", films)
    paired: list[np.ndarray] = []

    def watched(*arguments: Any) -> Any:
        paired.append(arguments[3])
        return carry(*arguments)

    monkeypatch.setattr(pipeline, "carry", watched)
    made = _made("bbcpose", tmp_path / "data", tmp_path / "out")
    assert all(0 <= value <= 100 for value in made["Ours"])
    assert paired
    for near in paired:
        video = np.repeat(np.arange(10), 3)
        video = video if films else np.delete(video, 7)  # frame 111 of video 3 is not there
        found = near >= 0
        assert found.mean() > 0.5
        assert (video[near] == video[:, None])[found].all()
