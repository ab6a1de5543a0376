"""Test the life cycle of a run: create, open, resume, lock, finish."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from selfmark import discovery
from selfmark.config import override, preset
from selfmark.discovery import RunInputs, RunOptions, discover, open_run
from selfmark.errors import InputError
from selfmark.evaluation.run_evaluation import check_run
from selfmark.evaluation.run_models import RunModels
from selfmark.images.store import load_store
from selfmark.model.card import REFINED, model_folder, read_card, write_card
from selfmark.report.run_report import build_report
from selfmark.run.folder import Event, Run
from selfmark.run.locks import exclusive
from selfmark.tracking.regions import Regions
from tests.conftest import QUICK


def _build_options(output: Path | None, **changes: Any) -> RunOptions:
    return RunOptions(output=output, preset="tiny", device="cpu", **{"settings": QUICK, **changes})


def _build_resume_options(output: Path, **changes: Any) -> RunOptions:
    return RunOptions(output=output, resume=True, device="cpu", **changes)


@pytest.fixture
def run_folder(photos: Path, tmp_path: Path) -> Path:
    """Return a run that was just created."""
    with open_run(RunInputs([photos]), _build_options(tmp_path / "run"), None):
        pass
    return tmp_path / "run"


def test_a_new_run_is_created_and_locked(photos: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    with open_run(RunInputs([photos]), _build_options(tmp_path / "run"), events.append) as opened:
        assert opened.is_new
        assert opened.device == torch.device("cpu")
        assert opened.run.config == override(preset("tiny"), QUICK)
        assert len(opened.run.refs()) == 24
        with pytest.raises(InputError, match="another process is working on"):
            exclusive(tmp_path / "run").__enter__()
    with exclusive(tmp_path / "run"):
        pass
    (start,) = events
    assert (start["event"], start["images"], start["K"], start["device"]) == ("start", 24, 4, "cpu")
    assert Run.open(tmp_path / "run").events() == events
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"run.json", "config.yaml", "images.json", "log.jsonl", ".lock", "points", "checkpoints"}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["inputs"] == [str(photos)]


def test_a_run_is_named_after_its_first_input(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_run(RunInputs([photos]), _build_options(None), None) as opened:
        assert opened.run.path == Path("runs") / photos.stem


def test_a_run_is_not_created_twice(run_folder: Path, photos: Path) -> None:
    with (
        pytest.raises(InputError, match="already contains a run: add --resume"),
        open_run(RunInputs([photos]), _build_options(run_folder), None),
    ):
        pass


def test_a_folder_with_other_files_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader")
    with (
        pytest.raises(InputError, match="is not an empty folder"),
        open_run(RunInputs([photos]), _build_options(tmp_path), None),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_run_is_resumed_with_its_own_images_and_settings(run_folder: Path) -> None:
    with open_run(RunInputs([]), _build_resume_options(run_folder), None) as opened:
        assert not opened.is_new
        assert opened.run.config == override(preset("tiny"), QUICK)


def test_a_refined_run_is_not_resumed(run_folder: Path) -> None:
    card = read_card(model_folder(Path("demo")))
    (run_folder / "model").mkdir()
    write_card(replace(card, provenance={REFINED: {}}), run_folder / "model")
    with (
        pytest.raises(InputError, match=r"was refined, and resuming would replace it: .* --undo"),
        open_run(RunInputs([]), _build_resume_options(run_folder), None),
    ):
        pass


def _mark_refined(model: Path) -> None:
    write_card(replace(read_card(model), provenance={REFINED: {}}), model)


def test_a_run_that_is_refined_right_before_it_is_locked_is_not_resumed(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model_folder(Path("demo")), run_folder / "model")
    lock = Run.lock

    def lock_late(run: Run) -> AbstractContextManager[None]:
        _mark_refined(run.model_folder)
        return lock(run)

    monkeypatch.setattr(Run, "lock", lock_late)
    with (
        pytest.raises(InputError, match="was refined, and resuming would replace it"),
        open_run(RunInputs([]), _build_resume_options(run_folder), None),
    ):
        pass


@pytest.mark.parametrize("step", ["check_landmarks", "check_run"])
def test_a_resumed_run_keeps_a_model_that_was_refined_or_edited_meanwhile(
    step: str, quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_report: None
) -> None:
    """The model changes before the detector is saved, or before the card gets the results of the checks."""
    run = Path(shutil.copytree(quick_run, tmp_path / "run"))
    function = getattr(discovery, step)
    changes: list[Callable[[Path], None]] = []

    def change_and_call(*args: Any) -> Any:
        changes.pop()(run / "model")
        return function(*args)

    def rename(model: Path) -> None:
        card = read_card(model)
        write_card(replace(card, names=("nose", *card.names[1:])), model)

    monkeypatch.setattr(discovery, step, change_and_call)
    changes.append(rename)
    discover(output=run, resume=True, device="cpu")
    assert read_card(run / "model").names[0] == "nose"
    changes.append(_mark_refined)
    with pytest.raises(InputError, match="was refined, and resuming would replace it"):
        discover(output=run, resume=True, device="cpu")
    card = read_card(run / "model")
    assert REFINED in card.provenance
    assert card.names[0] == "nose"


def test_a_run_can_be_resumed_with_its_images_given_again(run_folder: Path, photos: Path) -> None:
    with open_run(RunInputs([photos]), _build_resume_options(run_folder), None) as opened:
        assert not opened.is_new


def test_a_run_cannot_be_resumed_on_other_images(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    cv2.imwrite(str(tmp_path / "others" / "new.png"), np.zeros((64, 64, 3), np.uint8))
    with (
        pytest.raises(InputError, match="was started on other images"),
        open_run(RunInputs([tmp_path / "others"]), _build_resume_options(run_folder), None),
    ):
        pass


def test_only_some_settings_may_change_when_a_run_is_resumed(run_folder: Path) -> None:
    changes = {"runtime.batch": 2, "optimizer.lr": 1e-3}
    with open_run(RunInputs([]), _build_resume_options(run_folder, settings=changes), None) as opened:
        assert opened.run.config.runtime.batch == 2
    assert Run.open(run_folder).config.optimizer.lr == 1e-3
    assert Run.open(run_folder).events()[-1]["event"] == "changed"
    with (
        pytest.raises(InputError, match=r"'M' cannot change when a run is resumed.*only runtime, optimizer"),
        open_run(RunInputs([]), _build_resume_options(run_folder, settings={"M": 9}), None),
    ):
        pass
    unchanged = Run.open(run_folder).config
    assert unchanged.M == override(preset("tiny"), QUICK).M


@pytest.mark.parametrize(
    ("inputs", "options", "problem"),
    [
        (RunInputs([]), {"landmarks": 9}, "-k cannot change when a run is resumed: .* uses 4, not 9"),
        (RunInputs([]), {"landmarks": "auto"}, "-k cannot change .* uses 4, not auto"),
        (RunInputs([]), {"preset": "fast"}, "--preset cannot change .* uses tiny, not fast"),
        (RunInputs([]), {"recipe": "side-view"}, "--recipe cannot change .* uses auto, not side-view"),
        (RunInputs([]), {"verify": True}, "--verify cannot change .* uses none, not True"),
        (RunInputs([], every=2), {}, "--every cannot change .* uses 1, not 2"),
        (RunInputs([], regions=Regions(animals=2)), {}, "--find-animals cannot change .* uses 0, not 2"),
        (RunInputs([], regions=Regions(crop=(0, 0, 9, 9.5))), {}, "--crop .* uses none, not 0,0,9,9.5"),
        (RunInputs([], regions=Regions(boxes="b.csv")), {}, "--boxes .* uses none, not b.csv"),
    ],
)
def test_other_options_are_refused_when_a_run_is_resumed(
    inputs: RunInputs, options: dict[str, Any], problem: str, run_folder: Path
) -> None:
    with (
        pytest.raises(InputError, match=problem),
        open_run(inputs, _build_resume_options(run_folder, **options), None),
    ):
        pass


def test_the_same_options_may_be_given_again_when_a_run_is_resumed(photos: Path, tmp_path: Path) -> None:
    inputs = RunInputs([photos], 3, Regions(crop=(4, 4, 40, 40)))
    options = {"landmarks": 5, "recipe": "side-view", "verify": False}
    settings = {name: value for name, value in QUICK.items() if name != "K"}
    with open_run(inputs, _build_options(tmp_path / "run", settings=settings, **options), None):
        pass
    same_options = _build_resume_options(tmp_path / "run", preset="tiny", **options)
    for repeated in (inputs, inputs._replace(inputs=[])):
        with open_run(repeated, same_options, None) as opened:
            assert opened.run.config.K == 5
    with pytest.raises(InputError, match=r"--crop .* uses 4,4,40,40, not 4,4,40,41"):
        open_run(inputs._replace(regions=Regions(crop=(4, 4, 40, 41))), same_options, None).__enter__()


def test_a_locked_run_is_refused(run_folder: Path) -> None:
    with (
        Run.open(run_folder).lock(),
        pytest.raises(InputError, match="another process is working on"),
        open_run(RunInputs([]), _build_resume_options(run_folder), None),
    ):
        pass


def test_an_error_releases_the_lock(run_folder: Path) -> None:
    with pytest.raises(KeyError), open_run(RunInputs([]), _build_resume_options(run_folder), None):
        raise KeyError
    with open_run(RunInputs([]), _build_resume_options(run_folder), None):
        pass


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="is not a run folder"),
        open_run(RunInputs([]), _build_resume_options(tmp_path), None),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (RunOptions(device="cpu"), "no images given"),
        (RunOptions(output="run", device="cpu"), "no images given"),
        (RunOptions(resume=True, device="cpu"), "--resume needs --output"),
        (RunOptions(output="run", device="abacus"), "unknown device 'abacus'"),
    ],
)
def test_incomplete_requests_are_refused(
    options: RunOptions, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=problem), open_run(RunInputs([]), options, None):
        pass
    assert not list(tmp_path.iterdir())


def test_bad_settings_leave_no_folder(photos: Path, tmp_path: Path) -> None:
    options = _build_options(tmp_path / "run", settings={"augment.rotaton": 3})
    with (
        pytest.raises(InputError, match=r"Did you mean 'augment\.rotation'\?"),
        open_run(RunInputs([photos]), options, None),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_processes_restarted_by_torchrun_resume_the_run(
    run_folder: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with open_run(RunInputs([photos]), _build_options(run_folder), None) as opened:
        assert not opened.is_new
        assert opened.run.config == override(preset("tiny"), QUICK)


def test_unusable_images_leave_no_run_folder(photos: Path, tmp_path: Path) -> None:
    few_photos = tmp_path / "few"
    few_photos.mkdir()
    for path in sorted(photos.iterdir())[:5]:
        shutil.copy(path, few_photos)
    with pytest.raises(InputError, match="5 usable images are too few"):
        discover(few_photos, output=tmp_path / "run", preset="tiny", settings=QUICK, device="cpu")
    assert not (tmp_path / "run").exists()


def test_the_end_of_a_run_uses_the_images_in_memory(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks and the report decode no image again, and give the same results as from the files."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("an image was decoded again")

    with monkeypatch.context() as patch:
        patch.setattr("selfmark.evaluation.label_free.load_store", refuse)
        patch.setattr("selfmark.report.run_report.load_run_images", refuse)
        detector = discover(photos, output=tmp_path / "run", preset="tiny", settings=QUICK, device="cpu")
    run = Run.open(tmp_path / "run")
    metrics, page = run.path / "metrics.json", run.path / "report" / "index.html"
    from_memory = metrics.read_text(), _list_pictures(page)
    check_run(run, detector, load_store(run.refs(), run.config.images, float("inf"), None))
    # The report would reuse the landmarks that are stored in this folder.
    shutil.rmtree(run.path / "predictions")
    build_report(RunModels.of(run, detector))
    assert (metrics.read_text(), _list_pictures(page)) == from_memory
    # There are fewer pictures than evaluation.min_images. The metrics, the log and the report say so.
    advice = f"landmarks discovered from only {len(run.refs())} images are uncertain: use 30 or more"
    assert advice in json.loads(from_memory[0])["advice"]
    assert advice in [event["text"] for event in run.events() if event["event"] == "advice"]
    assert advice in page.read_text()


def test_names_given_during_the_checks_are_kept(
    quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(quick_run, tmp_path / "run")

    def rename_and_check(run: Run, *arguments: Any) -> Any:
        card = read_card(run.model_folder)
        write_card(replace(card, names=("left ear", *card.names[1:])), run.model_folder)
        return check_run(run, *arguments)

    monkeypatch.setattr("selfmark.discovery.check_run", rename_and_check)
    detector = discover(output=tmp_path / "run", resume=True, device="cpu")
    assert detector.names[0] == "left ear"
    assert len(detector.card.trust) == len(detector.names)


def _list_pictures(page: Path) -> list[str]:
    """Return the lines of a report that contain an embedded picture."""
    return [line for line in page.read_text().splitlines() if "data:image" in line]
