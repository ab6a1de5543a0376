"""Replace each file that selfmark reads with a malicious pickle, and test that the pickle is not executed."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from selfmark import weights_cache
from selfmark.detector import Detector
from selfmark.errors import InputError, SelfmarkError
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.stage1_landmarks import Stage1
from selfmark.export.onnx_detector import load_detector
from selfmark.images.decode import read_image
from selfmark.images.sources import list_images
from selfmark.keypoints.points_file import read_points_file
from selfmark.mapping.mapped_detector import load_mapping
from selfmark.run.config_file import read_config
from selfmark.run.folder import Run


class Evil:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.marker)!r}, 'w').close()",)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "executed"


def write_pickle(evil: Evil, path: Path) -> None:
    path.write_bytes(pickle.dumps(evil))


def write_torch_archive(evil: Evil, path: Path) -> None:
    """Write the pickle inside an archive, as torch does."""
    torch.save({"weight": torch.zeros(2), "evil": evil}, path)


WRITERS = (write_pickle, write_torch_archive)


@pytest.mark.parametrize("write", WRITERS)
def test_the_pickle_is_malicious(write: Callable[[Evil, Path], None], marker: Path, tmp_path: Path) -> None:
    write(Evil(marker), tmp_path / "pickle")
    if write is write_pickle:
        pickle.loads((tmp_path / "pickle").read_bytes())
    else:
        torch.load(tmp_path / "pickle", weights_only=False)
    assert marker.exists()


def _load_onnx(run: Path) -> object:
    pytest.importorskip("onnxruntime")
    return load_detector(run, "onnx")


def _resume(run: Path) -> object:
    from selfmark.discovery import discover

    return discover(output=run, resume=True, device="cpu")


# Mapping from files of a run to functions that read them.
FILES: dict[str, Callable[[Path], object]] = {
    "model/weights.safetensors": Detector.load,
    "model/model.json": Detector.load,
    "model/model.onnx": _load_onnx,
    "model/map.json": lambda run: load_mapping(run, Detector.load(run)),
    "checkpoints/stage1.safetensors": lambda run: Stage1.load(Run.open(run), "cpu"),
    "points/landmarks.safetensors": lambda run: Stage1.load(Run.open(run), "cpu"),
    "config.yaml": Run.open,
    "run.json": Run.open,
    "images.json": lambda run: Run.open(run).refs(),
}


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", FILES)
def test_no_pickle_in_a_file_of_a_run_is_executed(
    name: str, write: Callable[[Evil, Path], None], marker: Path, quick_run: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(quick_run, tmp_path / "run"))
    write(Evil(marker), run / name)
    with pytest.raises(InputError):
        FILES[name](run)
    assert not marker.exists()


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.usefixtures("without_report")
def test_no_pickle_is_executed_when_a_run_is_resumed(
    write: Callable[[Evil, Path], None], marker: Path, finished: Path
) -> None:
    for path in (*(finished / "points").iterdir(), *(finished / "checkpoints").glob("stage2*")):
        write(Evil(marker), path)
    with pytest.raises(InputError, match="damaged"):
        _resume(finished)
    assert not marker.exists()


# Mapping from files given by the user to functions that read them.
USER_FILES: dict[str, Callable[[Path], object]] = {
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


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", USER_FILES)
def test_no_pickle_in_a_file_of_the_user_is_executed(
    name: str,
    write: Callable[[Evil, Path], None],
    marker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "cache"))
    write(Evil(marker), tmp_path / name)
    with pytest.raises(SelfmarkError):
        USER_FILES[name](tmp_path / name)
    assert not marker.exists()


def test_code_in_yaml_is_not_executed(marker: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"K: !!python/object/apply:os.mknod ['{marker}']\n")
    with pytest.raises(InputError, match="is not valid YAML"):
        read_config(path)
    assert not marker.exists()
