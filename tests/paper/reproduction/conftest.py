"""Miniature data sets where the official ones would lie, and a run that stands for trainings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark.config import FirstKeypoints
from selfmark.demo.scene import Scene
from selfmark.discovery import discover
from selfmark.keypoints import first_keypoints
from selfmark.paper.datasets import registry
from selfmark.paper.datasets.dataset import write_coco
from selfmark.paper.reproduction import (
    contact_sheets,
    dataset_cache,
    experiment,
    figures,
    harness,
    workspace,
)
from selfmark.paper.reproduction.dataset_cache import DatasetCache
from selfmark.paper.reproduction.experiment_plan import Training
from selfmark.paper.reproduction.workspace import Workspace
from tests.conftest import QUICK
from tests.paper.datasets import body_miniatures, face_miniatures
from tests.paper.reproduction import demo_datasets

# As they are before the fixtures of this folder put simpler ones in their place.
_KNOWN, _READ, _FOLDERS = dict(registry.DATASETS), registry.read_dataset, dict(dataset_cache.FOLDERS)
_WITH_POINTS = DatasetCache._with_points

# Over what the tables say: a schedule of seconds, and no detector that needs weights.
SHORT: dict[str, Any] = {
    **QUICK,
    "keypoints.detector": "selfmark",
    "evaluation.num_samples": 4,
    "evaluation.draws": 1,
    "evaluation.ridges": [0.01],
    "evaluation.fit_images": [],
    "evaluation.completion_iterations": 20,
}


def short(*names: str) -> dict[str, Any]:
    """SHORT without what the rows of these tables say themselves; M follows from their K."""
    said = {setting for name in names for setting in experiment.load_experiment(name).told_apart_by}
    said |= {"M"} if "K" in said else set()
    return {name: value for name, value in SHORT.items() if name not in said}


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small are slowed down by threads that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def root(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder of pictures for each data set."""
    folder = tmp_path_factory.mktemp("sets")
    demo_datasets.write_pictures(folder / "celeba", scene)
    for name in demo_datasets.KINDS:
        if name != "celeba":
            (folder / name).symlink_to(folder / "celeba")
    return folder


@pytest.fixture(autouse=True)
def miniatures(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    """Readers that find the pictures and know their points; faces have 5 points where a table asks for 5."""

    def read(name: str, folder: Path) -> Any:
        return demo_datasets.make(name, folder, scene)

    def with_points(self: DatasetCache, base: Any, name: str, points: int) -> Any:
        return demo_datasets.make(name, base.root, scene, demo_datasets.KINDS["mtfl"][0], base.normalizer)

    for name in demo_datasets.KINDS:
        monkeypatch.setitem(registry.DATASETS, name, registry.DatasetInfo(name.upper(), name, "nowhere", ()))
    monkeypatch.setattr(dataset_cache, "FOLDERS", {})
    monkeypatch.setattr(registry, "read_dataset", read)
    monkeypatch.setattr(DatasetCache, "_with_points", with_points)
    monkeypatch.setattr(contact_sheets, "IMAGES", 4)
    monkeypatch.setattr(figures, "DPI", 50)
    monkeypatch.setattr(figures, "SHEET_DPI", 50)


@pytest.fixture(scope="session")
def trained(root: Path, scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the pictures that kept its rounds."""
    folder = tmp_path_factory.mktemp("trained")
    train, _ = write_coco(demo_datasets.make("celeba", root / "celeba", scene), folder / "coco")
    settings = {key: value for key, value in SHORT.items() if not key.startswith("evaluation.")}
    discover(
        train,
        output=folder / "run",
        preset="tiny",
        settings={**settings, "rounds.keep_weights": True},
        device="cpu",
    )
    return folder / "run"


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch, trained: Path) -> list[Training]:
    """Trainings are copies of one run; gives those that were asked for."""
    asked: list[Training] = []

    def copy(bench: Workspace, training: Training) -> None:
        asked.append(training)
        shutil.copytree(trained, bench.run_folder(training))

    monkeypatch.setattr(workspace, "train_run", copy)
    return asked


@pytest.fixture(scope="package")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All data sets under their names, and 68 points of a detector for those that have five."""
    root = tmp_path_factory.mktemp("official")
    face_miniatures.make_celeba(root / "celeba", images=8, fitted=4)
    face_miniatures.make_aflw(root / "aflw")
    face_miniatures.make_ls3d(root / "ls3d")
    face_miniatures.make_mtfl(root / "mtfl")
    face_miniatures.make_cub(root / "cub")
    body_miniatures.make_bbcpose(root / "bbcpose", films=True)
    body_miniatures.make_human36m(root / "human36m")
    body_miniatures.make_pennaction(root / "pennaction")
    body_miniatures.make_cats(root / "cats")
    for name in ("celeba", "aflw"):
        splits = _READ(name, root / name).splits.values()
        files = [file.name for split in splits for file in split.paths]
        xy = np.stack([face_miniatures.sixty_eight(-60) + row for row in range(len(files))])
        np.savez(root / f"{name}-68.npz", names=np.array(files), xy=xy)
    return root


@pytest.fixture
def real_readers(miniatures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, known in _KNOWN.items():
        monkeypatch.setitem(registry.DATASETS, name, known)
    monkeypatch.setattr(registry, "read_dataset", _READ)
    monkeypatch.setattr(dataset_cache, "FOLDERS", _FOLDERS)
    monkeypatch.setattr(DatasetCache, "_with_points", _WITH_POINTS)


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detectors that need weights are stood in for by one that needs none."""
    real = first_keypoints.create_detector

    def stand_in(settings: FirstKeypoints, device: torch.device) -> Any:
        needs = settings.detector in ("superpoint", "r2d2")
        return real(replace(settings, detector="orb") if needs else settings, device)

    monkeypatch.setattr(first_keypoints, "create_detector", stand_in)
    monkeypatch.setattr(harness, "PUBLISHED_WEIGHTS", {})
