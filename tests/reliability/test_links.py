"""Test that links in run folders from strangers are not followed, and that special files do not block."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from selfmark.config import preset
from selfmark.detector import Detector
from selfmark.errors import InputError, UnsafeFile
from selfmark.evaluation.cached_predictions import load_or_predict, run_fingerprint
from selfmark.evaluation.run_models import RunModels
from selfmark.evaluation.stage1_landmarks import load_stage1_finder
from selfmark.mapping.mapped_detector import load_mapping
from selfmark.model.card import read_card
from selfmark.naming.landmark_prediction import predict_landmarks
from selfmark.naming.shown_images import load_cached_landmarks, select_shown_images
from selfmark.report.run_report import build_report
from selfmark.run.files import atomic_folder, open_for_append, read_json, write_json, write_text
from selfmark.run.folder import Run
from selfmark.run.guarded_files import create_file, make_folder, make_folders, remove_file, remove_folder
from selfmark.run.locks import exclusive
from selfmark.run.tensor_files import read_tensors, write_tensors
from selfmark.weights_cache import compute_file_sha256
from tests.conftest import selfmark
from tests.stored_results import read_files


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    """Kill the process after 60 seconds, because a test that waits for a named pipe would never end."""
    signal.alarm(60)
    yield
    signal.alarm(0)


def _predict(run: Path) -> None:
    predict_landmarks(run, Run.open(run).refs()[:1], "fingerprint", "cpu")


def _evaluate(run: Path) -> None:
    models = RunModels.open(Run.open(run), "cpu")
    load_or_predict(models, models.run.refs()[:1])


def _save_model(run: Path) -> None:
    shutil.copytree(run / "model", run / "copy")
    detector = Detector.load(run / "copy")
    detector.save(run / "model")


def _write_points(run: Path) -> None:
    (run / "points" / "directions.safetensors").unlink(missing_ok=True)
    Run.open(run).load_or_compute_tensors("directions", torch.device("cpu"), lambda: {"a": torch.zeros(1)})


def _write_checkpoint(run: Path) -> None:
    Run.open(run).write_round_weights(1, torch.nn.Linear(1, 1))


WRITERS: dict[str, Callable[[Path], object]] = {
    "naming": _predict,
    "naming/frames-fingerprint": _predict,
    "report": lambda run: build_report(RunModels.open(Run.open(run), "cpu")),
    "model": _save_model,
    "points": _write_points,
    "checkpoints": _write_checkpoint,
    "predictions": _evaluate,
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_command_writes_or_deletes_through_a_linked_folder(
    name: str, finished: Path, tmp_path: Path
) -> None:
    linked, victim = finished / name, tmp_path / "victim"
    if linked.exists():
        shutil.move(linked, victim)
    (victim / "frames").mkdir(parents=True)
    for file in ("mine.txt", "index.html", "frames/0.jpg", "landmarks.safetensors", "weights.safetensors"):
        if not (victim / file).exists():
            (victim / file).write_text("mine")
    before = read_files(victim)
    linked.parent.mkdir(exist_ok=True)
    linked.symlink_to(victim)
    with pytest.raises(UnsafeFile, match="is a link"):
        WRITERS[name](finished)
    assert read_files(victim) == before


@pytest.mark.parametrize("command", ["refine", "undo", "map", "name", "export"])
def test_a_linked_model_is_refused_even_without_a_run_file(
    command: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without run.json, nothing marks the folder as a run whose links are not followed."""
    (finished / "run.json").unlink()
    victim = tmp_path / "victim"
    shutil.move(finished / "model", victim)
    (finished / "model").symlink_to(victim)
    before = read_files(victim)
    arguments = {
        "refine": ["refine", finished, "--force", "--labels", tmp_path / "labels.json"],
        "undo": ["refine", finished, "--undo"],
        "map": ["map", finished, tmp_path, "--labels", tmp_path / "labels.json"],
        "name": ["name", finished, tmp_path, "--no-browser"],
        "export": ["export", finished, "--onnx"],
    }
    (tmp_path / "labels.json").write_text("{}")
    assert selfmark(*arguments[command]) == 2
    assert f"{finished / 'model'} is a link" in capsys.readouterr().err.replace("\n", " ")
    assert read_files(victim) == before


def test_a_named_pipe_in_the_place_of_a_folder_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "frames")
    with pytest.raises(UnsafeFile, match="frames is not a folder"):
        remove_folder(tmp_path / "frames")
    assert (tmp_path / "frames").exists()


OPERATIONS: dict[str, Callable[[Path], Any]] = {
    "write": lambda folder: write_text("new", folder / "a.txt"),
    "json": lambda folder: write_json({}, folder / "a.txt"),
    "tensors": lambda folder: write_tensors({}, {}, folder / "a.txt"),
    "append": lambda folder: open_for_append(folder / "a.txt"),
    "create": lambda folder: create_file(folder / "a.txt"),
    "remove": lambda folder: remove_file(folder / "a.txt"),
    "remove folder": lambda folder: remove_folder(folder / "sub"),
    "remove linked folder": lambda folder: remove_folder(folder),
    "make folder": lambda folder: make_folder(folder / "new"),
    "make folders": lambda folder: make_folders(folder / "new" / "newer"),
    "atomic folder": lambda folder: atomic_folder(folder / "new").__enter__(),
    "lock": lambda folder: exclusive(folder).__enter__(),
    "lock folder": lambda folder: exclusive(folder, lock_file=False).__enter__(),
    "read": lambda folder: read_json(folder / "a.txt"),
    "read tensors": lambda folder: read_tensors(folder / "a.txt"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("marker", ["run.json", "model.json"])
def test_links_in_any_component_of_a_path_in_a_run_folder_are_refused(
    marker: str, operation: str, tmp_path: Path
) -> None:
    root, victim = tmp_path / "root", tmp_path / "victim"
    (root / "inner").mkdir(parents=True)
    (root / marker).write_text("{}")
    (victim / "deep" / "sub").mkdir(parents=True)
    for folder in (victim, victim / "deep"):
        (folder / "run.json").write_text("{}")  # A run.json behind the link does not make the link trusted.
        (folder / "a.txt").write_text("{}")
    (root / "inner" / "link").symlink_to(victim)
    before = read_files(victim)
    folders = [root / "inner" / "link", root / "inner" / "link" / "deep"]
    if operation == "remove linked folder":
        folders = folders[:1]
    for folder in folders:
        with pytest.raises(UnsafeFile, match="link is a link"):
            OPERATIONS[operation](folder)
    assert read_files(victim) == before
    assert (victim / "deep" / "sub").is_dir()


def test_links_outside_a_run_folder_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk" / "run" / "points").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("disk")
    for folder in (tmp_path / "runs" / "run", tmp_path / "runs" / ".." / "runs" / "run"):
        write_json({}, folder / "run.json")
        write_json([1], folder / "points" / "a.json")
        assert read_json(folder / "points" / "a.json") == [1]
    (tmp_path / "link.json").symlink_to(tmp_path / "disk" / "run" / "points" / "a.json")
    assert read_json(tmp_path / "link.json") == [1]
    monkeypatch.chdir(tmp_path / "runs" / "run")
    make_folders(Path("naming/frames"))
    write_json([2], Path("naming/frames/b.json"))
    assert (tmp_path / "disk" / "run" / "naming" / "frames" / "b.json").is_file()


def test_a_new_run_does_not_use_links_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "points").symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="is not an empty folder"):
        Run.create(tmp_path / "run", preset("tiny"), ["x"], [])


def test_appending_does_not_change_a_hard_linked_file(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "log.jsonl"
    victim.write_text("mine\n")
    path.hardlink_to(victim)
    with open_for_append(path) as handle:
        handle.write("new\n")
    assert victim.read_text() == "mine\n"
    assert path.read_text() == "mine\nnew\n"


# --- special files ---------------------------------------------------------------------------------------


def _lock(run: Path) -> None:
    with Run.open(run).lock():
        pass


READERS: dict[str, Callable[[Path], object]] = {
    "run.json": Run.open,
    "config.yaml": Run.open,
    "images.json": lambda run: Run.open(run).refs(),
    "held_out.json": lambda run: Run.open(run).held_out_refs(),
    "verification.json": lambda run: Run.open(run).read_verification(),
    "log.jsonl": lambda run: Run.open(run).events(),
    ".lock": _lock,
    "metrics.json": lambda run: build_report(RunModels.open(Run.open(run), "cpu")),
    "model/model.json": Detector.load,
    "model/weights.safetensors": Detector.load,
    "model/features.safetensors": Detector.load,
    "model/map.json": lambda run: load_mapping(run, Detector.load(run)),
    "points/landmarks.safetensors": lambda run: load_stage1_finder(Run.open(run), "cpu"),
    "checkpoints/stage1.safetensors": lambda run: load_stage1_finder(Run.open(run), "cpu"),
    "naming/landmarks.safetensors": lambda run: load_cached_landmarks(
        run, select_shown_images(run, (), 1), "fingerprint", 4
    ),
}


def _make_fifo(path: Path) -> None:
    os.mkfifo(path)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": _make_fifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/stdin"),
    "folder": lambda path: path.mkdir(),
    "sparse": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 42),
}
# Pairs of a kind of special file and a place where it does no harm: selfmark does not read the content of the
# lock file, and predicts landmarks again if it cannot use their file.
HARMLESS = {("sparse", ".lock"), ("sparse", "naming/landmarks.safetensors")}


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_files_never_block_or_exhaust_memory(kind: str, finished: Path) -> None:
    (finished / "naming").mkdir()
    for name, read in READERS.items():
        path, kept = finished / name, finished / "kept"
        if path.exists():
            path.rename(kept)
        SPECIAL[kind](path)
        if (kind, name) in HARMLESS:
            read(finished)
        else:
            with pytest.raises(InputError, match=re.escape(str(path))):
                read(finished)
        path.rmdir() if kind == "folder" else path.unlink()
        if kept.exists():
            kept.rename(path)


def test_huge_files_are_not_hashed(finished: Path) -> None:
    path = finished / "points" / "landmarks.safetensors"
    path.unlink()
    path.touch()
    os.truncate(path, 500 << 20)  # would be hashed for seconds
    with pytest.raises(InputError, match="were never written"):
        run_fingerprint(Run.open(finished), read_card(finished / "model"))
    path.unlink()
    SPECIAL["sparse"](path)
    with pytest.raises(InputError, match="is too large"):
        run_fingerprint(Run.open(finished), read_card(finished / "model"))
    with pytest.raises(InputError, match="is too large"):
        compute_file_sha256(path)
