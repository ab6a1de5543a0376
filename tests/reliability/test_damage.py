"""Test that damaged files of a run are detected, reported, and replaced if possible."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from selfmark.discovery import discover
from selfmark.errors import DamagedFile, InputError
from selfmark.run.folder import Event, Run
from selfmark.run.tensor_files import read_tensors, write_tensors
from tests.conftest import selfmark
from tests.reliability.runs import TINY_FEATURES, assert_same_result

pytestmark = pytest.mark.usefixtures("without_report")


def flip_bit(path: Path) -> None:
    """Flip one bit near the end of the file, where the numbers are."""
    content = bytearray(path.read_bytes())
    content[len(content) * 7 // 8] ^= 4
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def resume(run: Path) -> list[Event]:
    """Resume a run and return the new events."""
    events: list[Event] = []
    discover(output=run, resume=True, device="cpu", listener=events.append)
    return events


@pytest.mark.parametrize("damage", [flip_bit, truncate])
@pytest.mark.parametrize("stage", ["stage1", "stage2"])
def test_the_checkpoint_before_a_damaged_one_is_used(
    stage: str, damage: Callable[[Path], None], finished: Path, quick_run: Path
) -> None:
    path = finished / "checkpoints" / f"{stage}.safetensors"
    damage(path)
    events = resume(finished)
    reported = [event for event in events if event["event"] == "damaged"]
    assert [event["path"] for event in reported] == [str(path)]
    iterations = {event["stage"]: event["iteration"] for event in events if event["event"] == "resumed"}
    assert iterations[stage] == {"stage1": 12, "stage2": 4}[stage]  # The run resumes here.
    assert_same_result(quick_run, finished)


def test_the_terminal_reports_the_damage(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_bit(finished / "checkpoints" / "stage2.safetensors")
    assert selfmark("discover", "-o", finished, "--resume", "--device", "cpu") == 0
    output = capsys.readouterr().out.replace("\n", "")
    assert "stage2.safetensors is damaged" in output
    assert "the checkpoint before it" in output


def test_without_an_intact_checkpoint_the_run_is_refused(finished: Path) -> None:
    for path in (finished / "checkpoints").glob("stage2*"):
        flip_bit(path)
    names = "stage2.safetensors and stage2.previous.safetensors"
    with pytest.raises(InputError, match=rf"stage2.*safetensors is damaged.*delete {names} in"):
        resume(finished)
    for path in (finished / "checkpoints").glob("stage2*"):
        path.unlink()
    resume(finished)


def test_an_earlier_checkpoint_is_announced_only_if_there_is_one(finished: Path) -> None:
    (finished / "checkpoints" / "stage2.previous.safetensors").unlink()
    flip_bit(finished / "checkpoints" / "stage2.safetensors")
    with pytest.raises(InputError, match=r"delete stage2.safetensors in"):
        resume(finished)
    assert [event for event in Run.open(finished).events() if event["event"] == "damaged"] == []


@pytest.mark.parametrize("name", ["first", "landmarks"])
def test_damaged_points_are_computed_again(name: str, finished: Path, quick_run: Path) -> None:
    path = finished / "points" / f"{name}.safetensors"
    flip_bit(path)
    assert str(path) in [event.get("path") for event in resume(finished)]
    assert_same_result(quick_run, finished)


def test_damaged_labels_are_refused_after_the_network_was_trained_further(
    finished: Path, quick_run: Path
) -> None:
    labels = finished / "points" / "round-02.safetensors"
    before = finished / "checkpoints" / "stage1.previous.safetensors"
    # The checkpoint before the last one is from the middle of round 2. The labels of this round were computed
    # with earlier weights, so the network of this checkpoint cannot
    # compute them again.
    shutil.copy(before, finished / "checkpoints" / "stage1.safetensors")
    flip_bit(labels)
    with pytest.raises(DamagedFile, match=r"round-02.safetensors is damaged.*a different result"):
        resume(finished)
    shutil.copy(quick_run / "points" / labels.name, labels)
    resume(finished)
    assert_same_result(quick_run, finished)


def test_damaged_labels_are_computed_again_only_if_the_computation_is_repeatable(finished: Path) -> None:
    path = finished / "points" / "round-01.safetensors"
    run = Run.open(finished)
    device = torch.device("cpu")
    before = run.load_or_compute_labels("round-01", device, lambda: pytest.fail("computed"))
    flip_bit(path)
    recomputed = run.load_or_compute_labels("round-01", device, lambda: before)
    assert (recomputed.label == before.label).all()
    flip_bit(path)
    with pytest.raises(DamagedFile):
        run.load_or_compute_labels("round-01", device, lambda: before, repeatable=False)


def test_a_file_with_other_tensors_is_refused(finished: Path) -> None:
    shutil.copy(finished / "model" / "weights.safetensors", finished / "points" / "first.safetensors")
    with pytest.raises(InputError, match=r"first.safetensors is not valid for this run"):
        resume(finished)


@pytest.fixture(scope="module")
def feature_run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("features") / "run"
    discover(photos, output=output, preset="tiny", settings=TINY_FEATURES, device="cpu")
    return output


@pytest.mark.parametrize(
    "name",
    ["points/zero-shot", "points/student-1", "points/landmarks", "checkpoints/student-1"],
)
def test_damaged_files_of_a_run_with_features_are_replaced(
    name: str, feature_run: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(feature_run, tmp_path / "run"))
    path = copy / f"{name}.safetensors"
    flip_bit(path)
    assert [event["path"] for event in resume(copy) if event["event"] == "damaged"] == [str(path)]
    assert_same_result(feature_run, copy)


def test_a_truncated_log_keeps_its_complete_lines(finished: Path) -> None:
    log = finished / "log.jsonl"
    count = len(Run.open(finished).events())
    log.write_text(log.read_text() + '{"time": 1, "eve')
    events = resume(finished)
    assert len(Run.open(finished).events()) == count + len(events)


@pytest.mark.parametrize("factor", [1e12, 3e37])
@pytest.mark.parametrize("command", [("predict",), ("predict", "--draw"), ("evaluate",)])
def test_weights_that_make_the_network_overflow_are_reported(
    factor: float,
    command: tuple[str, ...],
    finished: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = finished / "model" / "weights.safetensors"
    tensors, _ = read_tensors(path)
    write_tensors({name: (value * factor).clamp(-3e38, 3e38) for name, value in tensors.items()}, {}, path)
    assert selfmark(command[0], finished, photos, *command[1:], "--device=cpu", "-o", tmp_path / "out") == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert "weights of this detector are damaged" in error
    assert not (tmp_path / "out").exists()
