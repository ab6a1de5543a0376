"""Provide fixtures and settings that the tests share."""

from __future__ import annotations

import json
import os

# OpenMP threads that spin for long while they wait slow down a busy machine. The command line sets the same
# limit. It has an effect only if it is set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import gc
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest

from selfmark import discovery
from selfmark.cli import entry as cli
from selfmark.demo.scene import Scene, generate_scene, write_scene
from selfmark.discovery import discover
from tests.browser import browser as browser  # one for all tests: a process can run only one Playwright

# A shell script makes its background processes ignore SIGINT, but some tests send this signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Settings that run every phase of the pipeline in seconds, without learning much.
QUICK: dict[str, Any] = {
    "K": 4,
    "M": 8,
    "images.size": 64,
    "network.channels": 32,
    "network.norm_groups": 4,
    "network.descriptor": 16,
    "network.depth": 2,
    "keypoints.image_size": 64,
    "keypoints.outlier_sample": 2000,
    "heatmaps.threshold": 0.0,
    "correspondence.restarts": 1,
    "correspondence.iterations": 5,
    "loss.random_negatives": 8,
    "warmup.iterations": 5,
    "rounds.count": 2,
    "rounds.iterations": 4,
    "stage2.iterations": 6,
    "stage2.batch": 4,
    "runtime.batch": 3,
    "runtime.checkpoint_every": 2,
    "runtime.log_every": 2,
    "evaluation.num_samples": 6,  # too few for the slow checks that need pretrained features
}
# Options of `selfmark discover` for these settings.
QUICK_OPTIONS = [
    "--preset=tiny",
    "--device=cpu",
    *[f"--set={name}={json.dumps(value)}" for name, value in QUICK.items()],
]

# Result of the checks at the end of a run, in tests that skip these checks.
SKIPPED_CHECKS: dict[str, Any] = {
    "unlabelled": {"trust": [], "verdict": "good", "expected_forward": 0.2},
    "verification": None,
    "advice": [],
}
# The settings of QUICK and those of discovery with features. The second of the two rounds also trains the
# encoder.
QUICK_FEATURES: dict[str, Any] = QUICK | {
    "features.name": "efficientnet-lite0",
    "features.sample": 500,
    "features.iterations": 5,
    "features.foreground_clusters": 8,
    "features.rotations": 3,
    "features.direction_size": 32,
    "features.direction_starts": 2,
    "features.min_direction_consistency": 0,  # so that objects that are not upright are always turned
    "student.rounds": 2,
    "student.iterations": 3,
    "student.batch": 2,
    "student.width": 8,
    "student.depth": 1,
    "student.encoder_lr": 0.1,
    "evaluation.deformations": 1,
}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep the garbage collector from visiting the half million objects of imported modules again and again.

    This saves a quarter of the time in which pytest collects the tests, and half a second in every
    `gc.collect()` of a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def selfmark(*arguments: Any) -> int:
    """Run a command in this process, where torch is already imported, and return its exit code."""
    before = sys.argv
    sys.argv = ["selfmark", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


def read_error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error message of a command, which must be a single line."""
    text = capsys.readouterr().err.strip()
    assert text.startswith("selfmark: ")
    assert "\n" not in text
    return text


@pytest.fixture(scope="session")
def scene() -> Scene:
    return generate_scene(24, 64, seed=5)


@pytest.fixture(scope="session")
def photos(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 24 small pictures."""
    folder = tmp_path_factory.mktemp("photos")
    for index, image in enumerate(scene.images):
        cv2.imwrite(str(folder / f"{index:03d}.png"), image[..., ::-1])
    return folder


@pytest.fixture
def quick() -> dict[str, Any]:
    return dict(QUICK)


@pytest.fixture(scope="session")
def quick_run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run on the photos with QUICK settings; tests must not change it."""
    output = tmp_path_factory.mktemp("quick") / "run"
    discover(photos, output=output, preset="tiny", settings=QUICK, device="cpu")
    return output


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the checks and the report at the end of a run."""
    monkeypatch.setattr(discovery, "check_run", lambda *_: SKIPPED_CHECKS)
    monkeypatch.setattr(discovery, "build_report", lambda *_, **__: None)


@pytest.fixture(scope="session")
def labeled(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the pictures in images/; labels.json has true points and a field `pose`."""
    folder = tmp_path_factory.mktemp("labeled")
    write_labeled(scene, folder)
    return folder


def write_labeled(scene: Scene, folder: Path) -> None:
    """Write the files of the fixture `labeled`."""
    labels = write_scene(scene, folder)
    content = json.loads(labels.read_text())
    for index, annotation in enumerate(content["annotations"]):
        annotation["pose"] = "left" if index % 2 else "right"
    labels.write_text(json.dumps(content))


@pytest.fixture(autouse=True)
def _shared_files_stay_unchanged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a test changes files of the fixtures `photos` or `quick_run`, which tests share."""
    shared = [name for name in ("photos", "quick_run") if name in request.fixturenames]
    folders: list[Path] = [request.getfixturevalue(name) for name in shared]
    before = [_list_files(folder) for folder in folders]
    yield
    for name, folder, state in zip(shared, folders, before, strict=True):
        changed = sorted(path for path, _, _ in _list_files(folder) ^ state)
        assert not changed, f"{name} was changed ({', '.join(sorted(set(changed)))}): use a copy"


def _list_files(folder: Path) -> set[tuple[str, int, int]]:
    """Return the name, size and modification time of every file in a folder and its subfolders."""
    files = ((path, path.lstat()) for path in folder.rglob("*") if not path.is_dir())
    return {(str(path.relative_to(folder)), status.st_size, status.st_mtime_ns) for path, status in files}
