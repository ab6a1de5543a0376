"""Provide miniature data sets in place of the official ones, and one run in place of all training runs."""

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
from selfmark.paper.datasets import dataset_registry
from selfmark.paper.datasets.dataset import write_coco_dataset
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

# Original objects that `demo_readers` replaces and `real_readers` restores.
_DATASETS, _READ_DATASET, _FOLDERS = (
    dict(dataset_registry.DATASETS),
    dataset_registry.read_dataset,
    dict(dataset_cache.FOLDERS),
)
_READ_POINTS = DatasetCache._read_points

# Changes to the settings of the tables: training takes seconds, and no keypoint detector needs weights.
SHORT: dict[str, Any] = {
    **QUICK,
    "network.depth": 1,
    "runtime.checkpoint_every": 100,
    "keypoints.detector": "selfmark",
    "evaluation.num_samples": 4,
    "evaluation.draws": 1,
    "evaluation.ridges": [0.01],
    "evaluation.fit_images": [],
    "evaluation.completion_iterations": 20,
}


def select_short_settings(*names: str) -> dict[str, Any]:
    """Return SHORT without the settings that these tables compare; if K is compared, leave out M as well."""
    varied = {setting for name in names for setting in experiment.load_experiment(name).varied_settings}
    varied |= {"M"} if "K" in varied else set()
    return {name: value for name, value in SHORT.items() if name not in varied}


@pytest.fixture(scope="package", autouse=True)
def single_thread() -> Iterator[None]:
    """Use one thread, which is fastest for networks this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def root(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one folder of images for each data set."""
    folder = tmp_path_factory.mktemp("datasets")
    demo_datasets.write_images(folder / "celeba", scene)
    for name in demo_datasets.DATASETS:
        if name != "celeba":
            (folder / name).symlink_to(folder / "celeba")
    return folder


@pytest.fixture(autouse=True)
def demo_readers(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    """Replace the readers with one that returns demo data sets.

    A table that needs 5 points instead of 68 gets the points of MTFL.
    """

    def read_dataset(name: str, folder: Path) -> Any:
        return demo_datasets.make_dataset(name, folder, scene)

    def read_points(self: DatasetCache, base: Any, name: str, points: int) -> Any:
        return demo_datasets.make_dataset(
            name, base.root, scene, demo_datasets.DATASETS["mtfl"][0], base.normalizer
        )

    for name in demo_datasets.DATASETS:
        monkeypatch.setitem(
            dataset_registry.DATASETS, name, dataset_registry.DatasetInfo(name.upper(), name, "nowhere", ())
        )
    monkeypatch.setattr(dataset_cache, "FOLDERS", {})
    monkeypatch.setattr(dataset_registry, "read_dataset", read_dataset)
    monkeypatch.setattr(DatasetCache, "_read_points", read_points)
    monkeypatch.setattr(contact_sheets, "MAX_IMAGES", 4)
    monkeypatch.setattr(figures, "DPI", 50)
    monkeypatch.setattr(figures, "SHEET_DPI", 50)


@pytest.fixture(scope="session")
def finished_run(root: Path, scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run on the demo images with the weights of every round."""
    folder = tmp_path_factory.mktemp("trained")
    train, _ = write_coco_dataset(
        demo_datasets.make_dataset("celeba", root / "celeba", scene), folder / "coco"
    )
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
def copied_trainings(monkeypatch: pytest.MonkeyPatch, finished_run: Path) -> list[Training]:
    """Copy one finished run instead of training; return the list of trainings that were replaced."""
    copied: list[Training] = []

    def copy_run(workspace: Workspace, training: Training) -> None:
        copied.append(training)
        shutil.copytree(finished_run, workspace.run_folder(training))

    monkeypatch.setattr(workspace, "train_or_resume", copy_run)
    return copied


@pytest.fixture(scope="package")
def official_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of the paper's data sets in official layouts, with 68 points for CelebA and AFLW."""
    root = tmp_path_factory.mktemp("official")
    face_miniatures.make_celeba(root / "celeba", images=8, fit_images=4)
    face_miniatures.make_aflw(root / "aflw")
    face_miniatures.make_ls3d(root / "ls3d")
    for number, yaw in enumerate((0, 45, -80, 10, -50, 70), 1):  # Every range of yaw occurs.
        file = root / f"ls3d/LS3D-W-balanced-20-03-2017/new_dataset/{number}.t7"
        face_miniatures.write_t7(file, face_miniatures.make_rotated_face(yaw) + 1)
    face_miniatures.make_mtfl(root / "mtfl")
    face_miniatures.make_cub(root / "cub")
    body_miniatures.make_bbcpose(root / "bbcpose", as_videos=True)
    body_miniatures.make_human36m(root / "human36m")
    body_miniatures.make_pennaction(root / "pennaction")
    body_miniatures.make_cats(root / "cats")
    for name in ("celeba", "aflw"):
        splits = _READ_DATASET(name, root / name).splits.values()
        files = [file.name for split in splits for file in split.paths]
        xy = np.stack([face_miniatures.make_sixty_eight_points(-60) + row for row in range(len(files))])
        np.savez(root / f"{name}-68.npz", names=np.array(files), xy=xy)
    return root


@pytest.fixture
def real_readers(demo_readers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the readers that `demo_readers` replaces."""
    for name, info in _DATASETS.items():
        monkeypatch.setitem(dataset_registry.DATASETS, name, info)
    monkeypatch.setattr(dataset_registry, "read_dataset", _READ_DATASET)
    monkeypatch.setattr(dataset_cache, "FOLDERS", _FOLDERS)
    monkeypatch.setattr(DatasetCache, "_read_points", _READ_POINTS)


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace keypoint detectors that need weights with ORB."""
    create_detector = first_keypoints.create_detector

    def create_orb(settings: FirstKeypoints, device: torch.device) -> Any:
        needs_weights = settings.detector in ("superpoint", "r2d2")
        return create_detector(replace(settings, detector="orb") if needs_weights else settings, device)

    monkeypatch.setattr(first_keypoints, "create_detector", create_orb)
    monkeypatch.setattr(harness, "PUBLISHED_WEIGHTS", {})
