"""Test the folders of `compare` and `--views`: crafted files, links and concurrent processes."""

from __future__ import annotations

import _thread
import errno
import json
import os
import re
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selfmark.comparison import measure, runner
from selfmark.comparison.comparison_plan import Comparison, MethodJob
from selfmark.errors import DamagedFile, DiskError, InputError, TrainingError, UnsafeFile
from selfmark.multiview import view_runs
from selfmark.multiview.view_boxes import View, read_views, write_views
from selfmark.run import files
from selfmark.run.files import read_json, write_json
from selfmark.run.guarded_files import remove_folder
from selfmark.run.locks import FolderLocked, exclusive
from tests.conftest import selfmark

VIEWS = [{"name": "top", "box": [0, 0, 8, 4]}, {"name": "bottom", "box": [0, 4, 8, 4]}]


@pytest.mark.parametrize(
    "views",
    [
        7,
        [],
        VIEWS[:1],
        [7, 8],
        [{"name": "top"}, VIEWS[1]],
        [{"name": "../top", "box": [0, 0, 8, 4]}, VIEWS[1]],
        [{"name": "\x1b[2J", "box": [0, 0, 8, 4]}, VIEWS[1]],
        [{"name": "top", "box": [0, 0, 8, 10**400]}, VIEWS[1]],
        [{"name": "top", "box": "0048"}, VIEWS[1]],
        [{"name": f"view{row}", "box": [0, row, 8, 1]} for row in range(101)],
    ],
)
def test_crafted_views_are_refused_by_every_command(
    views: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "views.json").write_text(json.dumps({"format": 1, "views": views}))
    with pytest.raises(InputError, match="not a valid list of views"):
        read_views(tmp_path)
    (tmp_path / "a.png").touch()
    for command in (
        ("predict", tmp_path, tmp_path / "a.png"),
        ("export", tmp_path, "--onnx"),
        ("watch", tmp_path),
    ):
        assert selfmark(*command) == 2
        assert "views.json is not a valid list of views" in " ".join(capsys.readouterr().err.split())


def test_links_in_a_folder_of_views_or_a_comparison_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "pilot").mkdir(parents=True)
    (outside / "pilot" / "kept.txt").write_text("kept")
    (outside / "run.json").write_text(json.dumps({"format": 1}))
    for marker in ("views.json", "comparison.json"):
        folder = tmp_path / f"with-{marker}"
        folder.mkdir()
        (folder / marker).write_text("{}")
        (folder / "top").symlink_to(outside)
        for operation in (
            lambda folder=folder: read_json(folder / "top" / "run.json"),
            lambda folder=folder: write_json({}, folder / "top" / "new.json"),
            lambda folder=folder: remove_folder(folder / "top" / "pilot"),
        ):
            with pytest.raises(InputError, match="does not follow links"):
                operation()
    assert sorted(path.name for path in outside.rglob("*")) == ["kept.txt", "pilot", "run.json"]


def test_views_are_written_and_read_back(tmp_path: Path) -> None:
    views = (View("top", (0.0, 0.0, 8.0, 4.0)), View("bottom", (0.0, 4.0, 8.0, 4.0)))
    write_views(views, tmp_path)
    assert read_views(tmp_path) == views


def _make_job(folder: Path) -> MethodJob:
    return MethodJob(Comparison(("images",), Path("labels.json"), 4, 1.0), "autolink", folder, "cpu")


@pytest.mark.parametrize(
    "change",
    [{"method": "dve"}, {"failure": None}, {"forward": None}, {"forward": "1"}, {"k": -1}, {"verdict": [1]}],
)
def test_a_crafted_result_of_a_comparison_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    job = _make_job(tmp_path)
    row = measure._empty_row(job) | {"forward": 1.0, "minutes": 2.0}
    write_json(row, job.result_file)
    assert measure.measure_method(job) == row
    write_json(row | change, job.result_file)
    with pytest.raises(InputError, match=r"result\.json is not a result of a comparison"):
        measure.measure_method(job)


@pytest.mark.parametrize(
    "error",
    [
        FolderLocked("another process"),
        DiskError("the disk is full"),
        DamagedFile("the weights are damaged"),
        UnsafeFile("model is a link"),
    ],
)
def test_a_failure_that_the_user_can_repair_is_not_recorded(
    error: InputError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: object) -> None:
        raise error

    job = _make_job(tmp_path)
    monkeypatch.setattr(measure, "_train_and_measure", train)
    with pytest.raises(type(error)):
        measure.measure_method(job)
    assert not job.result_file.exists()
    error = InputError("too few images")  # From now on, `train` raises this error.
    assert measure.measure_method(job)["failure"] == "too few images"
    assert job.result_file.exists()


def test_a_damaged_schedule_is_not_recorded_as_a_failure(tmp_path: Path) -> None:
    job = _make_job(tmp_path)
    for content, problem in (("7", "is not a schedule: delete it"), ("{", "schedule.json is not valid JSON")):
        job.schedule_file.write_text(content)
        with pytest.raises(InputError, match=problem):
            measure.measure_method(job)
    assert not job.result_file.exists()


def test_only_a_failed_training_of_a_resumed_method_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other error means that files of the earlier attempt are missing or damaged."""
    errors: list[Exception] = [TrainingError("collapsed"), InputError("config.yaml is missing")]

    def train(*_: object) -> None:
        raise errors.pop()

    job = _make_job(tmp_path)
    job.schedule_file.write_text("{}")
    monkeypatch.setattr(measure, "_train_and_measure", train)
    with pytest.raises(InputError, match=rf"config\.yaml is missing; .* delete {re.escape(str(tmp_path))}"):
        measure.measure_method(job)
    assert measure.measure_method(job)["failure"] == "collapsed"


@pytest.fixture
def trained_job(finished: Path, labeled: Path, tmp_path: Path) -> MethodJob:
    """Return a method of a comparison that is trained, but not measured yet."""
    comparison = Comparison((str(labeled / "images"),), labeled / "labels.json", 4, 1.0, preset="tiny")
    job = MethodJob(comparison, "self-training", tmp_path / "out" / "self-training", "cpu")
    job.folder.mkdir(parents=True)
    finished.rename(job.run_folder)
    job.schedule_file.write_text("{}")
    return job


@pytest.mark.parametrize("file", ["metrics.json", "run/predictions/*.safetensors", "result.json"])
def test_a_disk_that_fills_up_during_the_evaluation_is_not_recorded_as_a_failure(
    file: str, trained_job: MethodJob, monkeypatch: pytest.MonkeyPatch, without_report: None
) -> None:
    sync_file = files._sync_file
    is_full = [True]

    def sync_until_full(path: Path, folder: int) -> None:
        if path.match(f"{file}.part") and is_full:
            is_full.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync_file(path, folder)

    monkeypatch.setattr(files, "_sync_file", sync_until_full)
    with pytest.raises((DiskError, OSError), match="No space left on device"):
        measure.measure_method(trained_job)
    assert not is_full
    assert not trained_job.result_file.exists()
    row = measure.measure_method(trained_job)  # The disk has space again.
    assert row["failure"] == ""
    assert row["forward"] > 0


def test_damaged_weights_are_not_recorded_as_a_failure(trained_job: MethodJob, without_report: None) -> None:
    weights = trained_job.run_folder / "model" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DamagedFile, match="does not match its checksum"):
        measure.measure_method(trained_job)
    weights.unlink()
    with pytest.raises(InputError, match=r"weights\.safetensors is missing.*; .* delete"):
        measure.measure_method(trained_job)
    assert not trained_job.result_file.exists()


def test_a_comparison_that_is_already_running_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "read_ground_truth", lambda *inputs: None)
    monkeypatch.setattr(runner, "list_images", lambda inputs: [])
    monkeypatch.setattr(runner, "digest_inputs", lambda comparison: {})
    monkeypatch.setattr(runner, "run_in_process", lambda job: pytest.fail("a method was started"))
    comparison = _make_job(tmp_path).comparison
    write_json(runner.describe(comparison), tmp_path / "comparison.json")
    with exclusive(tmp_path), pytest.raises(InputError, match="another process is working on"):
        runner.run_comparison(comparison, tmp_path)


@pytest.fixture
def without_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `run_comparison` read neither images nor labels."""
    monkeypatch.setattr(runner, "read_ground_truth", lambda *inputs: None)
    monkeypatch.setattr(runner, "list_images", lambda inputs: [])
    monkeypatch.setattr(runner, "digest_inputs", lambda comparison: {})
    monkeypatch.setattr(runner, "_check_settings", lambda *inputs: None)


def test_two_comparisons_that_start_at_the_same_time_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_inputs: None
) -> None:
    """The other command writes comparison.json right before this one gets the lock."""
    monkeypatch.setattr(runner, "_run_methods", lambda *inputs: pytest.fail("a method was started"))
    comparison, output = _make_job(tmp_path).comparison, tmp_path / "out"
    others = runner.describe(replace(comparison, landmarks=5))

    def lock_late(folder: Path) -> AbstractContextManager[int]:
        write_json(others, output / "comparison.json")
        return exclusive(folder)

    monkeypatch.setattr(runner, "exclusive", lock_late)
    with pytest.raises(InputError, match="contains another comparison"):
        runner.run_comparison(comparison, output)
    assert json.loads((output / "comparison.json").read_text()) == others


def test_a_comparison_starts_in_what_a_killed_one_left_but_not_in_a_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_inputs: None
) -> None:
    monkeypatch.setattr(runner, "_run_methods", lambda *inputs: [])
    comparison, output = _make_job(tmp_path).comparison, tmp_path / "out"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and contains no comparison"):
        runner.run_comparison(comparison, output)
    assert [path.name for path in output.iterdir()] == ["notes.txt"]
    (output / "notes.txt").unlink()
    for name in (".lock", "comparison.json.part"):
        (output / name).touch()
    assert runner.run_comparison(comparison, output) == []
    assert (output / "comparison.json").exists()


def test_views_that_two_commands_start_at_the_same_time_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = [View("top", (0.0, 0.0, 8.0, 4.0)), View("bottom", (0.0, 4.0, 8.0, 4.0))]
    others = (View("left", (0.0, 0.0, 4.0, 8.0)), View("right", (4.0, 0.0, 4.0, 8.0)))
    output = tmp_path / "out"

    def start_the_other(*_: object) -> None:
        output.mkdir()
        write_views(others, output)

    monkeypatch.setattr(view_runs, "require_views_inside_all", start_the_other)
    monkeypatch.setattr(view_runs, "list_images", lambda *inputs: [])
    with pytest.raises(InputError, match="is not empty"):
        view_runs.discover_views(
            ["images"], views, output, 1, False, {}, {}, lambda **_: pytest.fail("a view was started")
        )
    assert read_views(output) == others


def test_an_interrupted_comparison_ends_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM reaches only the command, which ends the process of the current method and starts no other."""
    ended: list[str] = []
    started: list[str] = []

    class Process:
        def terminate(self) -> None:
            ended.append("terminated")
            finished.set()

    finished = threading.Event()

    def run(job: MethodJob, on_start: Any) -> dict[str, Any]:
        started.append(job.name)
        on_start(Process())
        _thread.interrupt_main()
        assert finished.wait(20)
        raise InputError("ended")

    monkeypatch.setattr(runner, "run_in_process", run)
    comparison = Comparison(("images",), Path("labels.json"), 4, 1.0, ("autolink", "dve"))
    with pytest.raises(KeyboardInterrupt):
        runner._run_methods(comparison, tmp_path, ["cpu"], lambda *_: None, lambda *_: None)
    assert (started, ended) == (["autolink"], ["terminated"])
