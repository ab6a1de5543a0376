"""Test commands on videos: tracking, crops, labeled videos, damaged files, constant memory."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark import pipeline
from selfmark.images.video import probe_video
from selfmark.run.config_file import read_config
from selfmark.run.folder import Run
from selfmark.tracking import regions
from tests.conftest import QUICK, QUICK_OPTIONS, selfmark
from tests.images.videos import encode_video
from tests.tracking.arena import SIZE, wander, write_arena_video

TRACK = ["--find-animals=2", "--every=10"]


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a video of two animals with 120 frames."""
    return write_arena_video(wander(120, 2, seed=2), tmp_path_factory.mktemp("arena") / "arena.mp4")


def _read_rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_discover_and_predict_each_animal_of_a_video(
    arena: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paired: list[tuple[np.ndarray, np.ndarray]] = []
    original_sample = pipeline.sample_nearby_frames

    def record(*args: Any) -> np.ndarray:
        neighbors, track = original_sample(*args), args[2]
        paired.append((track, neighbors))
        return neighbors

    monkeypatch.setattr(pipeline, "sample_nearby_frames", record)
    run = tmp_path / "run"
    assert selfmark("discover", arena, "-o", run, *TRACK, "--temporal", *QUICK_OPTIONS) == 0
    assert read_config(run / "config.yaml").augment.rotation == 180, (
        "animals seen from above can have any orientation"
    )
    refs = Run.open(run).refs()
    assert [(ref.frame, ref.track) for ref in refs] == [
        (frame, track) for frame in range(0, 120, 10) for track in (1, 2)
    ]
    assert len({ref.box[2:] for ref in refs if ref.box}) == 1, "all boxes have one size"
    assert paired
    for track, neighbors in paired:
        assert (neighbors >= 0).all()
        assert (track[neighbors] == track[:, None]).all(), "an animal is paired only with itself"

    capsys.readouterr()
    assert selfmark("discover", arena, "-o", run, "--resume", *TRACK) == 0
    assert selfmark("discover", arena, "-o", run, "--resume", "--every=10") == 2
    assert "was started on other images" in capsys.readouterr().err

    out = tmp_path / "out"
    assert selfmark("predict", run, arena, "-o", out, *TRACK, "--draw", "--device=cpu") == 0
    output = capsys.readouterr().out
    assert re.search(r"^24 images, \d+\.\d per second: .*landmarks\.csv$", output, flags=re.MULTILINE)
    assert f"labeled video: {out / 'arena_landmarks.mp4'}" in output
    assert probe_video(out / "arena_landmarks.mp4").frames == 12
    rows = _read_rows(out / "landmarks.csv")
    assert {(row["instance"], row["track"]) for row in rows} == {("0", "1"), ("1", "2")}
    assert len(rows) == 24 * QUICK["K"]
    names = ["arena_landmarks.mp4", "landmarks.csv", "predictions.json"]
    assert sorted(path.name for path in out.iterdir()) == names


def test_landmarks_lie_inside_the_crop(quick_run: Path, arena: Path, tmp_path: Path) -> None:
    crop = ["--crop=40,30,64,64", "--every=60", "--device=cpu"]
    assert selfmark("predict", quick_run, arena, "-o", tmp_path, *crop) == 0
    xy = np.array([(float(row["x"]), float(row["y"])) for row in _read_rows(tmp_path / "landmarks.csv")])
    margin = 8  # pixels around the crop in which landmarks may lie
    is_inside = (xy > (40 - margin, 30 - margin)) & (xy < (104 + margin, 94 + margin))
    assert is_inside.all()
    assert xy.max() > 60


def test_the_readable_part_of_a_damaged_video_is_predicted(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = encode_video(
        tmp_path / "cut.mp4", "libx264", frames=60, noise=90, container={"movflags": "faststart"}
    )
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.6)])
    assert selfmark("predict", quick_run, path, "-o", tmp_path / "out", "--draw", "--device=cpu") == 0
    errors = capsys.readouterr().err
    (message,) = [line for line in errors.splitlines() if "could not be read" in line]
    lost = int(message.split()[0])
    assert message == f"{lost} of 60 frames of {path} could not be read and were left out"
    frames = {int(row["frame"]) for row in _read_rows(tmp_path / "out" / "landmarks.csv")}
    assert frames == set(range(60 - lost))
    assert 10 < lost < 50
    assert probe_video(tmp_path / "out" / "cut_landmarks.mp4").frames == 60 - lost


def test_unreadable_images_are_counted_apart_from_videos(
    quick_run: Path, arena: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.png").write_bytes(b"")
    inputs = [arena, tmp_path / "bad.png", photos / "000.png"]
    assert selfmark("predict", quick_run, *inputs, "-o", tmp_path / "out", "--every=60", "--device=cpu") == 0
    assert "1 of 2 images could not be read and was left out" in capsys.readouterr().err


def test_an_unreadable_video_does_not_stop_the_others(
    quick_run: Path, arena: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    (folder / "whole.mp4").write_bytes(arena.read_bytes())
    (folder / "broken.mp4").write_text("the camera lost power")
    options = ["--every=60", "--device=cpu", "--draw"]
    assert selfmark("predict", quick_run, folder, "-o", tmp_path / "out", *options) == 0
    assert f"1 of 1 frame of {folder / 'broken.mp4'} could not be read" in capsys.readouterr().err
    assert {row["frame"] for row in _read_rows(tmp_path / "out" / "landmarks.csv")} == {"0", "60"}
    assert selfmark("predict", quick_run, folder, "-o", tmp_path / "two", *options, "--find-animals=2") == 0
    assert re.search(r"left out: .*broken\.mp4 cannot be read as a video", capsys.readouterr().err)
    assert len(_read_rows(tmp_path / "two" / "landmarks.csv")) == 4 * QUICK["K"]
    (folder / "whole.mp4").unlink()
    assert selfmark("predict", quick_run, folder, "-o", tmp_path / "none", *options) == 2
    assert selfmark("predict", quick_run, folder, "-o", tmp_path / "none", *options, "--find-animals=2") == 2
    assert "cannot be read as a video" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_lost_frames_are_counted_with_tracking_too(
    quick_run: Path, arena: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from selfmark.draw.video_writer import open_video_writer
    from selfmark.images.video import read_frames

    path = tmp_path / "cut.mp4"
    writer = open_video_writer(path, SIZE, 25.0)  # Its index is at the front of the file.
    for number, frame in read_frames(arena, range(120)):
        writer.write(frame, number / 25)
    writer.close()
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.7)])
    options = ["--find-animals=2", "--every=30", "--device=cpu"]
    assert selfmark("predict", quick_run, path, "-o", tmp_path / "out", *options) == 0
    message = re.search(r"(\d+) of 120 frames of .*cut\.mp4 could not be read", capsys.readouterr().err)
    assert message is not None
    assert 10 < int(message[1]) < 90


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--crop=1,2,3"], "--crop takes X,Y,WIDTH,HEIGHT in pixels, not '1,2,3'"),
        (["--crop=900,0,5,5"], "the crop is outside"),
        (["--crop=1,2,3,4", "--find-animals=1"], "give only one of them"),
        (["--boxes=nowhere.json"], "there is no file or folder nowhere.json"),
        (["--find-animals=1", "--set=color=red"], r"unknown setting '(tracking\.)?color'"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    options: list[str],
    message: str,
    quick_run: Path,
    arena: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in (["predict", quick_run], ["discover"]):
        assert selfmark(*command, arena, "-o", tmp_path / "out", *options) == 2
        errors = capsys.readouterr().err.strip()
        assert errors.startswith("selfmark: ")
        assert "\n" not in errors
        assert re.search(message, errors), errors
        assert not (tmp_path / "out").exists()
    # The folder is empty.
    assert selfmark("predict", quick_run, tmp_path, "-o", tmp_path / "out", "--draw") == 2


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("discover", ["--set=color=red"], "unknown setting 'color'"),
        ("discover", ["--set=K=40", "--set=M=20"], "M must be at least K"),
        ("discover", ["--preset=huge"], "unknown preset 'huge'"),
        ("discover", ["--start-from=nothing"], "nothing"),
        ("discover", ["-o", "."], "is not an empty folder"),
        ("check", ["--set=color=red"], "unknown setting 'color'"),
        ("check", ["--set=K=40", "--set=M=20"], "M must be at least K"),
    ],
)
def test_settings_are_refused_before_animals_are_tracked(
    command: str,
    options: list[str],
    message: str,
    arena: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(regions, "track_animals", lambda *_: pytest.fail("animals were tracked"))
    monkeypatch.chdir(arena.parent)
    assert selfmark(command, arena, "--find-animals=1", "--device=cpu", *options) == 2
    assert message in capsys.readouterr().err


# A program that processes videos. After each video, it prints its own peak memory so far, in KiB.
MEASURE = """
import resource, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from selfmark.detector import Detector, NetworkLandmarks
from selfmark.draw import labeled_video
from selfmark.export import get_writer
from selfmark.tracking.regions import Regions, locate_objects

class ConstantDetector(Detector):
    def locate(self, pixels):
        shape = len(pixels), len(self.names)
        return NetworkLandmarks(torch.full((*shape, 2), 20.0), torch.ones(shape))

detector = ConstantDetector.load("demo")
labeled_video._MAX_ZOOM = 1  # Small videos are encoded faster.
for video in map(Path, sys.argv[1:]):
    refs = locate_objects([video], 1, Regions(animals=2))
    predictions = labeled_video.draw_videos(
        detector.predict(refs), refs, detector.card, video.parent, 1, 1.0
    )
    get_writer("csv")(predictions, detector.card, video.parent)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_video_eight_times_as_long_needs_no_more_memory(tmp_path: Path) -> None:
    """Track, predict, write and draw. A program that keeps all frames would need 60 MB more."""
    videos = [
        str(
            write_arena_video(
                np.tile(wander(100, 2, seed=2), (frames // 100, 1, 1)), tmp_path / f"{frames}.mp4"
            )
        )
        for frames in (100, 800)
    ]
    command = [sys.executable, "-c", MEASURE, *videos]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks = [int(line) / 1024 for line in result.stdout.split()]  # MiB
    frame_size = 3 * SIZE[0] * SIZE[1] / 2**20  # MiB
    assert peaks[1] - peaks[0] < 0.25 * (800 - 100) * frame_size, f"{peaks} MiB"
