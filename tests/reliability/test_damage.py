"""Files of a run that a failing disk has changed: noticed by name, and mended where that is possible."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from selfmark.discovery import discover
from selfmark.errors import DamagedFile, InputError
from selfmark.run.folder import Event, Run
from tests.conftest import selfmark
from tests.reliability.runs import same_bits

pytestmark = pytest.mark.usefixtures("bare")


def flip(path: Path) -> None:
    """Change one bit in the middle of the last quarter, where numbers are."""
    content = bytearray(path.read_bytes())
    content[len(content) * 7 // 8] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def resume(run: Path) -> list[Event]:
    """Go on with a run; the events of doing so."""
    events: list[Event] = []
    discover(output=run, resume=True, device="cpu", listener=events.append)
    return events


@pytest.mark.parametrize("damage", [flip, cut], ids=["flipped", "cut"])
@pytest.mark.parametrize("stage", ["stage1", "stage2"])
def test_the_checkpoint_before_a_damaged_one_is_used(
    stage: str, damage: Callable[[Path], None], finished: Path, quick_run: Path
) -> None:
    path = finished / "checkpoints" / f"{stage}.safetensors"
    damage(path)
    events = resume(finished)
    told = [event for event in events if event["event"] == "damaged"]
    assert [event["path"] for event in told] == [str(path)]
    iterations = {event["stage"]: event["iteration"] for event in events if event["event"] == "resumed"}
    assert iterations[stage] == {"stage1": 12, "stage2": 4}[stage]  # what quick_run kept before the last
    same_bits(quick_run, finished)


def test_the_terminal_says_so(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(finished / "checkpoints" / "stage2.safetensors")
    assert selfmark("discover", "-o", finished, "--resume", "--device", "cpu") == 0
    said = capsys.readouterr().out.replace("\n", "")
    assert "stage2.safetensors is damaged" in said
    assert "the checkpoint before it" in said


def test_without_a_sound_checkpoint_the_run_is_refused_by_name(finished: Path) -> None:
    for path in (finished / "checkpoints").glob("stage2*"):
        flip(path)
    with pytest.raises(InputError, match=r"stage2.*safetensors is damaged.*delete"):
        resume(finished)
    for path in (finished / "checkpoints").glob("stage2*"):
        path.unlink()
    resume(finished)


@pytest.mark.parametrize("name", ["first", "landmarks"])
def test_damaged_points_are_computed_anew(name: str, finished: Path, quick_run: Path) -> None:
    path = finished / "points" / f"{name}.safetensors"
    flip(path)
    assert str(path) in [event.get("path") for event in resume(finished)]
    same_bits(quick_run, finished)


def test_damaged_labels_are_computed_anew_only_where_that_gives_the_same(
    finished: Path, quick_run: Path
) -> None:
    labels = finished / "points" / "round-02.safetensors"
    before = finished / "checkpoints" / "stage1.previous.safetensors"
    # As if it had ended within round 2, whose labels the network of that moment would not give again.
    shutil.copy(before, finished / "checkpoints" / "stage1.safetensors")
    flip(labels)
    with pytest.raises(DamagedFile, match=r"round-02.safetensors is damaged.*another result"):
        resume(finished)
    shutil.copy(quick_run / "points" / labels.name, labels)
    resume(finished)
    same_bits(quick_run, finished)


def test_labels_are_computed_anew_at_the_start_of_their_round(finished: Path) -> None:
    path = finished / "points" / "round-01.safetensors"
    run = Run.open(finished)
    device = torch.device("cpu")
    there = run.load_or_compute_labels("round-01", device, lambda: pytest.fail("computed"))
    flip(path)
    again = run.load_or_compute_labels("round-01", device, lambda: there)
    assert (again.label == there.label).all()
    flip(path)
    with pytest.raises(DamagedFile):
        run.load_or_compute_labels("round-01", device, lambda: there, repeatable=False)


def test_points_of_another_kind_are_refused(finished: Path) -> None:
    shutil.copy(finished / "model" / "weights.safetensors", finished / "points" / "first.safetensors")
    with pytest.raises(InputError, match=r"first.safetensors does not belong to this run"):
        resume(finished)


def test_a_log_cut_short_keeps_its_other_lines(finished: Path) -> None:
    log = finished / "log.jsonl"
    count = len(Run.open(finished).events())
    log.write_text(log.read_text() + '{"time": 1, "eve')
    events = resume(finished)
    assert len(Run.open(finished).events()) == count + len(events)
