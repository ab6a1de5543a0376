"""Test learning, storing and using a map, with a fake detector."""

from __future__ import annotations

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
from torch import Tensor

from selfmark.config import Features, Images, Network
from selfmark.detector import Detector, NetworkLandmarks
from selfmark.errors import DiskError, InputError
from selfmark.export import get_writer
from selfmark.features.loading import build_encoder
from selfmark.images.sources import list_images
from selfmark.mapping import mapped_detector
from selfmark.mapping.learning import infer_mirror_partners, learn_map
from selfmark.mapping.mapped_detector import MappedDetector, load_mapping, save_mapping
from selfmark.model.card import ModelCard, read_card, write_card
from selfmark.model.feature_network import ZeroShotPsi
from selfmark.model.network import Psi
from selfmark.points import FloatArray
from selfmark.run import files
from selfmark.run.tensor_files import write_tensors

SIDE, K = 64, 4
NETWORK = Network(channels=32, depth=2, descriptor=16, norm_groups=4)
NAMES = ["left_eye", "right_eye", "nose"]
# Each annotated point is a weighted mean of the landmarks.
BLEND = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0.25, 0.25, 0.5, 0]])


@pytest.fixture(autouse=True)
def fake_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let detectors read landmarks from the image: pixel k of the first row contains x and y."""

    def locate(self: Detector, pixels: Tensor) -> NetworkLandmarks:
        xy = pixels[:, :2, 0, :K].permute(0, 2, 1).float()
        return NetworkLandmarks(xy, torch.tensor([0.9, 0.8, 0.7, 0.1]).expand(len(xy), K))

    monkeypatch.setattr(Detector, "locate", locate)


def _save_model(folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    card = ModelCard(
        names=tuple(f"landmark_{k}" for k in range(K)),
        mirror=(1, 0, 2, 3),
        skeleton=(),
        images=Images(size=SIDE),
        network=NETWORK,
        refine="parabola",
        flip_test=False,
        provenance={"preset": "tiny"},
    )
    Detector(Psi(NETWORK, K), card).save(folder / "model")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return _save_model(tmp_path / "run")


def _draw_shapes(count: int, seed: int = 0) -> FloatArray:
    """Return landmarks at whole pixels, because the images store coordinates as integers."""
    rng = np.random.default_rng(seed)
    shape = np.array([[20, 20], [44, 20], [32, 34], [32, 50]])
    return np.asarray(shape + rng.integers(-5, 6, (count, K, 2)), np.float64)


def _write_labels(folder: Path, landmarks: FloatArray, scale: int = 1, **category: Any) -> Path:
    """Write images, `scale` times as large as the network input, and their points as COCO keypoints."""
    (folder / "images").mkdir(parents=True)
    images, annotations = [], []
    for number, shape in enumerate(landmarks):
        image = np.full((SIDE, SIDE, 3), 128, np.uint8)
        image[0, :K, :2] = shape
        large_image = image.repeat(scale, axis=0).repeat(scale, axis=1)
        cv2.imwrite(str(folder / "images" / f"{number}.png"), large_image[..., ::-1])
        points = (BLEND @ shape + 0.5) * scale - 0.5
        side = SIDE * scale
        images.append({"id": number, "file_name": f"{number}.png", "width": side, "height": side})
        keypoints = [value for x, y in points.tolist() for value in (x, y, 2)]
        box = {"bbox": [10, 10, 40, 40]}  # must not be used: the run saw whole images
        annotations.append({"id": number, "image_id": number, "category_id": 1, "keypoints": keypoints} | box)
    values = {"id": 1, "name": "face", "keypoints": NAMES} | category
    path = folder / "few.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": [values]}))
    return path


def _edit_json(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _load_mapped(run: Path) -> MappedDetector:
    detector = Detector.load(run)
    return MappedDetector(detector, load_mapping(run, detector))


@pytest.mark.parametrize("scale", [1, 3])
def test_mapped_points_are_in_original_pixels(run: Path, tmp_path: Path, scale: int) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(30), scale, skeleton=[[1, 3], [2, 3], [3, 1]])
    learned = learn_map(run, labels)
    assert learned.path == run / "model" / "map.json"
    new_shapes = _draw_shapes(6, seed=1)
    images = _write_labels(tmp_path / "fresh", new_shapes, scale).parent / "images"
    mapped = _load_mapped(run)
    assert mapped.card.skeleton == ((0, 2), (1, 2)), "repeated edges are left out"
    predicted = mapped(images)
    assert predicted.names == tuple(NAMES)
    expected = (np.einsum("lk,nkc->nlc", BLEND, new_shapes) + 0.5) * scale - 0.5
    error = np.linalg.norm(predicted.xy - expected, axis=2) / scale
    assert error.mean() < 1.0
    assert predicted.score[:, 0] == pytest.approx(0.9, abs=0.15)
    left_eye, nose = predicted.score[:, 0], predicted.score[:, 2]
    assert (left_eye > nose).all(), "the nose depends on landmarks with lower scores"


def test_mapped_points_have_no_trust(run: Path, tmp_path: Path) -> None:
    """Trust and verdict belong to the landmarks, whose number may differ from that of the mapped points."""
    card = read_card(run / "model")
    trust = tuple(0.1 for _ in card.names)
    write_card(replace(card, trust=trust, verdict="failed"), run / "model")
    learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(12)))
    mapped = _load_mapped(run)
    assert (mapped.card.trust, mapped.card.verdict) == ((), None)
    assert (mapped.detector.card.trust, mapped.detector.card.verdict) == (trust, "failed")


def test_map_json_describes_the_map(run: Path, tmp_path: Path) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(12), skeleton=[[1, 3], [2, 3]])
    learned = learn_map(run, labels, normalizer="points:left_eye,right_eye")
    values = json.loads(learned.path.read_text())
    assert values["names"] == NAMES
    assert values["mirror"] == [1, 0, 2]  # inferred from the names
    assert values["skeleton"] == [[0, 2], [1, 2]]
    assert (values["images"], values["objects"]) == (12, 12)
    assert values["normaliser"] == "points:left_eye,right_eye"
    assert set(values["leave_one_out"]["points"]) == set(NAMES)
    assert 0 < values["leave_one_out"]["mean"] < 15
    assert learned.mapping.error == values["leave_one_out"]["mean"]
    assert not list((run / "model").glob("*.part"))
    loaded = load_mapping(run, Detector.load(run))
    shapes = _draw_shapes(4, seed=3)
    full_scores = np.ones((4, K))
    np.testing.assert_array_equal(
        loaded.map.predict(shapes, full_scores), learned.mapping.map.predict(shapes, full_scores)
    )
    assert (loaded.names, loaded.options, loaded.errors) == (
        learned.mapping.names,
        learned.mapping.options,
        learned.mapping.errors,
    )


@pytest.mark.parametrize("format_name", ["csv", "coco"])
def test_exports_use_the_names_of_the_label_file(run: Path, tmp_path: Path, format_name: str) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(3), skeleton=[[1, 3]], flip_idx=[1, 0, 2])
    learn_map(run, labels)
    mapped = _load_mapped(run)
    path = get_writer(format_name)(
        mapped.predict(list_images([labels.parent / "images"])), mapped.card, tmp_path
    )
    if format_name == "csv":
        with open(path, newline="") as handle:
            assert [row["landmark"] for row in csv.DictReader(handle)] == NAMES * 3
    else:
        category = json.loads(path.read_text())["categories"][0]
        assert category["keypoints"] == NAMES
        assert category["flip_idx"] == [1, 0, 2]
        assert category["skeleton"] == [[1, 3]]


def test_one_image_is_enough(run: Path, tmp_path: Path) -> None:
    shape = _draw_shapes(1)
    labels = _write_labels(tmp_path / "few", shape)
    learned = learn_map(run, labels)
    assert learned.mapping.error is None
    assert any("one annotated image" in note for note in learned.notes)
    moved = _write_labels(tmp_path / "moved", shape + np.array([6.0, 4.0]))
    predicted = _load_mapped(run)(moved.parent / "images")
    expected = np.einsum("lk,nkc->nlc", BLEND, shape) + np.array([6.0, 4.0])
    # The map also fits the mirror image, so it need not reproduce the annotated points exactly.
    assert np.linalg.norm(predicted.xy - expected, axis=2).max() < 4


def test_points_without_annotations_are_left_out_and_reported(run: Path, tmp_path: Path) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(4))

    def remove_nose(content: Any) -> None:
        for annotation in content["annotations"]:
            annotation["keypoints"][6:9] = [0, 0, 0]

    _edit_json(labels, remove_nose)
    learned = learn_map(run, labels)
    assert learned.mapping.names == ("left_eye", "right_eye")
    assert learned.mapping.mirror == (1, 0)
    assert any("nose" in note for note in learned.notes)


def test_points_without_known_partners_are_their_own_partners(run: Path, tmp_path: Path) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(4), keypoints=["a", "b", "c"])
    learned = learn_map(run, labels)
    assert json.loads(learned.path.read_text())["mirror"] is None
    assert _load_mapped(run).card.mirror == (0, 1, 2)
    assert not learned.mapping.options.mirrored
    assert any("flip_idx" in note for note in learned.notes)


def test_several_objects_of_one_image_are_all_used(run: Path, tmp_path: Path) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(2))

    def add_object(content: Any) -> None:
        extra_annotation = dict(content["annotations"][0], id=9, bbox=[0, 0, 20, 20])
        content["annotations"].append(extra_annotation)

    _edit_json(labels, add_object)
    learned = learn_map(run, labels)
    assert (learned.mapping.images, learned.mapping.objects) == (2, 3)


def test_images_that_cannot_be_read_are_left_out(run: Path, tmp_path: Path) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(4))
    (labels.parent / "images" / "2.png").write_bytes(b"not an image")
    learned = learn_map(run, labels)
    assert learned.mapping.images == 3
    assert any("1 annotated image" in note and "2.png" in note for note in learned.notes)
    for path in (labels.parent / "images").iterdir():
        path.write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"none of the images could be read \(0 of 4\)"):
        learn_map(run, labels)


def test_labels_of_other_images_are_rejected_without_writing_a_map(run: Path, tmp_path: Path) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(2))
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    cv2.imwrite(str(other_folder / "different.png"), np.zeros((SIDE, SIDE, 3), np.uint8))
    with pytest.raises(InputError, match="not among the given images"):
        learn_map(run, labels, [other_folder])
    assert not (run / "model" / "map.json").exists()


@pytest.mark.parametrize("skeleton", [[[1, 4]], [[0, 1]], [["a", 2]], [[1]], [[True, 2]], 7])
def test_invalid_skeletons_are_rejected(run: Path, tmp_path: Path, skeleton: Any) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(2), skeleton=skeleton)
    with pytest.raises(InputError, match="skeleton"):
        learn_map(run, labels)


# --- rejected maps ----------------------------------------------------------------------------------


def test_map_of_an_earlier_training_is_rejected(run: Path, tmp_path: Path) -> None:
    learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    _load_mapped(run)
    _save_model(run, seed=1)
    with pytest.raises(InputError, match="another model"):
        _load_mapped(run)


def test_renaming_landmarks_keeps_the_map_valid(run: Path, tmp_path: Path) -> None:
    learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    _edit_json(run / "model" / "model.json", lambda card: card.update(names=["a", "b", "c", "d"]))
    assert _load_mapped(run).names == tuple(NAMES)


def test_missing_map_is_reported_with_the_command_that_makes_one(run: Path) -> None:
    with pytest.raises(InputError, match="selfmark map"):
        _load_mapped(run)


def test_arrays_and_description_of_different_maps_are_rejected(run: Path, tmp_path: Path) -> None:
    """Earlier versions left such files if the process was killed after it had written one of the two."""
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    description = learned.path.read_text()
    learn_map(run, _write_labels(tmp_path / "more", _draw_shapes(4, seed=8)))
    learned.path.write_text(description)
    with pytest.raises(InputError, match=r"map-\w+\.safetensors, .* is missing: learn it again"):
        _load_mapped(run)
    _find_arrays(run).rename(run / "model" / "map.safetensors")
    with pytest.raises(InputError, match="do not belong together"):
        _load_mapped(run)


def test_maps_of_earlier_versions_are_loaded_and_replaced(run: Path, tmp_path: Path) -> None:
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    old_map = run / "model" / "map.safetensors"
    _find_arrays(run).rename(old_map)
    assert np.array_equal(_load_mapped(run).mapping.map.weights, learned.mapping.map.weights)
    save_mapping(learned.mapping, run / "model")
    assert not old_map.exists()
    assert np.array_equal(_load_mapped(run).mapping.map.weights, learned.mapping.map.weights)


@pytest.mark.parametrize("from_earlier_version", [False, True])
@pytest.mark.parametrize("file", [".safetensors.part", "map.json.part"])
def test_a_full_disk_keeps_the_old_map(
    file: str, from_earlier_version: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    if from_earlier_version:
        _find_arrays(run).rename(run / "model" / "map.safetensors")
    before = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    labels = _write_labels(tmp_path / "more", _draw_shapes(4, seed=8))
    sync_file = files._sync_file

    def sync_until_full(path: Path, folder: int) -> None:
        if path.name.endswith(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync_file(path, folder)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_sync_file", sync_until_full)
        with pytest.raises(DiskError, match=r"cannot write to .*: No space left on device"):
            learn_map(run, labels)
    assert {path.name: path.read_bytes() for path in (run / "model").iterdir()} == before
    assert np.array_equal(_load_mapped(run).mapping.map.weights, learned.mapping.map.weights)
    new_map = learn_map(run, labels)
    assert np.array_equal(_load_mapped(run).mapping.map.weights, new_map.mapping.map.weights)
    assert len(list((run / "model").glob("map*"))) == 2


def _find_arrays(run: Path) -> Path:
    (path,) = (run / "model").glob("map-*.safetensors")
    return path


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("weights", lambda array: array[:, :-1], "weights of shape"),
        ("weights", lambda array: array * 1e300, "'weights' has numbers"),
        ("weights", lambda array: array.astype(np.int64), "not 32-bit or 64-bit"),
        ("constant", lambda array: array[:3], "constant of shape"),
        ("constant", lambda array: np.float64(3.0), "constant of shape"),
        ("constant", lambda array: array * np.nan, "not finite"),
        ("constant", lambda array: array + 1e8, "'constant' has numbers"),
        ("reference", lambda array: np.ones((3, 2)), "reference of shape"),
        ("reference", lambda array: np.ones((0, 3)), "reference of shape"),
        ("reference", lambda array: np.float64(3.0), "reference of shape"),
        ("reference", lambda array: np.arange(2.0 * K).reshape(K, 2) * 1e200, "'reference' has numbers"),
    ],
)
def test_crafted_arrays_are_rejected(name: str, change: Any, problem: str, run: Path, tmp_path: Path) -> None:
    """The digest in map.json matches the crafted arrays, so only checks of the values can reject them."""
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    arrays = dict(vars(learned.mapping.map))
    arrays[name] = np.ascontiguousarray(change(arrays[name])).reshape(np.shape(change(arrays[name])))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    _find_arrays(run).unlink()
    write_tensors(tensors, {}, run / "model" / "map.safetensors")
    _edit_json(learned.path, lambda values: values.update(numbers=mapped_detector._digest(arrays)))
    with pytest.raises(InputError, match=problem):
        _load_mapped(run)


def test_a_map_with_too_large_numbers_is_not_saved(run: Path, tmp_path: Path) -> None:
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    point_map = replace(learned.mapping.map, constant=learned.mapping.map.constant + 1e8)
    with pytest.raises(InputError, match=r"no usable map can be learned from .*'constant' has numbers"):
        save_mapping(replace(learned.mapping, map=point_map), run / "model")
    assert _load_mapped(run).names == tuple(NAMES)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": "\udcff.json"},  # a file name that is not UTF-8
        {"names": ("nose\0", *NAMES[1:])},
        {"skeleton": ((0, 99),)},
        {"images": -1},
    ],
)
def test_a_map_is_not_replaced_by_one_with_an_invalid_description(
    change: dict[str, Any], run: Path, tmp_path: Path
) -> None:
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    before = {path: path.read_bytes() for path in (run / "model").iterdir()}
    with pytest.raises(InputError, match="no usable map can be learned from"):
        save_mapping(replace(learned.mapping, **change), run / "model")
    assert {path: path.read_bytes() for path in (run / "model").iterdir()} == before


def test_predicting_infinite_points_is_an_error(run: Path, tmp_path: Path) -> None:
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    point_map = replace(learned.mapping.map, weights=learned.mapping.map.weights * 1e300)
    mapped = MappedDetector(Detector.load(run), replace(learned.mapping, map=point_map))
    with np.errstate(all="ignore"), pytest.raises(InputError, match="coordinates that are not finite"):
        mapped(tmp_path / "few" / "images")


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["a", "b"]},
        {"names": [1, 2, 3]},
        {"mirror": [0, 0, 1]},
        {"skeleton": [[0, 7]]},
        {"fit": 3},
        {"fit": {"aligned": True, "mirrored": False, "ridge": "0.1"}},
        {"leave_one_out": {}},
        {"leave_one_out": {"mean": 1, "points": dict.fromkeys(NAMES, "1")}},
        {"labels": 3},
        {"images": -1},
    ],
)
def test_damaged_descriptions_are_rejected(run: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    _edit_json(learned.path, lambda values: values.update(change))
    with pytest.raises(InputError, match="not a usable map"):
        _load_mapped(run)


def test_mapped_detector_is_saved_with_its_map(run: Path, tmp_path: Path) -> None:
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    _load_mapped(run).save(tmp_path / "copy")
    shutil.rmtree(run)
    assert Detector.load(tmp_path / "copy").names[0] == "landmark_0"
    assert _load_mapped(tmp_path / "copy").names == learned.mapping.names


def test_landmarks_of_a_network_on_an_encoder_are_mapped(run: Path, tmp_path: Path) -> None:
    encoder = build_encoder("efficientnet-lite0")
    features = Features(name="efficientnet-lite0")
    card = replace(Detector.load(run).card, architecture="zero-shot", features=features)
    Detector(ZeroShotPsi(encoder, torch.ones(K, encoder.part_channels), Features(sharpness=30.0)), card).save(
        run / "model"
    )
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    mapped = _load_mapped(run)
    assert mapped.names == learned.mapping.names
    assert isinstance(mapped.psi, ZeroShotPsi)
    mapped.save(tmp_path / "copy")
    assert _load_mapped(tmp_path / "copy").card.features == features


def test_packaged_model_cannot_store_a_map(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = _write_labels(tmp_path / "few", _draw_shapes(2))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="demo model inside selfmark"):
        learn_map("demo", labels)


def test_missing_target_folder_is_reported(run: Path, tmp_path: Path) -> None:
    learned = learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(2)))
    with pytest.raises(InputError, match="cannot write"):
        save_mapping(learned.mapping, tmp_path / "absent")


@pytest.mark.parametrize(
    ("names", "partners"),
    [
        (["LeftEye", "RightEye", "Nose"], (1, 0, 2)),
        (["ear.L", "tail", "ear.R"], (2, 1, 0)),
        (["left_eye_0", "left_eye_1", "right_eye_0", "right_eye_1"], (2, 3, 0, 1)),
        (["left_eye", "nose"], ()),
        (["nose", "tail"], ()),
        (["left_eye", "right_eye", "jaw_3"], ()),
    ],
)
def test_mirror_partners_are_inferred_from_names(names: list[str], partners: tuple[int, ...]) -> None:
    assert infer_mirror_partners(names) == partners


def test_edits_of_landmarks_do_not_affect_mapped_points(run: Path, tmp_path: Path) -> None:
    """The map still uses hidden landmarks, and all mapped points are exported."""
    learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(8)))
    image = tmp_path / "few" / "images" / "0.png"
    before = _load_mapped(run)(image)
    _edit_json(
        run / "model" / "model.json",
        lambda card: card.update(hidden=[0, 2], colors=["#102030"] * K, confirmed=[1], skeleton=[[0, 1]]),
    )
    mapped = _load_mapped(run)
    assert (mapped.card.colors, mapped.card.hidden, mapped.card.confirmed) == ((), (), ())
    np.testing.assert_array_equal(mapped(image).xy, before.xy)
    path = get_writer("csv")(mapped.predict(list_images([image])), mapped.card, tmp_path)
    with open(path, newline="") as handle:
        assert [row["landmark"] for row in csv.DictReader(handle)] == list(before.names)


def test_a_map_with_a_name_that_formats_cannot_hold_is_refused(run: Path, tmp_path: Path) -> None:
    learn_map(run, _write_labels(tmp_path / "few", _draw_shapes(3)))
    path = run / "model" / "map.json"
    values = json.loads(path.read_text())
    values["names"][0] += "\x01"
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match="is not a valid value of 'names'"):
        _load_mapped(run)
