"""A pickle that runs a program, under every name selfmark reads: it must not run."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from selfmark.detector import Detector
from selfmark.errors import InputError, SelfmarkError
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.stage1_landmarks import Stage1
from selfmark.export.onnx_detector import load_detector
from selfmark.images.decode import read_image
from selfmark.images.sources import list_images
from selfmark.keypoints import weights_cache
from selfmark.keypoints.points_file import read_points_file
from selfmark.mapping.mapped_detector import load_mapping
from selfmark.run.config_file import read_config
from selfmark.run.folder import Run


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.marker)!r}, 'w').close()",)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


def plain(evil: Evil, path: Path) -> None:
    path.write_bytes(pickle.dumps(evil))


def archived(evil: Evil, path: Path) -> None:
    """As torch keeps pickles: inside an archive."""
    torch.save({"weight": torch.zeros(2), "evil": evil}, path)


WAYS = (plain, archived)


@pytest.mark.parametrize("way", WAYS)
def test_the_pickle_is_real(way: Callable[[Evil, Path], None], marker: Path, tmp_path: Path) -> None:
    way(Evil(marker), tmp_path / "pickle")
    if way is plain:
        pickle.loads((tmp_path / "pickle").read_bytes())
    else:
        torch.load(tmp_path / "pickle", weights_only=False)
    assert marker.exists()


def _onnx(run: Path) -> object:
    pytest.importorskip("onnxruntime")
    return load_detector(run, "onnx")


def _resumed(run: Path) -> object:
    from selfmark.discovery import discover

    return discover(output=run, resume=True, device="cpu")


# Each file of a run, and what reads it.
FILES: dict[str, Callable[[Path], object]] = {
    "model/weights.safetensors": Detector.load,
    "model/model.json": Detector.load,
    "model/model.onnx": _onnx,
    "model/map.json": lambda run: load_mapping(run, Detector.load(run)),
    "checkpoints/stage1.safetensors": lambda run: Stage1.load(Run.open(run), "cpu"),
    "points/landmarks.safetensors": lambda run: Stage1.load(Run.open(run), "cpu"),
    "config.yaml": Run.open,
    "run.json": Run.open,
    "images.json": lambda run: Run.open(run).refs(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FILES)
def test_files_of_a_run(
    name: str, way: Callable[[Evil, Path], None], marker: Path, quick_run: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(quick_run, tmp_path / "run"))
    way(Evil(marker), run / name)
    with pytest.raises(InputError):
        FILES[name](run)
    assert not marker.exists()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("bare")
def test_checkpoints_and_points_of_a_run_that_goes_on(
    way: Callable[[Evil, Path], None], marker: Path, finished: Path
) -> None:
    for path in (*(finished / "points").iterdir(), *(finished / "checkpoints").glob("stage2*")):
        way(Evil(marker), path)
    with pytest.raises(InputError, match="damaged"):
        _resumed(finished)
    assert not marker.exists()


# Files the user names, and what reads them.
NAMED: dict[str, Callable[[Path], object]] = {
    "labels.h5": lambda path: read_ground_truth(path, []),
    "labels.csv": lambda path: read_ground_truth(path, []),
    "labels.json": lambda path: read_ground_truth(path, []),
    "images.json": lambda path: list_images([path]),
    "list.txt": lambda path: list_images([path]),
    "video.mp4": lambda path: list_images([path]),
    "image.png": lambda path: read_image(path, 1.0),
    "points.csv": lambda path: read_points_file(path, [], torch.zeros(0, 4).numpy(), 64),
    "config.yaml": read_config,
    "superpoint_v1.pth": lambda path: weights_cache.load_weights(path, "superpoint"),
    "r2d2_WASF_N16.pt": lambda path: weights_cache.load_weights(path, "r2d2"),
    "mine.safetensors": lambda path: weights_cache.load_weights(path, "superpoint"),
    "alike-t.pth": lambda path: weights_cache.install_weights("alike-t", str(path)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMED)
def test_files_the_user_names(
    name: str,
    way: Callable[[Evil, Path], None],
    marker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "cache"))
    way(Evil(marker), tmp_path / name)
    with pytest.raises(SelfmarkError):
        NAMED[name](tmp_path / name)
    assert not marker.exists()


def test_yaml_that_would_run_a_program(marker: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"K: !!python/object/apply:os.mknod ['{marker}']\n")
    with pytest.raises(InputError, match="is not YAML"):
        read_config(path)
    assert not marker.exists()
