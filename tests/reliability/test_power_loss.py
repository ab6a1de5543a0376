"""Test runs after a simulated power failure, which undoes all changes of files since their last sync."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.run.files import read_json
from selfmark.run.folder import Run
from selfmark.run.tensor_files import read_tensors
from tests.conftest import QUICK
from tests.reliability.runs import assert_same_result

pytestmark = pytest.mark.usefixtures("without_report")


class Disk:
    """The data that survive a power failure: files and folders as they were at their last sync."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders: dict[int, dict[str, int]] = {}  # from a folder's inode to its entries
        self.files: dict[int, bytes] = {}  # from a file's inode to its content
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            entries = {entry.name: entry.inode() for entry in os.scandir(descriptor)}
            self.folders[status.st_ino] = entries
        else:
            self.files[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        self.syncs += 1

    def restore(self, target: Path) -> None:
        """Write to `target` what is left of the root after a power failure."""
        parent = self.folders.get(self.root.parent.stat().st_ino, {})
        if self.root.name in parent:
            self._restore(parent[self.root.name], target)

    def _restore(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, entry in self.folders.get(inode, {}).items():
            if entry in self.folders:
                self._restore(entry, target / name)
            elif entry in self.files:
                (target / name).write_bytes(self.files[entry])
            else:
                (target / name).touch()  # The file exists, but none of its content is on the disk.


def _check_files(folder: Path) -> str:
    """Raise if a file under its final name is incomplete; return how far the run is."""
    for path in folder.rglob("*.safetensors"):
        read_tensors(path)
    for path in folder.rglob("*.json"):
        read_json(path)
    if not (folder / "run.json").exists():
        return "not created"
    assert len(Run.open(folder).refs()) == 24
    if not (folder / "model" / "model.json").exists():
        return "training"
    Detector.load(folder)
    return "trained"


def test_after_a_power_failure_all_files_are_complete_and_the_run_resumes(
    photos: Path, quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, states = Disk(tmp_path / "work" / "run"), list[str]()
    fsync = os.fsync
    resumed = tmp_path / "resumed"
    disk.root.parent.mkdir()

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        disk.sync(descriptor)
        if disk.syncs % 4 == 0 or disk.syncs < 20:  # Test the first 19 syncs, then every fourth.
            target = tmp_path / f"state-{disk.syncs}"
            disk.restore(target)
            states.append(_check_files(target) if target.exists() else "not created")
            is_in_the_middle = states[-1] == "training" and len(states) > 25
            if is_in_the_middle and not resumed.exists():
                target.rename(resumed)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        discover(photos, output=disk.root, preset="tiny", settings=QUICK, device="cpu")
    assert set(states) == {"not created", "training", "trained"}
    assert states == sorted(states, key=["not created", "training", "trained"].index), (
        "a later state is less complete"
    )
    discover(output=resumed, resume=True, device="cpu")
    assert_same_result(quick_run, resumed)
