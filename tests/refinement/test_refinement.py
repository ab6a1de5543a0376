"""Test that refinement with corrected landmarks helps, keeps the original detector, and can be undone."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from selfmark.config import Augment, Config, Features
from selfmark.demo.scene import generate_scene
from selfmark.detector import Detector
from selfmark.errors import DiskError, InputError
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.features.loading import load_encoder
from selfmark.images.sources import list_images
from selfmark.model.card import read_card, write_card
from selfmark.model.feature_network import ZeroShotPsi
from selfmark.model.heatmaps import draw_gaussians
from selfmark.naming.corrections import CorrectionFile, MovePoint
from selfmark.refinement import refine_run
from selfmark.refinement.head_training import LabeledPixels, describe_views, split_network, train_head
from selfmark.run import files
from selfmark.run.guarded_files import compute_sha256
from selfmark.run.locks import exclusive
from selfmark.run.tensor_files import read_tensors
from tests.conftest import selfmark
from tests.stored_results import read_files

# Landmarks are moved by these pixels in images of 192 x 192. A vertical shift is the same in mirrored images.
SHIFT = np.array([0.0, -9.0])
FAST = ["--device=cpu"]
for setting in ("iterations=20", "batch=4", "views=2", "folds=2", "lr=0.002"):
    FAST += ["--set", f"refinement.{setting}"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for index, image in enumerate(generate_scene(8, 192, seed=5).images):
        cv2.imwrite(str(folder / f"{index}.png"), image[..., ::-1])
    return folder


@pytest.fixture
def corrected_run(pictures: Path, tmp_path: Path) -> Path:
    """Return a run of the demo detector in which a user moved all landmarks of four images by SHIFT."""
    folder = tmp_path / "run"
    detector = Detector.load("demo")
    detector.save(folder / "model")
    refs = list_images([str(pictures)])[:4]
    xy = detector([str(ref.path) for ref in refs]).xy
    edits = [
        MovePoint(row, landmark, *(xy[row, landmark] + SHIFT).tolist())
        for row in range(4)
        for landmark in range(16)
    ]
    CorrectionFile(folder).edit(edits, detector.card, refs, [(192, 192)] * 4, xy.tolist())
    return folder


def test_corrections_move_the_landmarks_of_other_images(
    corrected_run: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other_pictures = [str(ref.path) for ref in list_images([str(pictures)])[4:]]
    before, weights = (
        Detector.load(corrected_run)(other_pictures).xy,
        corrected_run / "model" / "weights.safetensors",
    )
    original_weights = weights.read_bytes()
    assert selfmark("refine", corrected_run, *FAST) == 0
    assert "64 points in 4 images" in capsys.readouterr().out.replace("\n", " ")
    record = read_card(corrected_run / "model").provenance["refined"]
    assert record["error_before"] == pytest.approx(100 * np.hypot(*SHIFT) / 192, rel=1e-3)
    assert record["error_after"] < 0.8 * record["error_before"], "in images left out of the training"
    moved = np.median(Detector.load(corrected_run)(other_pictures).xy - before, axis=(0, 1))
    assert moved @ SHIFT > 0.3 * SHIFT @ SHIFT, "landmarks of images without corrections move too"
    assert (corrected_run / "model-original" / "weights.safetensors").read_bytes() == original_weights

    # A second refinement starts from the original, so it gives the same weights. Names are kept.
    refined, _ = read_tensors(weights)
    card = read_card(corrected_run / "model")
    write_card(replace(card, names=("nose", *card.names[1:])), corrected_run / "model")
    labels = corrected_run / "corrections" / "labels.json"
    assert selfmark("refine", corrected_run, pictures, "--labels", labels, *FAST) == 0
    refined_again, _ = read_tensors(weights)
    assert all(torch.equal(refined[name], refined_again[name]) for name in refined)
    assert selfmark("refine", corrected_run, "--undo") == 0
    assert weights.read_bytes() == original_weights
    assert read_card(corrected_run / "model").names[0] == "nose"
    assert not (corrected_run / "model-original").exists()
    assert selfmark("refine", corrected_run, "--undo") == 2
    assert "there is nothing to undo" in capsys.readouterr().err
    assert selfmark("map", corrected_run, "--labels", labels, "--device=cpu") == 0, (
        "the same file teaches a map"
    )


def test_corrections_stay_with_their_landmarks_when_names_are_edited(
    corrected_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, card = corrected_run / "corrections" / "labels.json", read_card(corrected_run / "model")
    content = json.loads(labels.read_text())
    for annotation in content["annotations"]:
        annotation["keypoints"][3:] = [0] * (3 * 15)  # only landmark 0 was corrected
    labels.write_text(json.dumps(content))
    quick_options = [*FAST, "--set=refinement.iterations=1", "--force"]
    expected = 100 * np.hypot(*SHIFT) / 192
    swapped = (card.names[1], card.names[0], *card.names[2:])
    for names in (swapped, ("nose", *card.names[1:])):
        write_card(replace(read_card(corrected_run / "model"), names=names), corrected_run / "model")
        for folder in (corrected_run, corrected_run / "model"):
            assert selfmark("refine", folder, "--labels", labels, *quick_options) == 0
            record = read_card(corrected_run / "model").provenance["refined"]
            assert (record["points"], record["error_before"]) == (4, pytest.approx(expected, rel=1e-3))
    # A file from elsewhere is matched by names: points without a landmark are listed.
    for annotation in content["annotations"]:
        annotation["keypoints"][3:6] = annotation["keypoints"][:3]
    copy = corrected_run / "copy.json"
    copy.write_text(json.dumps(content))
    capsys.readouterr()
    assert selfmark("refine", corrected_run, "--labels", copy, *quick_options) == 0
    error = " ".join(capsys.readouterr().err.split())
    assert f"copy.json: 1 point was left out, because no landmark has the name: {card.names[0]}." in error
    content["categories"][0]["keypoints"].append("tail")
    content["categories"][0]["flip_idx"].append(16)
    for annotation in content["annotations"]:
        annotation["keypoints"] += [0, 0, 0]
    labels.write_text(json.dumps(content))
    assert selfmark("refine", corrected_run, *quick_options) == 2
    assert "was made for a detector with 17 landmarks, but this detector has 16" in capsys.readouterr().err


@pytest.mark.parametrize("stored_in", ["run", "model"])
def test_every_command_reads_corrections_with_the_current_names(
    stored_in: str, quick_run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Landmarks 0 and 1 are corrected, and then exchange their names on the page."""
    folder = Path(shutil.copytree(quick_run, tmp_path / "run"))
    model, refs = folder / "model", list_images([str(photos)])[:6]
    card = replace(read_card(model), names=("left", "right", "c", "d"), mirror=(1, 0, 2, 3), skeleton=())
    edits = [MovePoint(row, landmark, 10 + 30 * landmark, 20) for row in range(6) for landmark in range(2)]
    owner = CorrectionFile(folder if stored_in == "run" else model)
    owner.edit(edits, card, refs, [(64, 64)] * 6, [[(0.0, 0.0)] * 4] * 6)
    now = replace(card, names=("right", "left", "c", "d"), mirror=(0, 1, 2, 3), skeleton=((0, 1),))
    write_card(now, model)
    link = tmp_path / "mine.json"
    link.symlink_to(owner.path)
    for labels in (owner.path, link):
        truth = read_ground_truth(labels, refs)
        assert (truth.names, truth.mirror) == (now.names, now.mirror)
        assert selfmark("map", folder, photos, "--labels", labels, "--device=cpu") == 0
        content = json.loads((model / "map.json").read_text())
        assert (content["names"], content["skeleton"]) == (["right", "left"], [[0, 1]])
        command = ("predict", folder, refs[0].path, "--mapped", "-o", tmp_path / "out", "--overwrite")
        assert selfmark(*command) == 0
        rows = list(csv.DictReader((tmp_path / "out" / "landmarks.csv").open()))
        right, left = (float(row["x"]) for row in sorted(rows, key=lambda row: row["landmark"] == "left"))
        assert right < left
    out = tmp_path / "evaluated"
    normalizer = "--normalizer=points:right,left"
    assert selfmark("evaluate", folder, photos, "--labels", owner.path, "-o", out, normalizer) == 0
    assert json.loads((out / "metrics.json").read_text())["points"] == list(now.names)
    # A copy elsewhere is a label file like any other, and keeps its names.
    copied = Path(shutil.copy(owner.path, tmp_path / "labels.json"))
    assert read_ground_truth(copied, refs).names == card.names
    # So is a file of the user in this place, whatever its number of points.
    content = json.loads(owner.path.read_text())
    content["categories"] = [{"id": 1, "keypoints": ["a", "b", "c"]}]
    for annotation in content["annotations"]:
        del annotation["keypoints"][9:]
    owner.path.write_text(json.dumps(content))
    capsys.readouterr()
    assert selfmark("map", folder, photos, "--labels", owner.path) == 2
    assert "was made for a detector with 3 landmarks, but this detector has 4" in capsys.readouterr().err
    for annotation in content["annotations"]:
        del annotation["selfmark"]
    owner.path.write_text(json.dumps(content))
    assert read_ground_truth(owner.path, refs).names == ("a", "b", "c")


def test_useless_corrections_change_nothing(corrected_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels, weights = (
        corrected_run / "corrections" / "labels.json",
        corrected_run / "model" / "weights.safetensors",
    )
    content = json.loads(labels.read_text())
    for annotation in content["annotations"]:
        for landmark in range(2, 16):
            annotation["keypoints"][3 * landmark : 3 * landmark + 3] = [0, 0, 0]
    moved = content["annotations"][0]["keypoints"]
    # In all images but the first, the labels are where the detector found the landmarks.
    for annotation in content["annotations"][1:]:
        for landmark in range(2):
            x, y = annotation["keypoints"][3 * landmark : 3 * landmark + 2]
            annotation["keypoints"][3 * landmark : 3 * landmark + 2] = [x - SHIFT[0], y - SHIFT[1]]
    # In the first image, two landmarks are moved by 1.5 pixels in opposite directions.
    moved[:2] = [moved[0] - SHIFT[0] + 1.5, moved[1] - SHIFT[1]]
    moved[3:5] = [moved[3] - SHIFT[0] - 1.5, moved[4] - SHIFT[1]]
    labels.write_text(json.dumps(content))
    before = weights.read_bytes()
    assert selfmark("refine", corrected_run, *FAST) == 0
    assert "the detector was not changed" in capsys.readouterr().out.replace("\n", " ")
    assert weights.read_bytes() == before
    assert not (corrected_run / "model-original").exists()


def test_refinement_ignores_the_memory_limit_for_training_images(corrected_run: Path) -> None:
    limited = ["--set", "runtime.store_gigabytes=0", "--set", "refinement.iterations=1"]
    assert selfmark("refine", corrected_run, *FAST, *limited, "--force") == 0


def test_unusable_inputs_are_reported(
    corrected_run: Path, labeled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(corrected_run / "corrections")
    foreign_labels = labeled / "labels.json"
    for arguments, message in (
        ([corrected_run], "nothing was corrected yet: correct some images with 'selfmark correct"),
        ([corrected_run, "--labels", foreign_labels], "has the name of a landmark"),
        (["demo", "--labels", foreign_labels], "the demo model inside selfmark cannot be refined"),
    ):
        assert selfmark("refine", *arguments, "--device=cpu") == 2
        assert message in capsys.readouterr().err
    encoder = load_encoder("efficientnet-lite0")
    with pytest.raises(InputError, match="no head that could be trained"):
        split_network(ZeroShotPsi(encoder, torch.zeros(4, encoder.part_channels), Features()))


def test_landmarks_without_labels_hardly_move(quick_run: Path) -> None:
    detector = Detector.load(quick_run)
    network = split_network(detector.psi)
    pixels = torch.randint(
        0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    xy, present = torch.full((3, 4, 2), 20.0), torch.tensor([[True, False, False, False]] * 3)
    generator = torch.Generator().manual_seed(0)
    config = Config()
    examples = describe_views(
        network, LabeledPixels(pixels, xy, present), 2, replace(Augment(), rotation=0.0), None, generator
    )
    plain_features = examples.features[::2].float()
    settings = replace(config.refinement, iterations=60, keep_weight=20.0)
    head = train_head(network, examples, None, settings, sigma=2.0, generator=generator)
    with torch.no_grad():
        before, after = network.read(network.head, plain_features), network.read(head, plain_features)
    changes = (after - before).square().mean(dim=(0, 2, 3))
    assert changes[1:].max() < 0.3 * changes[0]
    label_cell = (20 + 0.5) / 4 - 0.5  # heatmap coordinate of a label at pixel 20
    target = draw_gaussians(torch.tensor([label_cell] * 2), 16, 2.0)
    error_before = (before[:, 0] - target).square().mean()
    assert (after[:, 0] - target).square().mean() < 0.5 * error_before


def build_refined(folder: Path) -> Detector:
    network = Detector.load(folder).psi
    with torch.no_grad():
        for parameter in split_network(network).head.parameters():
            parameter += 1.0
    return Detector(network, read_card(folder / "model"))


def save_refined(detector: Detector, folder: Path) -> None:
    model = folder / "model"
    digest = compute_sha256(refine_run._find_start(model) / "weights.safetensors")
    refine_run._save(detector, model, folder / "labels.json", None, 4, 64, digest)


@pytest.mark.parametrize("kind", ["notes", "another detector", "link"])
def test_a_folder_of_the_user_is_not_replaced_by_the_original(
    kind: str,
    corrected_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The name of the folder is that of the model folder, which the user may have chosen."""
    monkeypatch.setattr(refine_run, "train_head", lambda *_: pytest.fail("a detector was trained"))
    cats, kept, mine = corrected_run / "cats", corrected_run / "cats-original", tmp_path / "mine"
    (corrected_run / "model").rename(cats)
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    if kind == "another detector":
        save_changed(Detector.load(cats), kept)
    elif kind == "link":
        kept.symlink_to(mine)
    else:
        shutil.copytree(mine, kept)
    before = read_files(tmp_path)
    labels = corrected_run / "corrections" / "labels.json"
    assert selfmark("refine", cats, "--labels", labels, *FAST) == 2
    assert f"would replace {kept}, which 'selfmark refine' did not write" in capsys.readouterr().err
    assert read_files(tmp_path) == before


def test_a_run_that_another_process_works_on_is_not_refined(
    corrected_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_refined(build_refined(corrected_run), corrected_run)
    monkeypatch.setattr(refine_run, "train_head", lambda *_: pytest.fail("a detector was trained"))
    (corrected_run / "run.json").write_text("{}")
    with exclusive(corrected_run):
        before = read_files(corrected_run)
        for command in (["refine", corrected_run], ["refine", corrected_run / "model", "--undo"]):
            assert selfmark(*command, "--device=cpu") == 2
            error = " ".join(capsys.readouterr().err.split())
            assert f"another process is working on {corrected_run}" in error
        assert read_files(corrected_run) == before


def test_a_detector_that_replaces_the_refined_one_meanwhile_is_kept(
    corrected_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = refine_run._Trainer.train
    states: list[dict[str, bytes]] = []

    def replace_and_train(trainer: Any, left_out: Any) -> Any:
        if not left_out:  # the last training, on all images
            save_changed(Detector.load("demo"), corrected_run / "model")
            states.append(read_files(corrected_run))
        return train(trainer, left_out)

    monkeypatch.setattr(refine_run._Trainer, "train", replace_and_train)
    assert selfmark("refine", corrected_run, "--force", *FAST, "--set=refinement.iterations=1") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"another detector was put into {corrected_run / 'model'} while this one was refined" in error
    assert [read_files(corrected_run)] == states


def test_what_an_earlier_refinement_left_is_replaced(corrected_run: Path) -> None:
    refined, model = build_refined(corrected_run), corrected_run / "model"
    shutil.copytree(model, corrected_run / "model-original")  # as if the process had been killed
    save_refined(refined, corrected_run)
    assert refine_run.is_refined(model)
    save_changed(Detector.load(model), model)  # as if the run had been trained again
    card = read_card(model)
    write_card(replace(card, provenance={}), model)
    (corrected_run / "run.json").write_text("{}")
    save_refined(refined, corrected_run)
    assert refine_run.is_refined(model)


def test_undoing_keeps_files_that_the_user_put_beside_the_original(corrected_run: Path) -> None:
    save_refined(build_refined(corrected_run), corrected_run)
    notes = corrected_run / "model-original" / "notes.txt"
    notes.write_text("mine")
    assert selfmark("refine", corrected_run, "--undo") == 0
    assert list(notes.parent.iterdir()) == [notes]


def save_changed(detector: Detector, folder: Path) -> None:
    with torch.no_grad():
        next(iter(detector.psi.parameters())).mul_(2)
    detector.save(folder)


def test_the_original_is_kept_if_a_refinement_is_killed_between_two_files(
    corrected_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill a refinement and its undoing right before each of the files gets its final name."""
    original_weights = (corrected_run / "model" / "weights.safetensors").read_bytes()
    refined = build_refined(corrected_run)
    replace_file, calls, last_call = os.replace, 0, 0

    def replace_until_killed(*args: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == last_call:
            raise KeyboardInterrupt  # Like a kill, this exception must not be handled by the program.
        replace_file(*args, **options)

    monkeypatch.setattr("selfmark.run.files.os.replace", replace_until_killed)
    for last_call in range(1, 7):
        folder, calls = tmp_path / f"copy-{last_call}", 0
        shutil.copytree(corrected_run, folder)
        weights = folder / "model" / "weights.safetensors"
        with contextlib.suppress(KeyboardInterrupt):
            save_refined(refined, folder)
            assert weights.read_bytes() != original_weights
            selfmark("refine", folder, "--undo")
        assert calls >= min(last_call, 5)
        calls = 100
        if refine_run.is_refined(folder / "model"):
            assert selfmark("refine", folder, "--undo") == 0
        assert weights.read_bytes() == original_weights
        assert not refine_run.is_refined(folder / "model")


def test_a_full_disk_leaves_a_detector_as_it_was(
    corrected_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Let the disk become full at each file in turn, when a refinement is saved and when it is undone."""
    refined = build_refined(corrected_run)
    sync_file, calls, last_call = files._sync_file, 0, 0

    def sync_until_full(path: Path, folder: int) -> None:
        nonlocal calls
        calls += 1
        if calls == last_call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync_file(path, folder)

    monkeypatch.setattr(files, "_sync_file", sync_until_full)
    for last_call in range(1, 5):
        folder, calls = tmp_path / f"copy-{last_call}", 0
        shutil.copytree(corrected_run, folder)
        with pytest.raises(DiskError, match=r"cannot write to .*: No space left on device"):
            save_refined(refined, folder)
        assert read_files(folder) == read_files(corrected_run)
    last_call = 100
    save_refined(refined, corrected_run)
    for last_call in (1, 2):
        folder, calls = tmp_path / f"undone-{last_call}", 0
        shutil.copytree(corrected_run, folder)
        capsys.readouterr()
        assert selfmark("refine", folder, "--undo") == 2
        assert f"cannot write to {folder}: No space left on device" in capsys.readouterr().err
        assert read_files(folder) == read_files(corrected_run)
