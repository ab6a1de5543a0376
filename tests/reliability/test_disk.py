"""Test full and read-only disks, missing folders, interrupted starts, links in runs, and low memory."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from selfmark.config import preset
from selfmark.discovery import discover
from selfmark.errors import DiskError, InputError, TrainingError
from selfmark.pipeline import report_out_of_memory
from selfmark.run import files, locks
from selfmark.run.folder import Event, Run
from selfmark.train import engine
from tests.conftest import QUICK, QUICK_OPTIONS, selfmark
from tests.reliability.runs import assert_same_result
from tests.stored_results import read_files

pytestmark = pytest.mark.usefixtures("without_report")


def start_run(photos: Path, output: Path, **options: object) -> None:
    discover(photos, output=output, preset="tiny", settings=QUICK, device="cpu", **options)  # type: ignore[arg-type]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    code = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True
    ).returncode
    if code != 0:
        pytest.skip("no permission to mount a file system; the next test injects the same error instead")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def test_a_run_resumes_after_a_full_and_a_read_only_disk(
    photos: Path, quick_run: Path, small_disk: Path
) -> None:
    output = small_disk / "run"
    with pytest.raises(DiskError, match=r"cannot write to .*: No space left on device; .*--resume"):
        start_run(photos, output)
    remount(small_disk, "ro")
    with pytest.raises(DiskError, match=r"cannot write to .*: Read-only file system"):
        discover(output=output, resume=True, device="cpu")
    with pytest.raises(InputError, match=r"cannot write to .*: Read-only file system"):
        start_run(photos, small_disk / "another")
    remount(small_disk, "rw,size=64m")
    discover(output=output, resume=True, device="cpu")
    assert_same_result(quick_run, output)


def test_a_run_resumes_after_the_disk_was_full_while_writing_a_tensor_file(
    photos: Path, quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_file = 9  # The ninth tensor file has the labels of round 2.
    sync_file, count = files._sync_file, 0

    def sync_until_full(path: Path, folder: int) -> None:
        nonlocal count
        count += path.name.endswith(".safetensors.part")
        if count == failing_file:
            os.truncate(path, 10)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync_file(path, folder)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_sync_file", sync_until_full)
        with pytest.raises(DiskError, match="No space left on device"):
            start_run(photos, tmp_path / "run")
    assert not list(tmp_path.rglob("*.part"))
    discover(output=tmp_path / "run", resume=True, device="cpu")
    assert_same_result(quick_run, tmp_path / "run")


def test_a_run_resumes_after_its_folder_was_moved_away(photos: Path, quick_run: Path, tmp_path: Path) -> None:
    output, moved_output = tmp_path / "run", tmp_path / "away"

    def listener(event: Event) -> None:
        if event["event"] == "train" and event["stage"] == "round" and output.exists():
            output.rename(moved_output)

    with pytest.raises(DiskError, match=r"the folder is no longer there"):
        start_run(photos, output, listener=listener)
    assert not output.exists()  # Nothing was created in its place.
    moved_output.rename(output)
    discover(output=output, resume=True, device="cpu")
    assert_same_result(quick_run, output)


def test_a_process_does_not_write_to_a_run_that_replaced_its_own(
    photos: Path, quick_run: Path, tmp_path: Path
) -> None:
    output, moved_output = tmp_path / "run", tmp_path / "away"
    replaced = []

    def listener(event: Event) -> None:
        if event["event"] == "train" and event["stage"] == "round" and not moved_output.exists():
            output.rename(moved_output)
            shutil.copytree(quick_run, output)
            replaced.append(read_files(output))

    with pytest.raises(DiskError, match="is not the folder that this process works on"):
        start_run(photos, output, listener=listener)
    assert read_files(output) == replaced[0]
    shutil.rmtree(output)
    moved_output.rename(output)
    discover(output=output, resume=True, device="cpu")
    assert_same_result(quick_run, output)


def test_the_command_line_reports_disk_errors_in_one_line(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(locks, "open_for_append", refuse)
    assert selfmark("discover", "-o", finished, "--resume", "--device", "cpu") == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("selfmark: cannot write to")
    assert "\n" not in message


@pytest.mark.parametrize("unfinished", ["config.yaml.part", "run.json.part"])
def test_a_run_can_be_created_after_an_interrupted_start(unfinished: str, tmp_path: Path) -> None:
    output = tmp_path / "run"
    for part in ("points", "checkpoints"):
        (output / part).mkdir(parents=True)
    (output / unfinished).write_text("{")
    (output / ".start.0123abcd.part").mkdir()  # a copy of the detector that --start-from names
    with pytest.raises(InputError, match="is not a run folder"):
        Run.open(output)
    Run.create(output, preset("tiny"), ["x"], [])
    assert Run.open(output).refs() == []
    with pytest.raises(InputError, match="already contains a run"):
        Run.create(output, preset("tiny"), ["x"], [])


def test_a_run_is_not_created_while_another_process_creates_one(tmp_path: Path) -> None:
    output = tmp_path / "run"
    output.mkdir()
    with locks.exclusive(output), pytest.raises(InputError, match="another process is working on"):
        Run.create(output, preset("tiny"), ["x"], [])
    assert not (output / "run.json").exists()


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"path": 3}]', '[{"path": "a", "frame": 1, "box": 5}]'])
def test_an_invalid_list_of_images_is_refused(content: str, finished: Path) -> None:
    (finished / "images.json").write_text(content)
    with pytest.raises(InputError, match=r"images.json is not valid for this run"):
        Run.open(finished).refs()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    for name in ("points/mine.csv", "notes.txt"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
        with pytest.raises(InputError, match="not an empty folder"):
            Run.create(folder, preset("tiny"), ["x"], [])
        assert (folder / name).read_text() == "mine"


def test_nothing_is_written_through_links_in_a_run_folder(finished: Path, tmp_path: Path) -> None:
    for name in (".lock", "log.jsonl"):
        victim = tmp_path / "victim"
        victim.write_text("untouched")
        path = finished / name
        content = path.read_bytes()
        path.unlink()
        path.symlink_to(victim)
        with pytest.raises(InputError, match="is a link"):
            discover(output=finished, resume=True, device="cpu")
        assert victim.read_text() == "untouched"
        path.unlink()
        path.write_bytes(content)


def test_a_run_that_is_out_of_memory_can_be_resumed_with_a_smaller_batch(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_step, calls = engine._Step.__call__, 0

    def raise_out_of_memory(step: object, *batch: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        run_step(step, *batch)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(engine._Step, "__call__", raise_out_of_memory)
        code = selfmark("discover", photos, "-o", tmp_path / "run", *QUICK_OPTIONS)
    assert code == 1
    assert [
        event["iteration"] for event in Run.open(tmp_path / "run").events() if event["event"] == "checkpoint"
    ]
    with pytest.raises(InputError, match=r"'K' cannot change when a run is resumed"):
        discover(output=tmp_path / "run", resume=True, settings={"K": 3}, device="cpu")
    events: list[Event] = []
    settings = {"runtime.batch": "1"}
    discover(output=tmp_path / "run", resume=True, settings=settings, device="cpu", listener=events.append)
    assert Run.open(tmp_path / "run").config.runtime.batch == 1
    assert next(event["iteration"] for event in events if event["event"] == "resumed") == 8


def test_out_of_memory_messages_name_the_setting(finished: Path) -> None:
    opened = Run.open(finished)
    for value, words in ((8, "--resume --set stage2.batch=4"), (1, "smaller images.size")):
        with pytest.raises(TrainingError, match=words), report_out_of_memory(opened, "stage2.batch", value):
            raise torch.OutOfMemoryError("CUDA out of memory")


def test_out_of_memory_in_the_final_checks_names_the_setting(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("selfmark.discovery.check_run", raise_out_of_memory)
    with pytest.raises(TrainingError, match=r"--resume --set runtime.predict_batch="):
        discover(output=finished, resume=True, device="cpu")
