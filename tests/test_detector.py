"""Test the detector: coordinates, mirroring at test time, saving and loading, invalid files.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import selfmark
from selfmark.config import Features, Images, Network, Runtime, Student
from selfmark.demo.scene import generate_scene
from selfmark.detector import Detector, detector_fingerprint
from selfmark.errors import DamagedFile, DiskError, InputError
from selfmark.evaluation.regression import fit_ridge
from selfmark.features.encoder import Encoder
from selfmark.features.loading import build_encoder
from selfmark.image_ref import ImageRef
from selfmark.images.crop import to_original
from selfmark.model.card import Architecture, ModelCard
from selfmark.model.feature_network import FeaturePsi, ZeroShotPsi
from selfmark.model.landmark_network import LandmarkNetwork
from selfmark.model.network import Psi
from selfmark.run.config_file import read_config, write_config
from selfmark.run.tensor_files import read_tensors, write_tensors
from tests.features.random_images import random_images

NETWORK = Network(channels=32, depth=2, descriptor=16, norm_groups=4)


class _ColorNetwork(Psi):
    """A network that finds landmark 0 at the reddest location and landmark 1 at the greenest."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(images[:, :2], 4)


def _build_detector(**changes: Any) -> Detector:
    card = ModelCard(("red", "green"), (0, 1), (), Images(size=64), NETWORK, "parabola", False, {})
    return Detector(_ColorNetwork(NETWORK, 2), replace(card, **changes))


def _draw_picture(
    width: int, height: int, red: tuple[float, float], green: tuple[float, float], radius: float
) -> Any:
    """Draw a red and a green dot with centers `red` and `green` on black."""
    y, x = np.mgrid[:height, :width]
    image = np.zeros((height, width, 3), np.uint8)
    for channel, (center_x, center_y) in enumerate((red, green)):
        squared_distance = (x - center_x) ** 2 + (y - center_y) ** 2
        image[..., channel] = 255 * np.exp(-squared_distance / (2 * radius**2))
    return image


@pytest.mark.parametrize(("width", "height"), [(64, 64), (200, 120), (90, 400), (40, 31)])
def test_landmarks_are_in_pixels_of_the_given_image(width: int, height: int) -> None:
    red, green = (0.3 * width, 0.4 * height), (0.7 * width, 0.6 * height)
    scale = max(width, height) / 64
    points = _build_detector()(_draw_picture(width, height, red, green, 3 * scale))
    np.testing.assert_allclose(points.xy[0], [red, green], atol=0.8 * scale)


def test_landmarks_of_a_box_are_in_pixels_of_the_whole_image(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    cv2.imwrite(str(path), _draw_picture(300, 200, (210, 90), (240, 120), 3)[..., ::-1])
    ref = ImageRef(path, box=(190, 70, 70, 70))
    (prediction,) = _build_detector().predict([ref])
    np.testing.assert_allclose(prediction.landmarks.xy[0], [[210, 90], [240, 120]], atol=1.0)
    assert prediction.sizes.tolist() == [[300, 200]]


def test_paths_arrays_and_lists_give_the_same_landmarks(tmp_path: Path) -> None:
    pictures = [_draw_picture(64, 64, (20 + i, 30), (40, 20 + i), 4) for i in range(3)]
    paths = []
    for index, picture in enumerate(pictures):
        paths.append(tmp_path / f"{index}.png")
        cv2.imwrite(str(paths[-1]), picture[..., ::-1])
    detector = _build_detector()
    from_arrays = detector(pictures)
    np.testing.assert_array_equal(from_arrays.xy, detector(paths).xy)
    np.testing.assert_array_equal(from_arrays.xy, detector(tmp_path).xy)
    np.testing.assert_array_equal(from_arrays.xy[:1], detector(str(paths[0])).xy)


class _BiasedNetwork(Psi):
    """A network whose landmark 0 prefers the left side and landmark 1 the right side."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        size = images.shape[-1] // 4
        ramp = torch.linspace(1, 0, size).expand(len(images), 1, size, size)
        red = torch.nn.functional.avg_pool2d(images[:, :1], 4)
        return torch.cat([0.4 * ramp + red, 0.4 * ramp.flip(-1) + red], dim=1)


def test_flipping_at_test_time_averages_with_the_mirror_partner() -> None:
    card = _build_detector().card
    images = (torch.rand(2, 3, 64, 64) * 255).to(torch.uint8)
    flipping = Detector(_BiasedNetwork(NETWORK, 2), replace(card, mirror=(1, 0), flip_test=True))
    maps = flipping.psi(images.float() / 255)
    mirrored = flipping.psi(images.flip(-1).float() / 255).flip(-1)
    expected = torch.stack([(maps[:, 0] + mirrored[:, 1]) / 2, (maps[:, 1] + mirrored[:, 0]) / 2], dim=1)
    side = 16  # number of cells on each side of a heatmap; a cell has 4 x 4 pixels
    best = expected.flatten(2).argmax(dim=2)
    cells = torch.stack([best % side, best // side], dim=-1)
    located_cells = (flipping.locate(images).xy + 0.5) / 4 - 0.5
    assert (located_cells - cells).abs().max() <= 0.5
    # Landmark 0 is its own partner. Landmark 1 has no partner, so its map is not averaged.
    unpaired = Detector(flipping.psi, replace(card, flip_test=True, unpaired=(1,)))
    expected_maps = (unpaired.psi(images.float() / 255)[:, 0] + mirrored[:, 0]) / 2, maps[:, 1]
    for landmark, expected_map in enumerate(expected_maps):
        best = expected_map.flatten(1).argmax(dim=1)
        cell_centers = 4 * torch.stack([best % side, best // side], dim=-1) + 1.5
        assert (unpaired.locate(images).xy[:, landmark] - cell_centers).abs().max() <= 2
    # A user separates two partners. The network, which has learned them as partners, still swaps them in
    # mirrored images. It would be wrong to average each with itself, so nothing is averaged.
    separated = replace(card, mirror=(0, 1), trained_mirror=(1, 0), flip_test=True)
    without_flip = Detector(flipping.psi, replace(card, flip_test=False)).locate(images)
    assert torch.equal(Detector(flipping.psi, separated).locate(images).xy, without_flip.xy)
    # The mirrored image gives the mirrored landmarks, with partners swapped.
    mirrored_xy = flipping.locate(images.flip(-1)).xy
    partner_xy = flipping.locate(images).xy[:, [1, 0]]
    assert torch.allclose(63 - mirrored_xy[..., 0], partner_xy[..., 0], atol=1e-3)


def test_save_and_load_give_the_same_points(tmp_path: Path) -> None:
    torch.manual_seed(0)
    card = ModelCard(
        ("a", "b", "c"), (1, 0, 2), ((0, 1),), Images(size=64), NETWORK, "parabola", True, {"seed": 0}
    )
    detector = Detector(Psi(NETWORK, 3), card)
    detector.save(tmp_path / "model")
    for folder in (tmp_path, tmp_path / "model"):
        loaded = Detector.load(folder)
        assert loaded.card == card
        images = (torch.rand(2, 3, 64, 64) * 255).to(torch.uint8)
        assert torch.equal(loaded.locate(images).xy, detector.locate(images).xy)


def _build_feature_detector(architecture: Architecture, encoder: Encoder) -> Detector:
    """Return a detector with random weights on an encoder."""
    torch.manual_seed(0)
    student = Student(width=16, depth=1)
    psi: LandmarkNetwork = FeaturePsi(encoder, student, 2)
    if architecture == "zero-shot":
        psi = ZeroShotPsi(encoder, torch.randn(2, encoder.part_channels), Features(sharpness=10.0))
    changes = {"features": Features(name=encoder.info.name, sharpness=10.0), "student": student}
    card = replace(_build_detector().card, architecture=architecture, **changes)
    return Detector(psi, replace(card, mirror=(1, 0), flip_test=True))


@pytest.mark.parametrize("architecture", ["encoder", "zero-shot"])
def test_detectors_on_encoders_are_saved_and_loaded(architecture: Architecture, tmp_path: Path) -> None:
    encoder = build_encoder("efficientnet-lite0")
    for value in encoder.state_dict().values():  # The weights must differ from a new encoder's.
        value.add_(0.01 if value.is_floating_point() else 3)
    detector = _build_feature_detector(architecture, encoder)
    detector.save(tmp_path / "model")
    loaded = Detector.load(tmp_path)
    assert loaded.card == detector.card
    assert type(loaded.psi) is type(detector.psi)
    images = (random_images(3, 64) * 255).to(torch.uint8)
    assert torch.equal(loaded.locate(images).xy, detector.locate(images).xy)
    assert detector_fingerprint(loaded) == detector_fingerprint(detector)
    other_architecture = "zero-shot" if architecture == "encoder" else "encoder"
    path = tmp_path / "model" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architecture": other_architecture}))
    with pytest.raises(InputError, match=r"weights\.safetensors does not match .*model\.json"):
        Detector.load(tmp_path)


@pytest.mark.parametrize("architecture", ["encoder", "zero-shot"])
def test_a_detector_on_an_onnx_model_contains_a_copy_of_it(
    architecture: Architecture, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    make_model = pytest.importorskip("tests.features.onnx_models").make_model
    source = tmp_path / "own.onnx"
    source.write_bytes(make_model())
    encoder = build_encoder(f"onnx:{source}")
    detector = _build_feature_detector(architecture, encoder)
    detector.save(tmp_path / "model")
    source.unlink()
    loaded = Detector.load(tmp_path)
    images = (random_images(3, 64) * 255).to(torch.uint8)
    assert torch.equal(loaded.locate(images).xy, detector.locate(images).xy)
    assert detector_fingerprint(loaded) == detector_fingerprint(detector)
    in_bfloat16 = Detector(detector.psi, detector.card, runtime=Runtime(precision="bf16"))
    assert (in_bfloat16.locate(images).xy - loaded.locate(images).xy).abs().median() < 0.5
    other_detector = Detector(loaded.psi, loaded.card)
    assert not isinstance(other_detector.psi, Psi)
    # The same weights on another ONNX model are another detector.
    other_detector.psi.encoder = build_encoder(f"onnx:{source}", make_model(["batch", 3, 32, 32]))
    assert detector_fingerprint(other_detector) != detector_fingerprint(detector)
    (tmp_path / "model" / "features.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.json: cannot read the ONNX model '.*own\.onnx'"):
        Detector.load(tmp_path)


def test_a_damaged_copy_of_an_onnx_model_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    make_model = pytest.importorskip("tests.features.onnx_models").make_model
    detector = _build_feature_detector("encoder", build_encoder("onnx:own.onnx", make_model()))
    detector.save(tmp_path)
    path = tmp_path / "features.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"features\.safetensors is damaged"):
        Detector.load(tmp_path)


def test_unknown_features_are_refused(tmp_path: Path) -> None:
    _build_feature_detector("encoder", build_encoder("efficientnet-lite0")).save(tmp_path)
    path = tmp_path / "model.json"
    values = json.loads(path.read_text())
    values["features"]["name"] = "efficientnet-lite00"
    path.write_text(json.dumps(values))
    with pytest.raises(
        InputError, match=r"model\.json: unknown features 'efficientnet-lite00'.*efficientnet-lite0"
    ):
        Detector.load(tmp_path)


def test_a_detector_of_a_run_has_its_runtime_settings(quick_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(quick_run, tmp_path / "run"))
    settings = read_config(run / "config.yaml")
    assert Detector.load(run).runtime == settings.runtime
    changed = replace(settings, runtime=replace(settings.runtime, predict_batch=2, precision="fp32"))
    write_config(changed, run / "config.yaml")
    for folder in (run, run / "model"):
        assert Detector.load(folder).runtime == changed.runtime
    detector, batches = Detector.load(run), []
    forward = detector.psi.forward

    def record_batch(images: torch.Tensor) -> torch.Tensor:
        batches.append(len(images))
        return forward(images)

    detector.psi.forward = record_batch  # type: ignore
    images = torch.zeros(5, 3, 64, 64, dtype=torch.uint8)
    assert detector.locate(images).xy.shape == (5, 4, 2)
    assert batches == [4, 4, 2], "two images and their mirror images per pass"
    shutil.copytree(run / "model", tmp_path / "model")
    assert Detector.load(tmp_path / "model").runtime == Runtime(), "a model outside of a run"


def test_network_predictions_list_the_images_that_cannot_be_read(tmp_path: Path) -> None:
    for index in range(5):
        picture = _draw_picture(128, 128, (20 + 4 * index, 30), (90, 60), 6)
        cv2.imwrite(str(tmp_path / f"{index}.png"), picture[..., ::-1])
    (tmp_path / "2.png").write_bytes(b"not a picture")
    refs = [ImageRef(tmp_path / f"{index}.png") for index in range(5)]
    progress: list[tuple[int, int]] = []
    batches: list[int] = []
    prediction = _build_detector().predict_network_pixels(
        refs,
        2,
        lambda done, total: progress.append((done, total)),
        lambda pixels: batches.append(len(pixels)),
    )
    assert prediction.rows.tolist() == [0, 1, 3, 4]
    assert [line.partition(":")[0] for line in prediction.skipped] == [refs[2].name]
    assert (progress[-1], batches) == ((5, 5), [2, 2])
    assert prediction.sizes.tolist() == [[128, 128]] * 4
    landmarks = np.concatenate([part.landmarks.xy for part in _build_detector().predict(refs)])
    original = to_original(prediction.xy, prediction.regions[:, None], 64)
    np.testing.assert_allclose(original, landmarks, atol=1e-4)
    with pytest.raises(
        InputError, match=r"none of the images could be read \(0 of 1\); the first is .*2\.png"
    ):
        _build_detector().predict_network_pixels([refs[2]])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"K": 1_000_000_000}, "valid model description"),
        ({"names": ["x"] * 20_000, "K": 20_000}, "valid model description"),
        ({"names": ["a\x00b", "b"]}, r"'a\\x00b' is not a valid landmark name"),
        ({"names": ["a", "b\x1b"]}, r"'b\\x1b' is not a valid landmark name"),
        ({"mirror": [0, 0]}, "not a permutation"),
        ({"format": 99, "selfmark": "9.9"}, r"newer version of selfmark \(9.9\)"),
        ({"format": None}, "not written by selfmark"),
        ({"network": {"channels": "wide"}}, "'channels' must be a whole number"),
        ({"refine": "magic"}, "unknown value 'magic' of 'refine'"),
        ({"skeleton": 7}, "valid model description"),
        ({"architecture": "magic"}, "unknown value 'magic' of 'architecture'"),
        ({"student": {"width": 1_000_000_000}}, r"student\.width must be"),
    ],
)
def test_an_invalid_model_card_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    _build_detector().save(tmp_path)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=words):
        Detector.load(tmp_path)


def test_weights_that_do_not_match_the_card_are_refused(tmp_path: Path) -> None:
    _build_detector().save(tmp_path)
    path = tmp_path / "model.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"K": 3, "names": ["a", "b", "c"], "mirror": [0, 1, 2]}))
    with pytest.raises(InputError, match="does not match"):
        Detector.load(tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    _build_detector().save(tmp_path)
    tensors, metadata = read_tensors(tmp_path / "weights.safetensors")
    next(iter(tensors.values())).view(-1)[-1] = float("nan")
    write_tensors(tensors, metadata, tmp_path / "weights.safetensors")
    with pytest.raises(DamagedFile, match=r"weights.safetensors is damaged: .* not finite"):
        Detector.load(tmp_path)


def test_folders_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no model"):
        Detector.load(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match=r"unfinished run.*--resume"):
        Detector.load(tmp_path)


def test_arrays_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"\[H, W, 3\] uint8"):
        _build_detector()(np.zeros((10, 10), np.uint8))


def test_huge_arrays_are_refused() -> None:
    """An array that repeats one value takes no memory, but the functions that resize it would crash."""
    huge = np.broadcast_to(np.uint8(5), (100_000, 100_000, 3))
    with pytest.raises(InputError, match=r"at most 200 megapixels; its shape is \(100000, 100000, 3\)"):
        _build_detector()(huge)


@pytest.mark.parametrize("shape", [(0, 0, 3), (10, 0, 3), (0, 10, 3)])
def test_arrays_without_pixels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="needs at least one pixel; its shape is "):
        _build_detector()([np.zeros((10, 10, 3), np.uint8), np.zeros(shape, np.uint8)])


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(1, 3, 5, 5, dtype=torch.uint8),
        torch.zeros(3, 64, 64, dtype=torch.uint8),
        torch.zeros(1, 3, 64, 64),
    ],
)
def test_network_images_of_the_wrong_shape_or_type_are_refused(images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be \[B, 3, 64, 64\] uint8, not \("):
        _build_detector().locate(images)


def test_saving_to_the_path_of_a_file_raises_an_error_of_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "model", tmp_path / ("a" * 300)):
        with pytest.raises(DiskError, match=f"^cannot write to {folder}: "):
            _build_detector().save(folder)


@pytest.mark.parametrize("other", ["a.png", Path("a.png"), 3])
def test_lists_that_mix_arrays_with_other_objects_are_refused(other: object) -> None:
    picture = np.zeros((64, 64, 3), np.uint8)
    for images in ([picture, other], [other, picture]):
        with pytest.raises(
            InputError, match=r"give either only image arrays or only names of files.*not both"
        ):
            _build_detector()(images)


def _save_pictures(folder: Path) -> list[Path]:
    """Write three pictures with dots at different places."""
    for number in range(3):
        dots = _draw_picture(64, 64, (10 + 20 * number, 15), (40, 12 + 15 * number), 3.0)
        cv2.imwrite(str(folder / f"{number}.png"), dots[..., ::-1])
    return sorted(folder.iterdir())


def test_every_file_that_is_named_gives_one_row_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    detector, paths = _build_detector(), _save_pictures(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = [detector(path).xy[0] for path in paths]
        for order in ([2, 0, 1], [1, 1], [0, 2, 0, 2]):
            np.testing.assert_array_equal(
                detector([paths[index] for index in order]).xy, [rows[i] for i in order]
            )
        mixed = detector([str(paths[2]), tmp_path, f"{tmp_path}/[01].png"])
    np.testing.assert_array_equal(mixed.xy, [rows[index] for index in (2, 0, 1, 2, 0, 1)])


def test_a_named_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    paths = _save_pictures(tmp_path)
    paths[1].write_bytes(b"no image")
    for inputs in (paths, [tmp_path, paths[1]], [paths[1]]):
        with pytest.raises(InputError, match=r"1\.png cannot be read \(not an image, .*\): leave it out$"):
            _build_detector()(inputs)


def test_a_folder_with_unreadable_images_gives_the_others_and_a_warning(tmp_path: Path) -> None:
    paths = _save_pictures(tmp_path)
    paths[1].write_bytes(b"no image")
    message = r"^1 image could not be read and is left out; the first is .*1\.png$"
    with pytest.warns(UserWarning, match=message) as caught:
        points = _build_detector()(tmp_path)
    assert [warning.filename for warning in caught] == [__file__]
    np.testing.assert_array_equal(points.xy, _build_detector()([paths[0], paths[2]]).xy)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda toy, ref: Detector.load(None), "load: 'folder' must be str or Path, not None"),
        (lambda toy, ref: Detector.load("demo", "bogus"), "unknown device 'bogus': use auto"),
        (lambda toy, ref: toy.save(None), "save: 'folder' must be str or Path, not None"),
        (lambda toy, ref: toy.predict("imgs"), "predict: 'refs' must be sequence of ImageRef"),
        (lambda toy, ref: toy.predict(["a.png"]), "predict: 'refs' must be sequence of ImageRef"),
        (lambda toy, ref: toy.predict([ref], 0), "predict: 'batch' must be at least 1, not 0"),
        (lambda toy, ref: toy.predict_network_pixels([ref], -1), "network_pixels: 'batch' must be at least"),
        (lambda toy, ref: toy.predict([replace(ref, box=(0, 0, np.inf, 5))]), "the box .*finite"),
        (lambda toy, ref: toy.predict([replace(ref, box=(0, np.nan, 5, 5))]), "the box .*finite"),
        (lambda toy, ref: toy.predict([replace(ref, box=(0, 5))]), "the box .*finite"),
        (lambda toy, ref: toy.predict([replace(ref, box="box")]), "the box .*finite"),
        (lambda toy, ref: toy.predict_network_pixels([]), "no images were given"),
        (lambda toy, ref: toy.predict_network_pixels("imgs"), "pixels: 'refs' must be sequence"),
        (lambda toy, ref: toy([]), "no images were given"),
    ],
)  # fmt: skip
def test_unusable_arguments_of_methods_give_one_sentence(
    call: Callable[[Detector, ImageRef], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call(_build_detector(), ImageRef(Path("a.png")))


def test_methods_take_texts_as_paths_and_generators_of_images(tmp_path: Path) -> None:
    detector, paths = _build_detector(), _save_pictures(tmp_path)
    detector.save(str(tmp_path / "model"))
    assert Detector.load(str(tmp_path / "model"), "auto").names == detector.names
    box = (np.float32(1), np.int64(2), 50, 40.0)  # NumPy's numbers are fine.
    refs = [ImageRef(path, box=box) for path in paths]  # type: ignore[arg-type]
    (prediction,) = detector.predict(ref for ref in refs)  # type: ignore[arg-type]
    assert prediction.refs == tuple(refs)
    assert detector.predict_network_pixels(iter(refs)).rows.tolist() == [0, 1, 2]  # type: ignore[arg-type]


def test_objects_other_than_images_are_refused() -> None:
    for images in (3, [3, "a.png"]):
        with pytest.raises(InputError, match=r"only names of files.*, not an object of type int"):
            _build_detector()(images)  # type: ignore[arg-type]


def test_the_demo_detector_finds_the_toy_animal() -> None:
    """On new pictures, the landmarks predict the true points much better than the mean shape does."""
    scene = generate_scene(80, 96, seed=11)
    landmarks = selfmark.load("demo")(list(scene.images)).xy.reshape(80, -1).astype(np.float64)
    truth = scene.xy.reshape(80, -1).astype(np.float64)
    train, test = slice(0, 60), slice(60, 80)
    mean_shape_error = np.abs(truth[test] - truth[train].mean(axis=0)).mean()
    predicted = fit_ridge(landmarks[train], truth[train], 0.01).predict(landmarks[test])
    assert np.abs(predicted - truth[test]).mean() < 0.35 * mean_shape_error


def test_a_folder_named_demo_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(Detector.load("demo").names) == 16
    (tmp_path / "demo").mkdir()
    with pytest.raises(InputError, match="demo contains no model"):
        Detector.load("demo")
