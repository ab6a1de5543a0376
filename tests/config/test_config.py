"""Settings: presets hold the paper's numbers, YAML brings them back, nonsense is refused in one sentence."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from selfmark import config
from selfmark.errors import InputError
from selfmark.run.config_file import read_config, write_config


def test_paper_preset_holds_the_papers_numbers() -> None:
    paper = config.preset("paper")
    assert (paper.images.size, paper.map_size, paper.network.descriptor) == (256, 64, 256)
    assert (paper.M, paper.loss.margin, paper.loss.detector_weight) == (100, 0.8, 0.1)
    assert (paper.optimizer.lr, paper.optimizer.weight_decay, paper.runtime.batch) == (2e-4, 1e-5, 16)
    assert (paper.warmup.iterations, paper.rounds.iterations) == (30_000, 5_000)
    assert paper.warmup.iterations + paper.rounds.count * paper.rounds.iterations == 200_000
    assert paper.keypoints.detector == "superpoint"
    assert (paper.keypoints.outlier_neighbors, paper.keypoints.outlier_fraction) == (100, 0.4)
    assert paper.loss.negatives == "same-image"


@pytest.mark.parametrize("name", config.PRESETS)
def test_yaml_round_trip(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_config(config.preset(name), path)
    assert read_config(path) == config.preset(name)


def test_override_changes_only_what_it_names() -> None:
    tiny = config.preset("tiny")
    changed = config.override(tiny, {"K": "7", "flip.test": "false", "augment.scale": "[0.9, 1.1]"})
    assert (changed.K, changed.flip.test, changed.augment.scale) == (7, False, (0.9, 1.1))
    restored = dataclasses.replace(changed, K=tiny.K, flip=tiny.flip, augment=tiny.augment)
    assert restored == tiny


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nothing": 1}, "no setting 'nothing'"),
        ({"images.nothing": 1}, "no setting 'images.nothing'"),
        ({"K.deeper": 1}, "no setting 'K.deeper'"),
        ({"K": "many"}, "'K' must be a whole number"),
        ({"K": True}, "'K' must be a whole number"),
        ({"M": 5}, "M must be at least K"),
        ({"K": -1}, "K must be at least 1, or 0 for"),
        ({"auto_k.candidates": []}, "auto_k.candidates must be"),
        ({"auto_k.candidates": [1, 4]}, "auto_k.candidates must be"),
        ({"auto_k.splits": 1}, "auto_k.splits must be"),
        ({"loss.margin": "nan"}, "'loss.margin' must be a number"),
        ({"loss.margin": float("nan")}, "'loss.margin' must be a number"),
        ({"flip.test": "maybe"}, "'flip.test' must be true or false"),
        ({"flip.train": False}, "flip.test needs flip.train"),
        ({"augment.scale": "[1.0]"}, "'augment.scale' must be a list of 2 numbers"),
        ({"images.size": 100}, "images.size must be a multiple of 64"),
        ({"network.channels": 100}, "network.channels must be a multiple"),
        ({"keypoints.detector": "eyes"}, "'keypoints.detector' must be one of sift"),
        ({"keypoints.outlier_fraction": 1.5}, "between 0 and 1"),
        ({"images": 3}, "'images' must hold settings"),
        ({"seed": -5}, "seed must be at least 0, not -5"),
        ({"evaluation.seed": -1}, "evaluation.seed must be at least 0, not -1"),
        ({"evaluation.ridge": -1}, "evaluation.ridge must be at least 0, not -1"),
        ({"evaluation.ridges": [0.1, -0.5]}, "evaluation.ridges must be at least 0, not -0.5"),
    ],
)
def test_bad_settings_get_one_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as error:
        config.override(config.preset("tiny"), changes)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def _numbers() -> dict[str, float]:
    """Settings that are one number, by dotted name, as the preset tiny has them."""
    plain = config.to_dict(config.preset("tiny"))
    flat = {name: value for name, value in plain.items() if not isinstance(value, dict)}
    for section, values in plain.items():
        flat |= (
            {f"{section}.{name}": value for name, value in values.items()} if isinstance(values, dict) else {}
        )
    return {name: value for name, value in flat.items() if type(value) in (int, float)}


@pytest.mark.parametrize("name", _numbers())
def test_no_number_is_taken_that_cannot_work(name: str) -> None:
    """Below 0 hardly any has a meaning; the few that have are named."""
    if name in ("images.margin", "keypoints.threshold", "heatmaps.threshold"):
        config.override(config.preset("tiny"), {name: -0.1})
        return
    with pytest.raises(InputError, match=re.escape(name)):
        config.override(config.preset("tiny"), {name: -1})


@pytest.mark.parametrize(
    "name",
    [
        "correspondence.restarts",  # each of these ended in a traceback when it was 0
        "correspondence.sample",
        "evaluation.deformations",
        "guards.num_samples",
        "keypoints.image_size",
        "runtime.checkpoint_every",
        "runtime.log_every",
        "runtime.predict_batch",
        "stage2.batch",
        "temporal.max_frame_gap",
    ],
)
def test_what_must_be_some_cannot_be_none(name: str) -> None:
    with pytest.raises(InputError, match=f"{re.escape(name)} must be at least"):
        config.override(config.preset("tiny"), {name: 0})


@pytest.mark.parametrize("text", ["- a\n- b\n", "{", "K: [1\n", "\x00", "just text"])
def test_unreadable_yaml_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.yaml"):
        read_config(path)


def test_auto_picks_by_device_and_says_why() -> None:
    on_gpu, why_gpu = config.resolve_preset("auto", True, 5000, None)
    on_cpu, why_cpu = config.resolve_preset("auto", False, 5000, 12)
    assert (on_gpu.preset, on_cpu.preset, on_cpu.K) == ("fast", "tiny", 12)
    assert "CUDA" in why_gpu
    assert "no CUDA" in why_cpu


def test_auto_lowers_m_for_few_images_but_never_below_k() -> None:
    few, why = config.resolve_preset("auto", True, 20, 15)
    assert few.M == 30
    assert "M lowered to 30" in why
    fewest, _ = config.resolve_preset("auto", True, 2, 15)
    assert fewest.M == 15


def test_a_number_left_open_is_settled_later_as_if_it_had_been_given() -> None:
    left_open, _ = config.resolve_preset("tiny", False, 5000, "auto")
    assert left_open.K == 0
    for K in (6, 50):
        given, _ = config.resolve_preset("tiny", False, 5000, K)
        assert config.with_landmarks(left_open, K) == given


def test_unknown_preset() -> None:
    with pytest.raises(InputError, match="paper, fast, tiny"):
        config.preset("huge")


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("1E-3", 1e-3), ("2.5e-4", 2.5e-4), ("1.e3", 1e3), ("+3e+2", 300.0)]
)
def test_powers_of_ten_are_numbers(text: str, value: float, tmp_path: Path) -> None:
    """YAML 1.1 takes 1e-3 for a word, people do not."""
    assert config.override(config.preset("tiny"), {"optimizer.lr": text}).optimizer.lr == value
    (tmp_path / "config.yaml").write_text(f"optimizer: {{lr: {text}}}")
    assert read_config(tmp_path / "config.yaml").optimizer.lr == value


@pytest.mark.parametrize("text", ["1e", "e5", "1e999", "0x1e3", "1e-3 ", "ten"])
def test_words_are_no_numbers(text: str) -> None:
    with pytest.raises(InputError, match=r"'optimizer\.lr' must be a number"):
        config.override(config.preset("tiny"), {"optimizer.lr": f"'{text}'"})
