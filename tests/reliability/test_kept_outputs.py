"""Test that no command replaces files of another run or model, or files that selfmark did not write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from selfmark import evaluate
from selfmark.detector import Detector, Prediction
from selfmark.errors import InputError
from selfmark.evaluation import run_evaluation
from selfmark.export import onnx_export
from selfmark.inspection import image_check
from selfmark.inspection.run_estimate import RunEstimate
from selfmark.model.card import read_card, write_card
from selfmark.multiview.view_boxes import View, write_views
from selfmark.run.output_folder import require_own_output, require_same_model
from selfmark.run.tensor_files import write_tensors
from tests.conftest import selfmark
from tests.paper.datasets import face_miniatures
from tests.reliability.refusals import read_refusal
from tests.stored_results import read_files

TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"


@pytest.fixture
def other(quick_run: Path, tmp_path: Path) -> Path:
    """Return another run, which is a copy of the finished run with other weights."""
    folder = tmp_path / "other"
    shutil.copytree(quick_run, folder)
    _change_weights(folder / "model")
    return folder


def _change_weights(folder: Path) -> None:
    detector = Detector.load(folder)
    with torch.no_grad():
        next(iter(detector.psi.parameters())).mul_(2)
    detector.save(folder)


def _require_refusal(
    folder: Path, capsys: pytest.CaptureFixture[str], message: str, *command: object
) -> None:
    """Assert that a command is refused with this message and changes nothing in the folder."""
    assert message in read_refusal(folder, capsys, *command)


@pytest.mark.parametrize("subfolder", ["", "model", "new/folder"])
@pytest.mark.parametrize(
    "command", ["predict", "evaluate", "export", "check", "datasets", "reproduce", "save"]
)
def test_no_command_writes_into_another_run(
    command: str,
    subfolder: str,
    quick_run: Path,
    other: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("something was computed before the output was checked")

    monkeypatch.setattr(Detector, "locate", fail)
    root = face_miniatures.make_celeba(tmp_path / "celeba")
    output = other / subfolder
    arguments: dict[str, tuple[object, ...]] = {
        "predict": ("predict", quick_run, photos, "-o", output, "--overwrite"),
        "evaluate": ("evaluate", quick_run, photos, "-o", output),
        "export": ("export", quick_run, "--onnx", "-o", output),
        "check": ("check", photos, "-o", output, "--preset=tiny", "--device=cpu"),
        "datasets": ("datasets", "write", "celeba", root, "-o", output),
        "reproduce": ("reproduce", "all", "--data", root, "-o", output),
        "save": ("models", "save", quick_run, output / "weights.safetensors"),
    }
    _require_refusal(other, capsys, f"{other}", *arguments[command])


def test_the_python_function_refuses_too(quick_run: Path, other: Path, photos: Path) -> None:
    before = read_files(other)
    with pytest.raises(InputError, match="is another run, whose files it could replace: choose another"):
        evaluate(quick_run, photos, output=other)
    assert read_files(other) == before


def test_an_empty_output_does_not_mean_the_current_folder(
    quick_run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="'output' must be a folder or None, not ''"):
        evaluate(quick_run, photos, output="")
    assert not list(tmp_path.iterdir())


def test_metrics_of_another_model_are_kept(
    quick_run: Path, other: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert selfmark("evaluate", quick_run, photos, "-o", out, "--device=cpu") == 0
    written = (out / "metrics.json").stat().st_ino
    assert selfmark("evaluate", quick_run, photos, "-o", out, "--device=cpu") == 0
    assert (out / "metrics.json").stat().st_ino != written
    assert selfmark("evaluate", quick_run, photos, "-o", out, "--device=cpu", "--set=flip=never") == 0
    message = f"{out} has results of another model ({quick_run})"
    _require_refusal(out, capsys, message, "evaluate", other, photos, "-o", out)


@pytest.mark.parametrize(("command", "file"), [("evaluate", "metrics.json"), ("predict", "predictions.json")])
@pytest.mark.parametrize("content", ["mine", "[]", '{"accuracy": 0.9}'])
def test_files_of_other_programs_are_kept(
    command: str,
    file: str,
    content: str,
    quick_run: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / file).write_text(content)
    message = f"{tmp_path / file} was not written by selfmark"
    _require_refusal(tmp_path, capsys, message, command, quick_run, photos, "-o", tmp_path)


@pytest.mark.parametrize("name", ["landmarks.csv", "drawn/000.jpg", "clip_landmarks.mp4"])
def test_results_of_unknown_origin_are_kept(
    name: str, clip: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without predictions.json, a file may be the user's own. With it, the results may be replaced."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("made by hand")
    inputs = clip if name.endswith(".mp4") else photos / "000.png"
    command = ("predict", "demo", inputs, "--draw", "--device=cpu", "-o", tmp_path)
    message = f"{tmp_path / name} would be replaced, and without a predictions.json in the folder"
    _require_refusal(tmp_path, capsys, message, *command)
    assert selfmark(*command, "--overwrite") == 0
    assert b"made by hand" not in read_files(tmp_path)[name]
    assert selfmark(*command) == 0


def test_a_report_of_unknown_origin_is_kept(
    quick_run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report" / "index.html"
    report.parent.mkdir()
    report.write_text("made by hand")
    message = f"{report} would be replaced, and without a metrics.json in the folder"
    _require_refusal(tmp_path, capsys, message, "evaluate", quick_run, photos, "-o", tmp_path)


@pytest.mark.parametrize("name", ["crops.jpg", "ruler.jpg", "check.json"])
def test_a_check_keeps_files_of_unknown_origin(
    name: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text('{"survey": "made by hand"}')
    command = ("check", photos, "-o", tmp_path, "--preset=tiny", "--device=cpu")
    message = "was not written by selfmark" if name == "check.json" else "may not be a result of selfmark"
    _require_refusal(tmp_path, capsys, message, *command)


@pytest.mark.usefixtures("no_estimate")
def test_a_check_keeps_a_file_named_like_those_of_runs(photos: Path, tmp_path: Path) -> None:
    """If its images do not fit into memory, a check needs a file on the disk. A check can be repeated."""
    (tmp_path / "images.u8").write_text("made by hand")
    command = ("check", photos, "-o", tmp_path, "--preset=tiny", "--device=cpu")
    command += ("--features=none", "--set=runtime.store_gigabytes=0.0001")
    assert selfmark(*command) == 0
    assert selfmark(*command) == 0
    assert (tmp_path / "images.u8").read_text() == "made by hand"
    assert sorted(read_files(tmp_path)) == ["check.json", "crops.jpg", "images.u8", "ruler.jpg"]


@pytest.mark.usefixtures("no_estimate")
def test_an_interrupted_check_can_be_repeated(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("check", photos, "-o", tmp_path, "--preset=tiny", "--device=cpu", "--features=none")
    with monkeypatch.context() as patch:
        patch.setattr(image_check, "draw_ruler", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            selfmark(*command)
    assert (tmp_path / "crops.jpg").exists()
    assert selfmark(*command) == 0


@pytest.fixture
def no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not measure how long a run would take."""
    estimate = RunEstimate({}, 1.0, 1.0, 1.0, 0, 0)
    monkeypatch.setattr(image_check, "estimate_run", lambda *_: estimate)


@pytest.mark.parametrize(
    ("command", "link"),
    [
        ("evaluate", "report"),
        ("evaluate", "top"),
        ("evaluate", "top/report"),
        ("export", "top"),
        ("check", "top"),
        ("reproduce", "trainings"),
    ],
)
def test_no_report_or_view_is_written_through_a_link(
    command: str,
    link: str,
    quick_run: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, out, victim = (tmp_path / name for name in ("run", "out", "victim"))
    views = () if "top" not in link else (View("top", (0, 0, 64, 32)), View("low", (0, 32, 64, 32)))
    for name in [view.name for view in views] or [""]:
        shutil.copytree(quick_run, run / name)
    if views:
        write_views(views, run)
    victim.mkdir()
    (out / link).parent.mkdir(parents=True)
    (out / link).symlink_to(victim)
    boxes = [f"{view.name}={','.join(map(str, view.box))}" for view in views]
    arguments: dict[str, tuple[object, ...]] = {
        "evaluate": (run, photos),
        "export": (run, "--onnx"),
        "check": (photos, *(f"--views={box}" for box in boxes)),
        "reproduce": ("all", "--data", face_miniatures.make_celeba(tmp_path / "celeba")),
    }
    assert selfmark(command, *arguments[command], "-o", out) == 2
    assert f"{out / link} is a link, and selfmark does not follow links" in capsys.readouterr().err
    assert not list(victim.iterdir())
    assert not read_files(out)


@pytest.mark.parametrize("kind", ["drawn photos", "labeled videos", "tables"])
def test_nothing_is_written_through_links_in_an_output_folder(
    kind: str, clip: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clips = [tmp_path / name / "clip.mp4" for name in ("a", "b")]
    for path in clips:
        path.parent.mkdir()
        shutil.copy(clip, path)
    link, *arguments = {
        "drawn photos": ("drawn", "--draw", photos / "000.png"),
        "labeled videos": ("a", "--draw", *clips),
        "tables": ("a", "--format=dlc", *clips),
    }[kind]
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.mkdir()
    out.mkdir()
    (out / str(link)).symlink_to(victim)
    assert selfmark("predict", "demo", *arguments, "--overwrite", "--device=cpu", "-o", out) == 2
    assert f"{out / str(link)} is a link, and selfmark does not follow links" in capsys.readouterr().err
    assert not list(victim.iterdir())
    assert not list(out.rglob("*.*"))


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_predictions_never_replace_files_of_their_own_run(
    options: tuple[str, ...],
    quick_run: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """COCO results have a file images.json, and so has every run."""
    run = tmp_path / "run"
    shutil.copytree(quick_run, run)
    assert selfmark("predict", run, photos / "000.png", "--device=cpu", "-o", run) == 0
    message = f"the results would replace {run / 'images.json'}, which the run in this folder needs"
    command = ("predict", run, photos / "000.png", "--format=coco-results", "-o", run, *options)
    _require_refusal(run, capsys, message, *command)
    assert selfmark(*command[: -1 - len(options)], run / "results", "--device=cpu") == 0


@pytest.fixture
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 64))
    for _ in range(2):
        writer.write(np.zeros((64, 64, 3), np.uint8))
    writer.release()
    return path


@pytest.fixture
def no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write only the detector, because building the graph needs optional packages."""
    monkeypatch.setattr(onnx_export, "require_package", lambda *_: None)
    monkeypatch.setattr(onnx_export, "write_float32", lambda detector, path: path)


def _export(run: Path, output: Path) -> int:
    return selfmark("export", run, "--onnx", "-o", output)


@pytest.mark.usefixtures("no_graph")
def test_exports_of_another_model_are_kept(
    quick_run: Path, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert _export(quick_run, out) == 0
    assert _export(quick_run, out) == 0
    (out / "model.json").unlink()  # A killed export leaves the folder like this.
    assert _export(quick_run, out) == 0
    message = f"{out / 'weights.safetensors'} belongs to another model"
    _require_refusal(out, capsys, message, "export", other, "--onnx", "-o", out)
    assert _export(other, tmp_path / "new") == 0
    assert _export(other, other / "exported") == 0


@pytest.mark.usefixtures("no_graph")
@pytest.mark.parametrize("name", ["model.json", "model.onnx", "weights.safetensors"])
def test_exports_keep_files_of_other_programs(
    name: str, quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("{}")
    message = f"{tmp_path / name} belongs to another model"
    _require_refusal(tmp_path, capsys, message, "export", quick_run, "--onnx", "-o", tmp_path)


def _make_run(folder: Path, marker: str = "run.json") -> Path:
    folder.mkdir(parents=True)
    (folder / marker).write_text("{}")
    return folder


ALLOWED: dict[str, Callable[[Path], tuple[Path, Path | None]]] = {
    "no run": lambda root: (root / "new" / "folder", None),
    "beside the run": lambda root: (root / "out", _make_run(root / "run")),
    "the run": lambda root: (root / "run", _make_run(root / "run")),
    "in the run": lambda root: (root / "run" / "a" / "b", _make_run(root / "run")),
    "the run of a model folder": lambda root: (root / "run", _make_run(root / "run" / "model", "model.json")),
    "a view": lambda root: (_make_run(root / "run" / "top") / "out", _mark(root / "run", "views.json")),
}


def _mark(folder: Path, marker: str) -> Path:
    (folder / marker).write_text("{}")
    return folder


@pytest.mark.parametrize("case", ALLOWED)
def test_own_folders_are_allowed(case: str, tmp_path: Path) -> None:
    output, own = ALLOWED[case](tmp_path)
    require_own_output(output, own)


def test_folders_of_several_runs_belong_to_each_run(tmp_path: Path) -> None:
    for marker in ("views.json", "comparison.json"):
        first, second = _make_run(tmp_path / marker / "a"), _make_run(tmp_path / marker / "b")
        _mark(tmp_path / marker, marker)
        require_own_output(tmp_path / marker / "out", first)
        with pytest.raises(InputError, match=f"lies in {second}, which is another run,"):
            require_own_output(second / "out", first)
        with pytest.raises(InputError, match="which is another"):
            require_own_output(tmp_path / marker / "out")


def test_links_and_nested_runs_do_not_allow_writing_into_a_run(tmp_path: Path) -> None:
    outer = _make_run(tmp_path / "outer")
    inner = _make_run(outer / "inner")
    (tmp_path / "link").symlink_to(outer)
    for output, own in (
        (tmp_path / "link" / "x", None),
        (outer, inner),
        (inner, outer),
        (outer, Path("demo")),
    ):
        with pytest.raises(InputError, match="whose files it could replace"):
            require_own_output(output, own)


def test_the_packaged_detector_owns_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name "demo" is not a path, even if the current folder is a run."""
    monkeypatch.chdir(_make_run(tmp_path / "run"))
    with pytest.raises(InputError, match=r"lies in .*run, which is another run"):
        require_own_output(Path("predictions"), Path("demo"))


def test_old_metrics_without_a_recorded_model_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"selfmark": "0.1"}))
    require_same_model(tmp_path / "metrics.json", "a", tmp_path)
    require_same_model(tmp_path / "missing.json", "a", tmp_path)


def test_a_packed_detector_replaces_only_a_file_of_the_same_detector(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A .safetensors file may be the weights of a model folder, or a detector of somebody else."""
    model, colleague = (Path(shutil.copytree(TOY_DETECTOR, tmp_path / name)) for name in ("a", "b"))
    _change_weights(model)
    assert selfmark("models", "save", colleague, tmp_path / "packed.safetensors") == 0
    write_tensors({"mine": torch.ones(2)}, {}, tmp_path / "mine.safetensors")
    (tmp_path / "dangling.safetensors").symlink_to(tmp_path / "missing.safetensors")
    files = ("b/weights.safetensors", "packed.safetensors", "mine.safetensors", "dangling.safetensors")
    for file in (tmp_path / name for name in files):
        message = f"{file} exists already and was not made from this detector"
        _require_refusal(tmp_path, capsys, message, "models", "save", model, file)
    card = read_card(colleague)
    write_card(replace(card, names=("nose", *card.names[1:])), colleague)
    assert selfmark("models", "save", colleague, tmp_path / "packed.safetensors") == 0
    assert b"nose" in (tmp_path / "packed.safetensors").read_bytes()


@pytest.fixture
def run_meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return a function that makes the next prediction do something else before its second batch."""

    def plan(action: Callable[[], object]) -> None:
        def interrupt(detector: Detector, refs: Any, batch: int) -> Iterator[Prediction]:
            monkeypatch.setattr(Detector, "predict", original)
            for number, prediction in enumerate(original(detector, refs, batch)):
                if number == 1:
                    action()
                yield prediction

        original = Detector.predict
        monkeypatch.setattr(Detector, "predict", interrupt)

    return plan


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Return a copy of the toy detector with other weights."""
    folder = Path(shutil.copytree(TOY_DETECTOR, tmp_path / "changed"))
    _change_weights(folder)
    return folder


def test_predictions_of_another_model_that_finish_meanwhile_are_kept(
    changed: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, image = tmp_path / "out", photos / "000.png"
    locate = Detector.locate

    def finish_other_command(detector: Detector, pixels: torch.Tensor) -> object:
        monkeypatch.setattr(Detector, "locate", locate)
        assert selfmark("predict", TOY_DETECTOR, image, "-o", out, "--device=cpu") == 0
        written.update(read_files(out))
        return detector.locate(pixels)

    written: dict[str, bytes] = {}
    monkeypatch.setattr(Detector, "locate", finish_other_command)
    assert selfmark("predict", changed, image, "-o", out, "--device=cpu") == 2
    assert f"{out} has results of another model ({TOY_DETECTOR})" in capsys.readouterr().err
    assert written
    assert read_files(out) == written


def test_only_one_command_at_a_time_writes_predictions_to_a_folder(
    changed: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    run_meanwhile: Callable[[Callable[[], object]], None],
) -> None:
    out = tmp_path / "out"
    command = (*sorted(photos.iterdir())[:2], "-o", out, "--device=cpu", "--batch=1")
    run_meanwhile(lambda: codes.append(selfmark("predict", changed, *command)))
    codes: list[int] = []
    assert selfmark("predict", TOY_DETECTOR, *command) == 0
    assert codes == [2]
    assert f"another process is working on {out}: wait until it is done, or" in capsys.readouterr().err
    assert json.loads((out / "predictions.json").read_text())["run"] == str(TOY_DETECTOR)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_folder_that_is_moved_while_predictions_are_written_is_reported(
    is_replaced: bool,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    run_meanwhile: Callable[[Callable[[], object]], None],
) -> None:
    out = tmp_path / "out"

    def move() -> None:
        out.rename(tmp_path / "moved")
        if is_replaced:
            out.mkdir()

    run_meanwhile(move)
    command = ("predict", TOY_DETECTOR, *sorted(photos.iterdir())[:2], "-o", out, "--device=cpu", "--batch=1")
    assert selfmark(*command) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert str(out) in error
    assert ("was replaced by another folder" in error) == is_replaced


@pytest.mark.usefixtures("no_graph")
def test_an_export_of_another_model_that_finishes_meanwhile_is_kept(
    changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, make = tmp_path / "out", onnx_export.output_folder

    def finish_other_command(folder: Path) -> object:
        monkeypatch.setattr(onnx_export, "output_folder", make)
        assert _export(TOY_DETECTOR, out) == 0
        written.update(read_files(out))
        return make(folder)

    written: dict[str, bytes] = {}
    monkeypatch.setattr(onnx_export, "output_folder", finish_other_command)
    assert _export(changed, out) == 2
    assert written
    assert read_files(out) == written


def test_metrics_of_another_model_that_are_written_meanwhile_are_kept(
    quick_run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.json"

    def write_others(*_: object) -> dict[str, Any]:
        path.write_text(others)
        return {}

    others = json.dumps({"selfmark": "0.1", "run": "other", "model": "other"})
    monkeypatch.setattr(run_evaluation, "load_or_check", lambda *_: None)
    monkeypatch.setattr(run_evaluation, "_build_check_entries", write_others)
    with pytest.raises(InputError, match=r"has results of another model \(other\)"):
        evaluate(quick_run, photos, output=tmp_path, device="cpu")
    assert path.read_text() == others
