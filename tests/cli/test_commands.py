"""Test that commands answer bad input with a one-line error and exit code 2, and never damage files."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from selfmark.multiview.view_boxes import parse_views, write_views
from selfmark.run.files import FORMAT
from tests.conftest import QUICK_OPTIONS, read_error_line, selfmark

MANY_ITERATIONS = "--set=stage2.iterations=100000"


@pytest.fixture(scope="module")
def finished_run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("cli") / "run"
    assert selfmark("discover", photos, "-o", output, *QUICK_OPTIONS) == 0
    return output


def test_discover_prints_progress_and_the_report_path(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selfmark("discover", photos, "-o", tmp_path / "run", *QUICK_OPTIONS) == 0
    text = capsys.readouterr().out
    assert "preset tiny on cpu" in text
    assert "training the detector: 6 of 6 loss" in text
    assert f"report:   {tmp_path}/run/report/index.html" in text
    assert (tmp_path / "run" / "report" / "index.html").is_file()


def test_inputs_without_images_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert selfmark("discover", tmp_path / "empty", "-o", tmp_path / "run", *QUICK_OPTIONS) == 2
    assert "empty" in read_error_line(capsys)
    assert selfmark("discover", tmp_path / "nowhere", "-o", tmp_path / "run", *QUICK_OPTIONS) == 2
    assert "nowhere" in read_error_line(capsys)
    assert selfmark("discover", "-o", tmp_path / "run", *QUICK_OPTIONS) == 2
    assert "no images given" in read_error_line(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["predikt"], "predict"),
        (["predict", "demo", "photos", "--format=parquett"], "parquet"),
        (["predict", "demo", "photos", "--runtime=onx"], "onnx"),
        (["discover", "photos", "--preset=tinny"], "tiny"),
        (["discover", "photos", "--set=augment.rotaton=1"], "augment.rotation"),
        (["discover", "photos", "--detector=sfit"], "sift"),
        (["discover", "photos", "--logger=tensorbord"], "tensorboard"),
        (["weights", "superpoin"], "superpoint"),
    ],
)
def test_a_similar_name_is_suggested(
    arguments: list[str],
    suggestion: str,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(photos)
    assert selfmark(*arguments) == 2
    error = read_error_line(capsys)
    assert f"Did you mean '{suggestion}'?" in error
    assert "?;" not in error
    assert not (tmp_path / "runs").exists()


def test_evaluate_refuses_the_packaged_detector(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert selfmark("evaluate", "demo", photos) == 2
    assert "'demo' is the detector inside selfmark, not a run" in read_error_line(capsys)


def test_too_few_images_are_rejected(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few_photos = sorted(photos.iterdir())[:5]
    assert selfmark("discover", *few_photos, "-o", tmp_path / "run", *QUICK_OPTIONS) == 2
    assert "5 usable images are too few" in read_error_line(capsys)
    assert not (tmp_path / "run").exists()


def test_more_landmarks_than_points_are_rejected_with_advice(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*QUICK_OPTIONS, "--set=K=60", "--set=M=60"]
    assert selfmark("discover", photos, "-o", tmp_path / "run", *options) == 2
    text = read_error_line(capsys)
    pattern = r"K=60 is more than the (\d+) points that the detector 'selfmark' found in any image"
    found = int(re.search(pattern, text)[1])
    assert f"use -k {found} or less, or" in text
    # The advice to raise keypoints.max_points appears only if an image has at least 60 percent of that many
    # points. The limit is 40 in this preset.
    limit = 40
    assert ("raise keypoints.max_points" in text) == (found >= round(0.6 * limit))
    assert "--features efficientnet-lite0" in text
    assert not (tmp_path / "run").exists()


def test_more_clusters_than_points_are_rejected(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selfmark("discover", photos, "-o", tmp_path / "run", *QUICK_OPTIONS, "--set=M=5000") == 2
    assert "too few for M=5000" in read_error_line(capsys)
    assert not (tmp_path / "run").exists()


def test_unreadable_images_are_skipped_and_listed(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(photos, folder)
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.png").write_text("not an image")
    complete = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (90, 90, 3), dtype=np.uint8))[1]
    (folder / "truncated.jpg").write_bytes(complete.tobytes()[:900])
    assert selfmark("discover", folder, "-o", tmp_path / "run", *QUICK_OPTIONS) == 0
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    skipped = {Path(event["name"]).name: event["reason"] for event in events if event["event"] == "skipped"}
    assert skipped.keys() == {"empty.jpg", "text.png", "truncated.jpg"}
    assert all(skipped.values())
    images = next(event for event in events if event["event"] == "images")
    assert (images["used"], images["skipped"]) == (24, 3)


def test_output_folder_with_a_run_is_rejected(
    finished_run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*") if path.is_file()}
    assert selfmark("discover", photos, "-o", finished_run, *QUICK_OPTIONS) == 2
    assert "already contains a run: add --resume" in read_error_line(capsys)
    assert {path: path.stat().st_mtime_ns for path in finished_run.rglob("*") if path.is_file()} == before


def test_output_folder_with_other_files_is_rejected(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert selfmark("discover", photos, "-o", tmp_path, *QUICK_OPTIONS) == 2
    assert "not an empty folder" in read_error_line(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert selfmark("discover", photos, "-o", tmp_path / "thesis.txt", *QUICK_OPTIONS) == 2
    assert "not an empty folder" in read_error_line(capsys)


def test_missing_weights_are_reported_with_the_command_that_gets_them(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "cache"))
    assert selfmark("discover", photos, "-o", tmp_path / "run", *QUICK_OPTIONS, "--detector=superpoint") == 2
    assert "selfmark weights superpoint" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_run_from_a_newer_version_is_rejected(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(finished_run, newer)
    for name in ("run.json", "model/model.json"):
        values = json.loads((newer / name).read_text())
        (newer / name).write_text(json.dumps(values | {"format": FORMAT + 1, "selfmark": "7.0"}))
    for command in (["discover", "-o", newer, "--resume"], ["predict", newer, newer], ["report", newer]):
        assert selfmark(*command) == 2
        assert "written by a newer version of selfmark (7.0)" in read_error_line(capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset=huge"], "unknown preset 'huge'"),
        (["--set=nonsense=1"], "unknown setting 'nonsense'"),
        (["--set=K"], "--set takes NAME=VALUE"),
        (["--detector=eyes"], "'keypoints.detector' must be one of"),
        (["--device=cuda"], "this machine has no CUDA device"),
        (["--device=abacus"], "unknown device 'abacus'"),
        (["-k", "many"], "-k takes a number of landmarks, at least 1, or 'auto', not 'many'"),
        (["-k", "0"], "not '0'"),
        (["-k", "-3"], "not '-3'"),
        (["-k", "2.5"], "not '2.5'"),
    ],
)
def test_invalid_options_are_rejected(
    options: list[str], message: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selfmark("discover", photos, "-o", tmp_path / "run", *QUICK_OPTIONS, *options) == 2
    assert message in read_error_line(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "file"), [("csv", "landmarks.csv"), ("coco", "landmarks.json")])
def test_predict_writes_the_chosen_format(
    name: str, file: str, finished_run: Path, photos: Path, tmp_path: Path
) -> None:
    assert selfmark("predict", finished_run, photos, "-o", tmp_path, "--format", name, "--device=cpu") == 0
    assert (tmp_path / file).is_file()
    assert {path.name for path in tmp_path.iterdir()} == {file, "predictions.json"}


def test_predict_rejects_invalid_input(
    finished_run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selfmark("predict", tmp_path, photos, "-o", tmp_path / "out") == 2
    assert "contains no model" in read_error_line(capsys)
    assert selfmark("predict", finished_run, photos, "-o", tmp_path / "out", "--format=papyrus") == 2
    assert "unknown format 'papyrus'" in read_error_line(capsys)
    assert selfmark("predict", tmp_path / "nosuch", photos, "-o", tmp_path / "out") == 2
    assert "nosuch does not exist; check the path" in read_error_line(capsys)
    bad_file = tmp_path / "bad.png"
    bad_file.write_bytes(b"")
    assert selfmark("predict", finished_run, bad_file, "-o", tmp_path / "out", "--device=cpu") == 2
    assert "none of the images could be read (0 of 1)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_report_recreates_a_deleted_page(finished_run: Path) -> None:
    page = finished_run / "report" / "index.html"
    page.unlink()
    assert selfmark("report", finished_run) == 0
    assert page.is_file()


def test_doctor_lists_packages_and_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert selfmark("doctor") == 0
    text = capsys.readouterr().out
    assert "torch" in text
    assert "weights superpoint" in text
    assert selfmark("--version") == 0
    assert capsys.readouterr().out.startswith("selfmark 0.")


WRONG_PATHS = [
    ["discover", "nosuch"],
    ["predict", "nosuch", "x"],
    ["predict", "demo", "nosuch"],
    ["evaluate", "nosuch", "x"],
    ["map", "nosuch", "--labels", "x"],
    ["map", "demo", "--labels", "nosuch"],
    ["export", "nosuch", "--onnx"],
    ["report", "nosuch"],
    ["compare", "nosuch", "--labels", "x"],
]


def test_help_and_wrong_paths_do_not_import_slow_packages(tmp_path: Path) -> None:
    code = f"""
import sys
from selfmark.cli import entry
for arguments in [["--help"], *{WRONG_PATHS!r}]:
    sys.argv = ["selfmark", *arguments]
    try:
        entry.main()
    except SystemExit as end:
        print("exit code", end.code)
print("imported:", sorted({{"torch", "cv2", "scipy", "numpy", "PIL"}} & sys.modules.keys()))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert result.stdout.strip().endswith("imported: []")
    assert result.stdout.count("exit code 2") == len(WRONG_PATHS)
    errors = result.stderr.splitlines()
    assert len(errors) == len(WRONG_PATHS)
    assert all(line.startswith("selfmark: ") and "nosuch" in line for line in errors)
    for command in ("discover", "predict", "demo", "report", "weights", "doctor"):
        assert command in result.stdout


def test_interrupted_run_prints_how_to_resume(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "selfmark",
            "discover",
            str(photos),
            "-o",
            str(output),
            *QUICK_OPTIONS,
            MANY_ITERATIONS,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        log = output / "log.jsonl"
        if log.exists() and '"checkpoint", "stage": "stage2"' in log.read_text():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"continue with: selfmark discover -o {output} --resume" in errors
    assert (output / "checkpoints" / "stage2.safetensors").is_file()


def test_an_interrupt_before_the_run_exists_does_not_advise_to_resume_it(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(**options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("selfmark.discovery.discover", interrupt)
    monkeypatch.setattr("selfmark.multiview.view_runs.discover_views", lambda *_: interrupt())
    views = ["--views", "top=0,0,64,32", "bottom=0,32,64,32"]
    for options in ([], ["-o", tmp_path / "run"], ["-o", tmp_path / "run", *views]):
        assert selfmark("discover", photos, *options) == 130
        assert capsys.readouterr().err == "stopped before the run was created; run the same command again\n"
    (tmp_path / "run").mkdir()
    write_views(parse_views(views[1:]), tmp_path / "run")
    assert selfmark("discover", photos, "-o", tmp_path / "run", *views) == 130
    assert capsys.readouterr().err == "stopped; continue with the same command and --resume\n"
