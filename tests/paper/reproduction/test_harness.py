"""The command: real trainings on miniatures, shared, resumed, not made again; and what it says no to."""

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

from selfmark.errors import DiskError, InputError, NotEnoughData, TrainingError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import registry
from selfmark.paper.reproduction import experiment, harness, workspace
from selfmark.paper.reproduction.experiment import CellSpec
from selfmark.paper.reproduction.experiment_plan import Training
from selfmark.paper.reproduction.harness import reproduce_tables
from tests.conftest import selfmark
from tests.paper.reproduction.conftest import SHORT, short


@pytest.fixture
def faces(root: Path, tmp_path: Path) -> Path:
    """A folder with one data set only."""
    folder = tmp_path / "faces"
    folder.mkdir()
    (folder / "celeba").symlink_to((root / "celeba").resolve())
    return folder


def quietly(names: list[str], data: Path, output: Path, **options: Any) -> list[Path]:
    return reproduce_tables(
        names, data, output, "tiny", short(*names), "cpu", say=lambda line: None, **options
    )


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("without_weights")
def test_each_kind_is_trained_measured_and_drawn(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table, curves by round, bars, a map and a sheet, of one data set; three of them share a training."""
    load = experiment.load_experiment

    def shorter(name: str) -> experiment.Experiment:
        one = load(name)
        celeba = replace(one.rows[0], what=CellSpec(train="celeba"))  # with the K of the others
        rows = {"noise": one.rows[::4], "qualitative": (celeba,)}
        return replace(one, rows=rows.get(name, one.rows))

    monkeypatch.setattr(experiment, "load_experiment", shorter)
    names = ["stages", "noise", "raw-landmarks", "tsne", "qualitative"]
    output = tmp_path / "out"
    quietly(names, faces, output, allow_missing=True)
    runs = sorted((output / "trainings").iterdir())
    assert [(run / "model" / "model.json").exists() for run in runs].count(True) == 1
    assert len(runs) == 4  # ours, the earlier method's, and two shares of noise
    page = (output / "stages.md").read_text()
    assert re.search(r"\| CelebA \(K=30\) \| [\d.]+ \(25\.8, [+-][\d.]+\)", page)
    assert "| AFLW (K=30) | absent (23.4)" in page
    with (output / "noise.csv").open() as handle:
        lines = list(csv.DictReader(handle))
    assert [(line["row"], line["place"]) for line in lines] == [
        (row, place) for row in ("100 % real", "20 % real") for place in ("1", "2")
    ]
    assert all(0 < float(line["value"]) < 1000 for line in lines)
    for name in names[1:]:
        picture = cv2.imread(str(output / f"{name}.png"))
        assert picture is not None
        assert picture.std() > 5  # something is drawn


def test_an_interrupted_training_goes_on_and_a_finished_one_is_left_alone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "checkpoint" and event["stage"] == "stage1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quietly(["cats"], root, tmp_path, watch=lambda: nullcontext(interrupt))
    (run,) = (tmp_path / "trainings").iterdir()
    assert not (run / "model").exists()
    assert not (tmp_path / "cats.md").exists()

    quietly(["cats"], root, tmp_path)
    events = _events(run)
    assert [event["event"] for event in events].count("start") == 1
    assert any(event["event"] == "resumed" for event in events)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name == "metrics.json"}

    monkeypatch.setattr(workspace, "train_run", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr(workspace, "run_measurement", lambda *_: pytest.fail("measured again"))
    before = (tmp_path / "cats.md").read_text()
    quietly(["cats"], root, tmp_path)
    assert (tmp_path / "cats.md").read_text() == before
    assert all(path.stat().st_mtime_ns == time for path, time in made.items())


def test_a_table_that_needs_stage_2_goes_on_from_another_that_did_not(root: Path, tmp_path: Path) -> None:
    """Both ask for the same settings; the first is content with Stage 1."""
    load = experiment.load_experiment("clusters")
    only = replace(load, rows=(replace(load.rows[0], what=CellSpec()),))
    output = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "load_experiment", lambda name: only)
        quietly(["clusters"], root, output)
    (run,) = (output / "trainings").iterdir()
    assert not (run / "model").exists()
    quietly(["poses"], root, output)
    assert [(run / "model" / "model.json").exists() for run in (output / "trainings").iterdir()] == [True]
    events = [event["event"] for event in _events(run)]
    assert events.count("keypoints") == 1


def test_measurements_that_need_more_fields_are_made_again(
    root: Path, tmp_path: Path, no_training: list[Training]
) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "ls3d").symlink_to((root / "ls3d").resolve())
    names = ("qualitative", "poses")
    for name in names:
        sets, output, changes = tmp_path / "sets", tmp_path / "out", short(*names)
        reproduce_tables(
            [name], sets, output, "tiny", changes, "cpu", allow_missing=True, say=lambda line: None
        )
        assert len(list(tmp_path.rglob("by-yaw_bucket.png"))) == (name == "poses")
    assert len(list((tmp_path / "out" / "measurements").iterdir())) == 1


@pytest.mark.parametrize("kind", [TrainingError, NotEnoughData])
def test_a_training_that_comes_to_nothing_leaves_the_other_rows(
    kind: type[Exception],
    faces: Path,
    tmp_path: Path,
    no_training: list[Training],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not tried again until the user says so."""
    copy, tried, said = workspace.train_run, list[str](), list[str]()

    def collapse(bench: workspace.Workspace, training: Training) -> None:
        if training.config.keypoints.random_fraction == 1.0:
            tried.append(training.folder)
            raise kind("training has collapsed")
        copy(bench, training)

    monkeypatch.setattr(workspace, "train_run", collapse)
    for _ in range(2):
        reproduce_tables(["noise"], faces, tmp_path, "tiny", SHORT, "cpu", say=said.append)
    assert len(tried) == 1
    (path,) = (tmp_path / "failed").iterdir()
    assert f"failed: {tried[0]}: training has collapsed; remove {path} to try again" in said
    with (tmp_path / "noise.csv").open() as handle:
        rows = {line["row"] for line in csv.DictReader(handle)}
    assert len(rows) == 5
    assert "0 % real" not in rows
    path.unlink()
    monkeypatch.setattr(workspace, "train_run", copy)
    quietly(["noise"], faces, tmp_path)
    with (tmp_path / "noise.csv").open() as handle:
        assert "0 % real" in {line["row"] for line in csv.DictReader(handle)}


def test_a_measurement_that_cannot_be_made_leaves_the_other_cells(
    root: Path, tmp_path: Path, no_training: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not tried again until the user says so; a full disk is not its failure."""
    kinds, tried, said = dict(workspace._KINDS), list[str](), list[str]()

    def refuse(study: Any) -> Any:
        tried.append("detector")
        raise InputError("annotations[3]: nothing can be measured here")

    monkeypatch.setitem(workspace._KINDS, "detector", refuse)
    for _ in range(2):
        reproduce_tables(["flipping"], root, tmp_path, "tiny", short("flipping"), "cpu", say=said.append)
    paths = list((tmp_path / "failed").iterdir())
    assert len(tried) == len(paths) == 6
    assert len([line for line in said if "its detector could not be measured: annotations[3]" in line]) == 12
    page = (tmp_path / "flipping.md").read_text()
    assert len(re.findall(r"\| [\d.]+ \([\d.]+, [+-][\d.]+\) \| failed \(", page)) == 6
    for path in paths:
        path.unlink()
    monkeypatch.setitem(workspace._KINDS, "detector", kinds["detector"])
    quietly(["flipping"], root, tmp_path)
    assert "failed" not in (tmp_path / "flipping.md").read_text()

    def full(study: Any) -> Any:
        raise DiskError("no space is left")

    monkeypatch.setitem(workspace._KINDS, "detector", full)
    with pytest.raises(DiskError):
        reproduce_tables(["cats"], root, tmp_path, "tiny", short("cats"), "cpu", say=said.append)


def test_another_regressor_needs_no_other_training(
    root: Path, tmp_path: Path, no_training: list[Training]
) -> None:
    """Also one that is not among those usually tried; both stages' errors are with it."""
    pages = []
    for ridge in (0.01, 0.5):
        changes = {**SHORT, "evaluation.ridge": ridge}
        reproduce_tables(["stages"], root, tmp_path, "tiny", changes, "cpu", say=lambda line: None)
        pages.append((tmp_path / "stages.md").read_text())
    assert "regressor ridge 0.5" in pages[1]
    cells = [re.findall(r"\| ([\d.]+) \(", page) for page in pages]
    assert len(cells[0]) == len(cells[1]) == 12
    assert cells[0][2] != cells[1][2]
    assert cells[0][3] != cells[1][3]
    assert len(no_training) == 3


def test_what_could_not_be_done_as_in_the_paper_stands_above_the_table(
    root: Path, tmp_path: Path, no_training: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the data set, by its reader; and of its images, by the evaluation."""
    read = registry.read_dataset

    def noted(name: str, folder: Path) -> Any:
        data = read(name, folder)
        refs = data.test.refs
        gone = replace(data.test, refs=(refs[0], ImageRef(Path("gone.png")), *refs[2:]))
        return replace(data, test=gone, notes=("boxes were made up",))

    monkeypatch.setattr(registry, "read_dataset", noted)
    quietly(["cats"], root, tmp_path)
    page = (tmp_path / "cats.md").read_text()
    assert "cats: boxes were made up." in page
    assert "1 labeled images could not be read and were left out" in page
    assert "boxes were made up" in (tmp_path / "cats.tex").read_text()


def test_several_processes_share_the_work_and_one_writes(
    root: Path, tmp_path: Path, no_training: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun starts them; the second has nothing left to do and writes nothing."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert quietly(["cats"], root, tmp_path) == []
    assert len(no_training) == 1
    assert not (tmp_path / "cats.md").exists()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert {path.suffix for path in quietly(["cats"], root, tmp_path)} == {".md", ".csv", ".tex"}
    assert len(no_training) == 1


# --- what it says no to ----------------------------------------------------------------------------------


def test_missing_data_is_said_before_anything_is_made(faces: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(InputError) as caught:
        quietly(["stages"], faces, output)
    sentence = str(caught.value)
    assert "AFLW" in sentence
    assert str(faces / "aflw") in sentence
    assert "selfmark datasets check aflw" in sentence
    assert "--allow-missing" in sentence
    assert not output.exists()


def test_where_all_data_is_missing_nothing_can_be_allowed(faces: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CATS was looked for"):
        quietly(["cats"], faces, tmp_path / "out", allow_missing=True)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            "cats",
            "superpoint', or start from another with --set keypoints.detector=selfmark",
        ),
        ("initialization", "'selfmark weights r2d2'"),
        ("precision", "'selfmark weights r2d2'"),
    ],
)
def test_weights_that_are_missing_are_said_before_anything_is_made(
    table: str, sentence: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another detector is advised where it would do."""
    monkeypatch.setattr(harness, "cache_folder", lambda: tmp_path / "empty")
    changes = {name: value for name, value in SHORT.items() if name != "keypoints.detector"}
    with pytest.raises(InputError) as caught:
        reproduce_tables([table], root, tmp_path / "out", "paper", changes, "cpu", say=lambda line: None)
    assert str(caught.value).endswith(sentence)
    assert not (tmp_path / "out").exists()


def test_figures_without_matplotlib_are_refused_before_anything_is_trained(
    root: Path, tmp_path: Path, no_training: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'selfmark\[reproduce\]'"):
        quietly(["poses"], root, tmp_path / "out")
    assert no_training == []
    quietly(["cats"], root, tmp_path / "out")  # tables need none


def test_maps_without_scikit_learn_are_refused_before_anything_is_trained(
    root: Path, tmp_path: Path, no_training: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r"pip install 'selfmark\[report\]'"):
        quietly(["tsne"], root, tmp_path / "out")
    assert no_training == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table-1", "--data", "."], "no table 'table-1'"),
        (["table-1"], "no table 'table-1'"),
        (["all", "stages"], "'all' stands alone, without the names of tables: selfmark reproduce all"),
        (["list", "stages"], "'list' stands alone, without the names of tables: selfmark reproduce list"),
        (["cats"], "--data"),
        (["cats", "--data", ".", "--device", "nope"], "no device 'nope'"),
        (["cats", "--data", ".", "--set", "seed=-5"], "seed must be at least 0"),
        (["cats", "--data", ".", "--set", "evaluation.ridge=-1"], "ridge must be at least 0"),
        (["cats", "--data", ".", "--set", "evaluation.nope=1"], "unknown setting 'evaluation.nope'"),
        (["cats", "--data", ".", "--set", "evaluation.ridge=abc"], "'evaluation.ridge' must be a number"),
        (["clusters", "--data", ".", "--set", "M=60"], "'clusters' says M of its rows or columns itself"),
        (["cats", "--data", ".", "--preset", "slow"], "no preset 'slow'"),
        (["cats", "--data", ".", "--set", "lr=3"], "unknown setting 'lr'"),
        (["cats", "--data", "."], "CATS was looked for in cats"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dry run too, but for data, which it does not need."""
    monkeypatch.chdir(tmp_path)
    dry = [] if words == "--data" or "looked for" in words else [["--dry-run"]]
    for more in ([], *dry):
        assert selfmark("reproduce", *arguments, *more) == 2
        assert words in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_makes_a_table(
    root: Path, tmp_path: Path, no_training: list[Training], capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [f"--set={name}={json.dumps(value)}" for name, value in SHORT.items()]
    options = ["--data", root, "-o", tmp_path, "--preset", "tiny", "--device", "cpu"]
    assert selfmark("reproduce", "cats", *options, *changes) == 0
    assert f"written: {tmp_path / 'cats.md'}" in capsys.readouterr().out.replace("\n", "")
    assert "| Lorenz | (9.30) |" in (tmp_path / "cats.md").read_text()


def test_the_list_has_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert selfmark("reproduce", "list") == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert shown == experiment.experiment_names()


def test_a_dry_run_needs_no_data_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert selfmark("reproduce", "stages", "--dry-run", "--data", "nowhere") == 0
    text = capsys.readouterr().out
    assert "data  aflw with 68 points: the data set AFLW was looked for in nowhere/aflw" in text
    assert "in all 3 trainings and 8 measurements" in text
    assert list(tmp_path.iterdir()) == []


def test_the_package_has_its_tables() -> None:
    """They must be named in pyproject.toml to be installed."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert '"paper/reproduction/tables/*.yaml"' in text


def test_it_starts_without_loading_torch() -> None:
    """`selfmark --help` must stay instant."""
    program = "import sys, selfmark.cli.entry; sys.exit('torch' in sys.modules)"
    source = str(Path(__file__).parents[3] / "src")
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": source})


def test_output_can_be_moved_and_goes_on(root: Path, tmp_path: Path, no_training: list[Training]) -> None:
    """Nothing in it is named by where it lies, so that a finished folder can be kept elsewhere."""
    quietly(["cats"], root, tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    quietly(["cats"], root, tmp_path / "there")
    assert len(no_training) == 1
