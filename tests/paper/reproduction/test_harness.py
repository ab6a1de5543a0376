"""Test reproduction on miniatures, with real or copied runs: sharing, resuming, reuse, error messages."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import pytest

from selfmark.errors import DamagedFile, DiskError, InputError, NotEnoughData, TrainingError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import dataset_registry
from selfmark.paper.reproduction import experiment, harness, workspace
from selfmark.paper.reproduction.cost import DatasetNames
from selfmark.paper.reproduction.experiment import CellSpec
from selfmark.paper.reproduction.experiment_plan import Training, make_plan
from selfmark.paper.reproduction.harness import Log, ReproductionOptions, reproduce_tables
from selfmark.paper.reproduction.workspace import OpenListener
from tests.conftest import selfmark
from tests.paper.reproduction.conftest import SHORT, select_short_settings


@pytest.fixture
def faces(root: Path, tmp_path: Path) -> Path:
    """Return a folder with only one data set."""
    folder = tmp_path / "faces"
    folder.mkdir()
    (folder / "celeba").symlink_to((root / "celeba").resolve())
    return folder


def _reproduce(
    names: list[str],
    data: Path,
    output: Path,
    changes: dict[str, Any] | None = None,
    allow_missing: bool = False,
    log: Log = lambda line: None,
    open_listener: OpenListener = nullcontext,
) -> list[Path]:
    """Reproduce tables on the CPU with short training runs."""
    options = ReproductionOptions(
        "tiny", select_short_settings(*names) if changes is None else changes, "cpu", allow_missing
    )
    return reproduce_tables(names, data, output, options, log, open_listener)


def _read_events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("without_weights")
def test_every_kind_of_experiment_is_reproduced(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reproduce a table, curves by round, bars, a t-SNE map and a sheet; four of these share a run."""
    load = experiment.load_experiment

    def load_with_fewer_rows(name: str) -> experiment.Experiment:
        table = load(name)
        celeba = replace(table.rows[0], spec=CellSpec(train="celeba"))  # The row does not set K.
        rows = {"noise": table.rows[::4], "qualitative": (celeba,)}
        return replace(table, rows=rows.get(name, table.rows))

    monkeypatch.setattr(experiment, "load_experiment", load_with_fewer_rows)
    names = ["stages", "noise", "raw-landmarks", "tsne", "qualitative"]
    output = tmp_path / "out"
    _reproduce(names, faces, output, allow_missing=True)
    runs = sorted((output / "trainings").iterdir())
    assert [(run / "model" / "model.json").exists() for run in runs].count(True) == 1
    assert len(runs) == 4  # One run of our method, one of the earlier method and two with levels of noise.
    page = (output / "stages.md").read_text()
    assert re.search(r"\| CelebA \(K=30\) \| [\d.]+ \(25\.8, [+-][\d.]+\)", page)
    assert "| AFLW (K=30) | absent (23.4)" in page
    with (output / "noise.csv").open() as handle:
        lines = list(csv.DictReader(handle))
    assert [(line["row"], line["place"]) for line in lines] == [
        (f"{row}{eyes}", place)
        for row in ("100 % real", "20 % real")
        for eyes in ("", ", by points 41 and 46")
        for place in ("1", "2")
    ]
    assert all(0 < float(line["value"]) < 1000 for line in lines)
    for name in names[1:]:
        picture = cv2.imread(str(output / f"{name}.png"))
        assert picture is not None
        assert picture.std() > 5  # The picture is not blank.


@pytest.mark.usefixtures("without_report")
def test_interrupted_training_is_resumed_and_finished_training_is_not_repeated(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "checkpoint" and event["stage"] == "stage1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _reproduce(["cats"], root, tmp_path, open_listener=lambda: nullcontext(interrupt))
    (run,) = (tmp_path / "trainings").iterdir()
    assert not (run / "model").exists()
    assert not (tmp_path / "cats.md").exists()

    _reproduce(["cats"], root, tmp_path)
    events = _read_events(run)
    assert [event["event"] for event in events].count("start") == 1
    assert any(event["event"] == "resumed" for event in events)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name == "metrics.json"}

    monkeypatch.setattr(workspace, "train_or_resume", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr(workspace, "run_measurement", lambda *_: pytest.fail("measured again"))
    before = (tmp_path / "cats.md").read_text()
    _reproduce(["cats"], root, tmp_path)
    assert (tmp_path / "cats.md").read_text() == before
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


@pytest.mark.usefixtures("without_report")
def test_stage_2_continues_from_the_stage_1_of_another_table(root: Path, tmp_path: Path) -> None:
    """Both tables need the same training run, but the first needs only its Stage 1."""
    table = experiment.load_experiment("clusters")
    one_row = replace(table, rows=(replace(table.rows[0], spec=CellSpec()),))
    output = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "load_experiment", lambda name: one_row)
        _reproduce(["clusters"], root, output)
    (run,) = (output / "trainings").iterdir()
    assert not (run / "model").exists()
    _reproduce(["poses"], root, output)
    assert [(run / "model" / "model.json").exists() for run in (output / "trainings").iterdir()] == [True]
    events = [event["event"] for event in _read_events(run)]
    assert events.count("keypoints") == 1


def test_a_measurement_that_needs_more_fields_is_repeated(
    root: Path, tmp_path: Path, copied_trainings: list[Training]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "ls3d").symlink_to((root / "ls3d").resolve())
    names = ("qualitative", "poses")
    for name in names:
        _reproduce([name], data, tmp_path / "out", select_short_settings(*names), allow_missing=True)
        assert len(list(tmp_path.rglob("by-yaw_bucket.png"))) == (name == "poses")
    assert len(list((tmp_path / "out" / "measurements").iterdir())) == 1


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("kind", [TrainingError, NotEnoughData])
def test_a_failed_training_does_not_stop_the_other_rows(
    kind: type[Exception],
    faces: Path,
    tmp_path: Path,
    copied_trainings: list[Training],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failed training is not repeated until the user removes the record of the failure."""
    copy_run, failed, messages = workspace.train_or_resume, list[str](), list[str]()

    def collapse(current: workspace.Workspace, training: Training) -> None:
        if training.config.keypoints.random_fraction == 1.0:
            failed.append(training.folder)
            raise kind("training has collapsed")
        copy_run(current, training)

    monkeypatch.setattr(workspace, "train_or_resume", collapse)
    for _ in range(2):
        _reproduce(["noise"], faces, tmp_path, SHORT, log=messages.append)
    assert len(failed) == 1
    (path,) = (tmp_path / "failed").iterdir()
    assert f"failed: {failed[0]}: training has collapsed; remove {path} to try again" in messages
    with (tmp_path / "noise.csv").open() as handle:
        rows = {line["row"] for line in csv.DictReader(handle)}
    assert len(rows) == 2 * 5  # Five rows, each with two definitions of the eye distance.
    assert "0 % real" not in rows
    path.unlink()
    monkeypatch.setattr(workspace, "train_or_resume", copy_run)
    _reproduce(["noise"], faces, tmp_path)
    with (tmp_path / "noise.csv").open() as handle:
        assert "0 % real" in {line["row"] for line in csv.DictReader(handle)}


def test_a_failed_measurement_does_not_stop_the_other_cells(
    root: Path, tmp_path: Path, copied_trainings: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed measurement is repeated only after its record is removed; a full disk leaves no record."""
    measure, failed, messages = dict(workspace._MEASURE), list[str](), list[str]()

    def fail(task: Any) -> Any:
        failed.append("detector")
        raise InputError("annotations[3]: nothing can be measured here")

    monkeypatch.setitem(workspace._MEASURE, "detector", fail)
    for _ in range(2):
        _reproduce(["flipping"], root, tmp_path, log=messages.append)
    paths = list((tmp_path / "failed").iterdir())
    assert len(failed) == len(paths) == 6
    assert sum("the measurement 'detector' failed: annotations[3]" in line for line in messages) == 12
    page = (tmp_path / "flipping.md").read_text()
    # The three rows of CelebA are repeated with the inter-ocular distance of the authors' program.
    assert len(re.findall(r"\| [\d.]+ \([\d.]+, [+-][\d.]+\) \| failed \(", page)) == 6 + 3
    assert "| CelebA, no flipping, by points 41 and 46 |" in page
    assert "Rows 'by points 41 and 46' use the distance between points 41 and 46" in page
    for path in paths:
        path.unlink()
    monkeypatch.setitem(workspace._MEASURE, "detector", measure["detector"])
    _reproduce(["flipping"], root, tmp_path)
    assert "failed" not in (tmp_path / "flipping.md").read_text()

    for error in (DiskError("no space is left"), DamagedFile("the weights are damaged")):

        def fail(task: Any, error: InputError = error) -> Any:
            raise error

        monkeypatch.setitem(workspace._MEASURE, "detector", fail)
        with pytest.raises(type(error)):
            _reproduce(["cats"], root, tmp_path)
    assert list((tmp_path / "failed").iterdir()) == []


def test_only_pages_of_experiments_with_regressors_name_the_regressor() -> None:
    names = ("cats", "noise", "clusters", "precision", "keypoint-examples", "tsne", "qualitative", "maximal")
    plans = {
        name: make_plan([experiment.load_experiment(name)], DatasetNames(), "tiny", {}) for name in names
    }
    described = {
        name: harness._describe_regressor(experiment.load_experiment(name), plan)
        for name, plan in plans.items()
    }
    assert [name for name in names if described[name]] == ["cats", "noise", "clusters"]


def test_another_ridge_needs_no_new_training(
    root: Path, tmp_path: Path, copied_trainings: list[Training]
) -> None:
    """This holds even for a ridge that is not in `evaluation.ridges`; the ridge applies to both stages."""
    pages = []
    for ridge in (0.01, 0.5):
        _reproduce(["stages"], root, tmp_path, {**SHORT, "evaluation.ridge": ridge})
        pages.append((tmp_path / "stages.md").read_text())
    assert "regressor ridge 0.5" in pages[1]
    cells = [re.findall(r"\| ([\d.]+) \(", page) for page in pages]
    # Three rows have numbers of the paper. CelebA and AFLW with 68 points have a second row with both errors
    # by the authors' inter-ocular distance.
    assert len(cells[0]) == len(cells[1]) == 12 + 4
    for column in (2, 3):  # the errors of Stage 1 and Stage 2
        assert cells[0][column] != cells[1][column]
    assert len(copied_trainings) == 3


def test_notes_are_written_above_the_table(
    root: Path, tmp_path: Path, copied_trainings: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has notes about the data set, and the evaluation has notes about its images."""
    read_dataset = dataset_registry.read_dataset

    def read_with_note(name: str, folder: Path) -> Any:
        data = read_dataset(name, folder)
        refs = data.test.refs
        test = replace(data.test, refs=(refs[0], ImageRef(Path("gone.png")), *refs[2:]))
        return replace(data, test=test, notes=("boxes are guessed",))

    monkeypatch.setattr(dataset_registry, "read_dataset", read_with_note)
    _reproduce(["cats"], root, tmp_path)
    page = (tmp_path / "cats.md").read_text()
    assert "cats: boxes are guessed." in page
    assert "1 labeled image could not be read and was left out" in page
    assert "boxes are guessed" in (tmp_path / "cats.tex").read_text()


def test_processes_share_the_work_and_the_first_one_writes(
    root: Path, tmp_path: Path, copied_trainings: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the environment of torchrun, rank 1 does all the work and rank 0 writes."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert _reproduce(["cats"], root, tmp_path) == []
    assert len(copied_trainings) == 1
    assert not (tmp_path / "cats.md").exists()
    monkeypatch.setenv("WORLD_SIZE", "2")  # `reproduce_tables` has removed this variable.
    monkeypatch.setenv("RANK", "0")
    assert {path.suffix for path in _reproduce(["cats"], root, tmp_path)} == {".md", ".csv", ".tex"}
    assert len(copied_trainings) == 1


# --- error messages --------------------------------------------------------------------------------------


def test_missing_data_raises_before_anything_is_written(faces: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(InputError) as caught:
        _reproduce(["stages"], faces, output)
    message = str(caught.value)
    assert "AFLW" in message
    assert str(faces / "aflw") in message
    assert "selfmark datasets check aflw" in message
    assert "--allow-missing" in message
    assert not output.exists()


def test_allow_missing_needs_at_least_one_data_set(faces: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CATS was expected in"):
        _reproduce(["cats"], faces, tmp_path / "out", allow_missing=True)


@pytest.mark.parametrize(
    ("table", "ending"),
    [
        (
            "cats",
            "superpoint', or choose another with --set keypoints.detector=selfmark",
        ),
        ("initialization", "'selfmark weights r2d2'"),
        ("precision", "'selfmark weights r2d2'"),
    ],
)
def test_missing_weights_raise_before_anything_is_written(
    table: str, ending: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message suggests another detector unless the table prescribes the detector."""
    monkeypatch.setattr(harness, "cache_folder", lambda: tmp_path / "empty")
    changes = {name: value for name, value in SHORT.items() if name != "keypoints.detector"}
    with pytest.raises(InputError) as caught:
        reproduce_tables([table], root, tmp_path / "out", ReproductionOptions("paper", changes, "cpu"))
    assert str(caught.value).endswith(ending)
    assert not (tmp_path / "out").exists()


def test_missing_matplotlib_raises_before_anything_is_trained(
    root: Path, tmp_path: Path, copied_trainings: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'selfmark\[reproduce\]'"):
        _reproduce(["poses"], root, tmp_path / "out")
    assert copied_trainings == []
    _reproduce(["cats"], root, tmp_path / "out")  # Tables do not need matplotlib.


def test_missing_scikit_learn_raises_before_anything_is_trained(
    root: Path, tmp_path: Path, copied_trainings: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r"pip install 'selfmark\[report\]'"):
        _reproduce(["tsne"], root, tmp_path / "out")
    assert copied_trainings == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-1", "--data", "."], "no table 'table-1'"),
        (["table-1"], "no table 'table-1'"),
        (["all", "stages"], "'all' cannot be combined with names of tables; run 'selfmark reproduce all'"),
        (["list", "stages"], "'list' cannot be combined with names of tables; run 'selfmark reproduce list'"),
        (["cats"], "--data"),
        (["cats", "--data", ".", "--device", "nope"], "unknown device 'nope'"),
        (["cats", "--data", ".", "--set", "seed=-5"], "seed must be between 0 and"),
        (["cats", "--data", ".", "--set", "evaluation.ridge=-1"], "ridge must be between 0 and"),
        (["cats", "--data", ".", "--set", "evaluation.nope=1"], "unknown setting 'evaluation.nope'"),
        (["cats", "--data", ".", "--set", "evaluation.ridge=abc"], "'evaluation.ridge' must be a number"),
        (["clusters", "--data", ".", "--set", "M=60"], "the rows or columns of 'clusters' differ in M"),
        (["cats", "--data", ".", "--preset", "slow"], "unknown preset 'slow'"),
        (["cats", "--data", ".", "--set", "lr=3"], "unknown setting 'lr'"),
        (["cats", "--data", "."], "CATS was expected in cats"),
    ],
)
def test_wrong_arguments_end_with_a_message_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dry run shows the same messages, except for the one about missing data, which it does not need."""
    monkeypatch.chdir(tmp_path)
    concerns_data = message == "--data" or "expected in" in message
    for options in [[]] if concerns_data else [[], ["--dry-run"]]:
        assert selfmark("reproduce", *arguments, *options) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_table(
    root: Path, tmp_path: Path, copied_trainings: list[Training], capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [f"--set={name}={json.dumps(value)}" for name, value in SHORT.items()]
    options = ["--data", root, "-o", tmp_path, "--preset", "tiny", "--device", "cpu"]
    assert selfmark("reproduce", "cats", *options, *changes) == 0
    assert f"written: {tmp_path / 'cats.md'}" in capsys.readouterr().out.replace("\n", "")
    assert "| Lorenz | (9.30) |" in (tmp_path / "cats.md").read_text()


def test_the_list_shows_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert selfmark("reproduce", "list") == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert names == experiment.list_experiment_names()


def test_a_dry_run_needs_no_data_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert selfmark("reproduce", "stages", "--dry-run", "--data", "nowhere") == 0
    text = capsys.readouterr().out
    assert "data  aflw with 68 points: the data set AFLW was expected in nowhere/aflw" in text
    assert "total: 3 training runs and 8 measurements" in text
    assert list(tmp_path.iterdir()) == []


def test_the_package_contains_the_tables() -> None:
    """pyproject.toml must list the YAML files, or they are not installed."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert '"paper/reproduction/tables/*.yaml"' in text


def test_the_command_line_starts_without_torch() -> None:
    """`selfmark --help` must stay fast."""
    program = "import sys, selfmark.cli.entry; sys.exit('torch' in sys.modules)"
    source = str(Path(__file__).parents[3] / "src")
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": source})


def test_an_output_folder_can_be_moved(root: Path, tmp_path: Path, copied_trainings: list[Training]) -> None:
    """Keys do not depend on the folder's path, so finished parts are not repeated."""
    _reproduce(["cats"], root, tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    _reproduce(["cats"], root, tmp_path / "there")
    assert len(copied_trainings) == 1
