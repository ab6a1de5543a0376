"""Test that every reader of the files of a run accepts a crafted file, or raises an error of selfmark."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from selfmark.detector import Detector
from selfmark.errors import InputError, SelfmarkError
from selfmark.evaluation.stage1_landmarks import load_stage1_finder
from selfmark.mapping.mapped_detector import load_mapping
from selfmark.naming.shown_images import select_shown_images
from selfmark.report import report_page, run_report
from selfmark.report.metrics_schema import require_metrics
from selfmark.run.files import read_json, write_json
from selfmark.run.folder import Run
from selfmark.run.tensor_files import write_tensors
from selfmark.watch_page.run_state import RunState
from tests.conftest import selfmark

VALUES: tuple[Any, ...] = (
    None, -1, 0, 10**400, 1e308, float("nan"), True, "", "x", "\ud800", "\0", [], {}, [[]], {"a": None},
    [1] * 5,
)  # fmt: skip


def mutate(value: Any, rng: random.Random) -> Any:
    """Return a copy in which one value, anywhere, is replaced, removed or repeated."""
    value = copy.deepcopy(value)
    places = list(_iterate_places(value))
    if not places or rng.random() < 0.05:
        return rng.choice(VALUES)
    container, key = rng.choice(places)
    action = rng.random()
    if action < 0.2:
        del container[key]
    elif action < 0.3 and isinstance(container, list):
        container.append(container[key])
    else:
        container[key] = copy.deepcopy(rng.choice(VALUES))
    return value


def _iterate_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and the key of every value inside a JSON value."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = value.keys()
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _iterate_places(value[key])


def _show_log(run: Run) -> None:
    events = run.events()
    report_page.build_rounds_section(events)
    report_page.build_count_section(events)
    report_page.charts.build_loss_charts(events)
    state = RunState(run.path)
    state.update()
    json.dumps(state.to_json(), allow_nan=False)
    run_report._read_num_images(run)


def _show_metrics(run: Run) -> None:
    path = run.path / "metrics.json"
    metrics = read_json(path)
    if isinstance(metrics, dict):
        run_report.collect_metrics(metrics, 4, path)


# Mapping from the file to the number of crafted versions that are read, and the function that reads them.
READERS: dict[str, tuple[int, Callable[[Run], object]]] = {
    "run.json": (20, lambda run: Run.open(run.path)),
    "images.json": (100, lambda run: (run.refs(), select_shown_images(run.path, (), 3))),
    "held_out.json": (100, lambda run: run.held_out_refs()),
    "verification.json": (100, lambda run: require_metrics({"verification": run.read_verification()}, 4)),
    "landmark_count.json": (40, lambda run: run.apply_landmark_count()),
    "metrics.json": (200, _show_metrics),
    "model/model.json": (30, lambda run: Detector.load(run.path)),
    "log.jsonl": (200, _show_log),
}
CONTENT: dict[str, Any] = {
    "verification.json": {
        "images": 3,
        "forward": 1.5,
        "guessing_forward": 3.5,
        "backward": 2.0,
        "guessing_backward": 4.0,
        "second_run_images": 5,
        "backward_shares": [0.5, None, 1.0, 2.0],
    },
    "landmark_count.json": {"format": 1, "K": 4, "why": "x", "trials": []},
}
EXTRA_EVENTS: list[dict[str, Any]] = [
    {"event": "landmark_count", "K": 4, "why": "x", "trials": [
        {"K": 4, "score": 1, "error": 0, "detection": 1, "separation": 1, "agreement": 1}
    ]},
    {"event": "estimate", "seconds_per_iteration": {"round": 0.1}, "after": 3, "text": "x"},
    {"event": "agreement", "stage": "student", "is_kept": True},
    {"event": "plan", "rounds": 2, "stages": {"round": 4}},
]  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_crafted_json_files_are_read_or_refused_with_one_line(name: str, finished: Path) -> None:
    path, rng, run = finished / name, random.Random(name), Run.open(finished)
    if name == "log.jsonl":
        content: Any = (run.events() + EXTRA_EVENTS)[-30:]
    elif name in CONTENT:
        content = CONTENT[name]
    else:
        content = json.loads((finished / name.replace("held_out", "images")).read_text())
        content = content[:3] if isinstance(content, list) else content
    count, read = READERS[name]
    messages = []
    for _ in range(count):
        crafted = mutate(content, rng)
        lines = crafted if name == "log.jsonl" and isinstance(crafted, list) else [crafted]
        path.write_text("\n".join(map(json.dumps, lines)))
        try:
            read(run)
        except SelfmarkError as error:
            messages.append(str(error))
    assert len(messages) > 2
    assert not any("\n" in message for message in messages)


def test_an_incomplete_verification_does_not_reach_the_metrics(
    finished: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "metrics.json").read_bytes()
    content = CONTENT["verification.json"]
    for missing in content:
        write_json(
            {name: value for name, value in content.items() if name != missing},
            finished / "verification.json",
        )
        assert selfmark("evaluate", finished, photos, "--device=cpu") == 2
        error = " ".join(capsys.readouterr().err.split())
        assert f"verification.json is not valid for this run: '{missing}' is missing" in error
    assert (finished / "metrics.json").read_bytes() == before
    write_json(content, finished / "verification.json")
    assert selfmark("evaluate", finished, photos, "--device=cpu") == 0
    assert selfmark("report", finished) == 0


def test_most_crafted_points_are_refused(finished: Path) -> None:
    path = finished / "points" / "landmarks.safetensors"
    tensors, rng = load_file(path), random.Random(0)
    metadata = {"clusters": "4"}
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t[:-1], lambda t: t[None], lambda t: t.double(), lambda t: t.bool(), lambda t: t * 0 - 7,
        lambda t: t * 0 + 10**9, lambda t: t.float() / 0, lambda t: torch.tensor(1), lambda t: t[:0],
    ]  # fmt: skip
    num_refused, run = 0, Run.open(finished)
    for name in tensors:
        for change in (*changes, None):
            crafted = dict(tensors)
            crafted.pop(name)
            if change is not None:
                crafted[name] = change(tensors[name]).contiguous()
            write_tensors(crafted, metadata if rng.random() < 0.9 else {"clusters": "x"}, path)
            try:
                load_stage1_finder(run, "cpu")
                run_report._compute_detection_rates(run)
            except InputError as error:
                num_refused += "landmarks.safetensors" in str(error)
    assert num_refused > 5 * len(tensors)  # There are ten crafted versions of each tensor.


def test_crafted_maps_are_refused(finished: Path) -> None:
    detector = Detector.load(finished)
    write_json({"format": 1, "numbers": "x", "model": "y"}, finished / "model" / "map.json")
    for crafted in ({}, {"weights": torch.zeros(3)}, {"weights": torch.full((8, 8), float("nan"))}):
        write_tensors(crafted, {}, finished / "model" / "map.safetensors")
        with pytest.raises(InputError):
            load_mapping(finished, detector)
