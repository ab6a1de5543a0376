"""Test which images are shown, and how their landmarks are stored."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from selfmark.config import Features, Student
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.model.card import read_card, write_card
from selfmark.naming import server
from selfmark.naming.landmark_prediction import predict_landmarks
from selfmark.naming.shown_images import (
    CACHE_FOLDER,
    compute_landmarks_fingerprint,
    get_frames_folder,
    load_cached_landmarks,
    select_shown_images,
)
from selfmark.run.files import read_json, write_json
from selfmark.run.guarded_files import read_file_state
from selfmark.run.image_list import refs_to_json
from selfmark.run.locks import FolderLocked, exclusive


@pytest.fixture
def run(quick_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(quick_run, tmp_path / "run")
    return tmp_path / "run"


def test_evenly_spaced_images_of_the_run_are_shown(run: Path) -> None:
    all_paths = [ref.path for ref in select_shown_images(run, [], 1000)]
    assert all_paths == [Path(entry["path"]) for entry in read_json(run / "images.json")]
    five = [ref.path for ref in select_shown_images(run, [], 5)]
    assert len(five) == 5
    assert (five[0], five[-1]) == (all_paths[0], all_paths[-1])


def test_moved_images_are_reported_and_then_found(run: Path, photos: Path, tmp_path: Path) -> None:
    entries = read_json(run / "images.json")
    for entry in entries:
        entry["path"] = str(Path("/gone") / Path(entry["path"]).name)
        entry["box"] = [1, 2, 30, 40]
    write_json(entries, run / "images.json")
    with pytest.raises(
        InputError, match=r"no longer where they were.*/gone/000.png.*selfmark name .* IMAGES"
    ):
        select_shown_images(run, [], 10)
    with pytest.raises(InputError, match=r"selfmark correct .* IMAGES"):
        select_shown_images(run, [], 10, "selfmark correct")
    refs = select_shown_images(run, [str(photos)], 1000)
    assert [ref.path for ref in refs] == sorted(photos.iterdir())
    assert all(ref.box == (1, 2, 30, 40) for ref in refs), "boxes were lost"


def test_other_images_can_be_shown(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for index in range(3):
        cv2.imwrite(str(other / f"new{index}.png"), np.zeros((20, 30, 3), np.uint8))
    assert [ref.path.name for ref in select_shown_images(run, [str(other)], 10)] == [
        "new0.png",
        "new1.png",
        "new2.png",
    ]
    entries = read_json(run / "images.json")
    for boxes, expected in (([[1, 2, 30, 40]], (1, 2, 30, 40)), ([[1, 2, 30, 40], [5, 5, 9, 9]], None)):
        for index, entry in enumerate(entries):
            entry["box"] = boxes[index % len(boxes)]
        write_json(entries, run / "images.json")
        assert {ref.box for ref in select_shown_images(run, [str(other)], 10)} == {expected}, (
            "other images get the box that all images of the run share, if there is such a box"
        )


def test_model_without_a_run_needs_images(run: Path) -> None:
    with pytest.raises(InputError, match="does not say which images"):
        select_shown_images(run / "model", [], 10)


def test_damaged_list_of_images_is_rejected(run: Path) -> None:
    (run / "images.json").write_text('[{"file": "x"}]')
    with pytest.raises(InputError, match="not a usable list of images"):
        select_shown_images(run, [], 10)


def test_stored_landmarks_equal_those_of_the_detector(run: Path, photos: Path) -> None:
    refs = select_shown_images(run, [], 6)
    predict_landmarks(run, refs, "now", "cpu")
    shown = load_cached_landmarks(run, refs, "now", 4)
    assert shown is not None
    assert shown.refs == tuple(refs)
    (prediction,) = Detector.load(run).predict(refs)
    np.testing.assert_allclose(shown.xy, prediction.landmarks.xy, atol=1e-3)
    np.testing.assert_allclose(shown.score, prediction.landmarks.score, atol=1e-5)
    np.testing.assert_array_equal(shown.sizes, prediction.sizes)
    assert shown.frames == (None,) * 6
    assert load_cached_landmarks(run, refs, "later", 4) is None
    assert load_cached_landmarks(run, refs, "now", 5) is None
    (run / CACHE_FOLDER / "landmarks.safetensors").write_bytes(b"damaged")
    assert load_cached_landmarks(run, refs, "now", 4) is None


def test_unreadable_images_are_left_out(run: Path, photos: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    shutil.copy(photos / "000.png", mixed / "a.png")
    (mixed / "b.png").write_bytes(b"no image")
    shutil.copy(photos / "001.png", mixed / "c.png")
    refs = list_images([mixed])
    predict_landmarks(run, refs, "now", "cpu")
    shown = load_cached_landmarks(run, refs, "now", 4)
    assert shown is not None
    assert [ref.path.name for ref in shown.refs] == ["a.png", "c.png"]
    with pytest.raises(InputError, match=r"none of the images could be read \(0 of 1\)"):
        predict_landmarks(run, [ImageRef(mixed / "b.png")], "now", "cpu")


def test_video_frames_are_stored_as_jpegs(run: Path, photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 48))
    for level in (30, 90, 150, 210):
        video.write(np.full((48, 64, 3), level, np.uint8))
    video.release()
    refs = [ImageRef(photos / "000.png"), ImageRef(path, 1), ImageRef(path, 3)]
    predict_landmarks(run, refs, "now", "cpu")
    shown = load_cached_landmarks(run, refs, "now", 4)
    assert shown is not None
    assert shown.frames[0] is None
    for file, level in zip(shown.frames[1:], (90, 210), strict=True):
        assert file is not None
        image = cv2.imread(str(file))
        assert image is not None
        assert image.shape == (48, 64, 3)
        assert abs(float(image.mean()) - level) < 8


def test_fingerprint_changes_if_and_only_if_predictions_may_change(run: Path, photos: Path) -> None:
    model, refs = run / "model", list_images([photos])[:3]
    card = read_card(model)
    first = compute_landmarks_fingerprint(model, card, refs)
    renamed = replace(
        card, names=("a", "b", "c", "d"), hidden=(1,), colors=("#112233", "", "", ""), skeleton=((0, 1),)
    )
    assert compute_landmarks_fingerprint(model, renamed, refs) == first
    paired = replace(card, mirror=(1, 0, 2, 3) if card.mirror[0] == 0 else (0, 1, 2, 3), flip_test=True)
    assert compute_landmarks_fingerprint(model, paired, refs) != compute_landmarks_fingerprint(
        model, replace(card, flip_test=True), refs
    )
    without_flip = replace(card, flip_test=False)
    assert compute_landmarks_fingerprint(
        model, replace(paired, flip_test=False), refs
    ) == compute_landmarks_fingerprint(model, without_flip, refs)
    assert compute_landmarks_fingerprint(model, card, refs[:2]) != first
    assert (
        compute_landmarks_fingerprint(model, card, [refs[0], refs[1], replace(refs[2], box=(0, 0, 5, 5))])
        != first
    )
    copy = run / "copy.png"
    shutil.copy(photos / "000.png", copy)
    before = compute_landmarks_fingerprint(model, card, [ImageRef(copy)])
    os.utime(copy, (1, 1))
    assert compute_landmarks_fingerprint(model, card, [ImageRef(copy)]) != before
    before, times = compute_landmarks_fingerprint(model, card, [ImageRef(copy)]), os.stat(copy)
    copy.write_bytes(copy.read_bytes())  # as another image of the same size
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert compute_landmarks_fingerprint(model, card, [ImageRef(copy)]) != before
    with open(model / "weights.safetensors", "ab") as handle:
        handle.write(b" ")
    assert compute_landmarks_fingerprint(model, card, refs) != first


def test_the_fingerprint_of_an_hourglass_has_only_the_settings_of_older_versions(
    run: Path, photos: Path
) -> None:
    """Compare with the rule of selfmark 0.1, which compared only a part of the state of files."""
    model, photo = run / "model", photos / "000.png"
    card = read_card(model)
    weights = hashlib.sha256((model / "weights.safetensors").read_bytes()).digest()
    mirror = card.mirror if card.flip_test else None
    images = dataclasses.asdict(card.images)
    del images["aspect"]  # Version 0.1 did not have this setting.
    settings = [mirror, card.refine, images, dataclasses.asdict(card.network)]
    image = [os.path.abspath(photo), read_file_state(photo), [(None, None)]]
    expected = hashlib.sha256(weights + json.dumps(settings).encode() + json.dumps(image).encode())
    assert compute_landmarks_fingerprint(model, card, [ImageRef(photo)]) == expected.hexdigest()


def test_the_fingerprint_of_a_detector_with_an_encoder_depends_on_all_its_settings(run: Path) -> None:
    model = run / "model"
    card = replace(read_card(model), architecture="encoder", features=Features(name="onnx:own.onnx"))
    cards = [
        card,
        replace(card, architecture="hourglass"),
        replace(card, architecture="zero-shot"),
        replace(card, features=Features(name="efficientnet-lite0")),
        replace(card, student=Student(feature_scale=3.0)),
    ]
    fingerprints = [compute_landmarks_fingerprint(model, card, []) for card in cards]
    for content in (b"one model", b"another model"):
        (model / "features.safetensors").write_bytes(content)
        fingerprints.append(compute_landmarks_fingerprint(model, card, []))
    assert len(set(fingerprints)) == 7


def test_image_references_are_unchanged_after_writing_and_reading_json() -> None:
    refs = [ImageRef(Path("a.mp4"), 3, (1.0, 2.0, 3.0, 4.0)), ImageRef(Path("b.jpg"))]
    from selfmark.run.image_list import refs_from_json

    assert refs_from_json(json.loads(json.dumps(refs_to_json(refs)))) == refs


def test_resuming_a_finished_run_keeps_its_names(run: Path) -> None:
    from selfmark.discovery import discover

    card = read_card(run / "model")
    named = replace(card, names=("nose", "tail", "ear", "foot"), hidden=(2,), colors=("#112233", "", "", ""))
    write_card(named, run / "model")
    discover(output=run, resume=True, device="cpu")
    assert read_card(run / "model") == named


def test_two_servers_of_one_run_predict_once_and_keep_their_frames_apart(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs, predicted = select_shown_images(run, [], 3), []
    other = select_shown_images(run, [], 2)

    def predict(folder: Path, refs: list[ImageRef], fingerprint: str, device: str) -> None:
        predicted.append(fingerprint)
        predict_landmarks(folder, refs, fingerprint, device)

    monkeypatch.setattr(server, "_predict_in_child", predict)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: server.prepare_shown_images(run, refs, "cpu"), range(2))
    assert len(predicted) == 1, "the second server must use the landmarks that the first has predicted"
    np.testing.assert_array_equal(first.xy, second.xy)
    assert len(server.prepare_shown_images(run, other, "cpu")) == 2
    assert len(set(predicted)) == 2
    assert get_frames_folder(run, predicted[0]) != get_frames_folder(run, predicted[1])
    with exclusive(run / CACHE_FOLDER), pytest.raises(FolderLocked), exclusive(run / CACHE_FOLDER):
        pass


class _RunningChild:
    """A child process that predicts until it is terminated."""

    is_terminated = False

    def terminate(self) -> None:
        self.is_terminated = True


class _InterruptedExecutor:
    """An executor with a running child; the user interrupts the command while it waits for the result."""

    child = _RunningChild()

    def __init__(self, *_: object) -> None:
        self.child.is_terminated = False

    def __enter__(self) -> _InterruptedExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.child.is_terminated, "the executor would wait until the prediction is done"

    def submit(self, *_: object) -> _InterruptedExecutor:
        return self

    def result(self) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_prediction_is_ended(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM reaches only the command, not its child process, which may predict for minutes."""
    monkeypatch.setattr(server, "ProcessPoolExecutor", _InterruptedExecutor)
    monkeypatch.setattr(server.multiprocessing, "active_children", lambda: [_InterruptedExecutor.child])
    with pytest.raises(KeyboardInterrupt):
        server.prepare_shown_images(run, select_shown_images(run, [], 1), "cpu")
    assert _InterruptedExecutor.child.is_terminated
