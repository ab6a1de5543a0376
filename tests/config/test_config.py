"""Test the settings: presets, YAML, changes by name, limits and error messages."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from selfmark import config
from selfmark.config.renamed import RENAMED
from selfmark.errors import InputError
from selfmark.run.config_file import read_config, write_config


def test_paper_preset_has_the_papers_numbers() -> None:
    paper = config.preset("paper")
    assert (paper.images.size, paper.map_size, paper.network.descriptor) == (256, 64, 256)
    # The paper weights the sum of the detector losses of two views by 0.1; on their mean, this is 0.2.
    assert (paper.M, paper.loss.margin, paper.loss.detector_weight) == (100, 0.8, 0.2)
    assert paper.loss.hinge == "squared-distance"
    assert (paper.optimizer.lr, paper.optimizer.weight_decay, paper.runtime.batch) == (2e-4, 1e-5, 16)
    assert (paper.warmup.iterations, paper.rounds.iterations) == (30_000, 5_000)
    assert paper.warmup.iterations + paper.rounds.count * paper.rounds.iterations == 200_000
    assert paper.keypoints.detector == "superpoint"
    assert (paper.keypoints.outlier_neighbors, paper.keypoints.outlier_fraction) == (100, 0.4)
    assert paper.loss.negatives == "same-image"


@pytest.mark.parametrize("name", config.PRESETS)
def test_settings_written_as_yaml_are_read_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_config(config.preset(name), path)
    assert read_config(path) == config.preset(name)


def test_override_changes_only_the_named_settings() -> None:
    tiny = config.preset("tiny")
    changed = config.override(tiny, {"K": "7", "flip.test": "false", "augment.scale": "[0.9, 1.1]"})
    assert (changed.K, changed.flip.test, changed.augment.scale) == (7, False, (0.9, 1.1))
    restored = dataclasses.replace(changed, K=tiny.K, flip=tiny.flip, augment=tiny.augment)
    assert restored == tiny


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nothing": 1}, "unknown setting 'nothing'"),
        ({"images.nothing": 1}, "unknown setting 'images.nothing'"),
        ({"K.deeper": 1}, "unknown setting 'K.deeper'"),
        ({"K": "many"}, "'K' must be a whole number"),
        ({"K": True}, "'K' must be a whole number"),
        ({"M": 5}, "M must be at least K"),
        ({"M": 1_000_001}, "M must be between 0 and 1,000,000, not 1,000,001"),
        ({"K": -1}, "K must be between 1 and 10,000, or 0 for"),
        ({"auto_k.candidates": []}, "auto_k.candidates must be"),
        ({"auto_k.candidates": [1, 4]}, "auto_k.candidates must be"),
        ({"auto_k.splits": 1}, "auto_k.splits must be"),
        ({"loss.margin": "nan"}, "'loss.margin' must be a number"),
        ({"loss.margin": float("nan")}, "'loss.margin' must be a number"),
        ({"flip.test": "maybe"}, "'flip.test' must be true or false"),
        ({"flip.train": False}, "flip.test needs flip.train"),
        ({"augment.scale": "[1.0]"}, "'augment.scale' must be a list of 2 numbers"),
        ({"images.size": 100}, "images.size must be a multiple of 64"),
        ({"images.margin": -0.5}, "images.margin must be greater than -0.5 and at most 10, not -0.5"),
        ({"network.channels": 100}, "network.channels must be a multiple"),
        ({"keypoints.detector": "eyes"}, "'keypoints.detector' must be one of sift"),
        ({"keypoints.outlier_fraction": 1.5}, "between 0 and 1"),
        ({"images": 3}, "'images' must contain settings"),
        ({"seed": -5}, "seed must be between 0 and 9,223,372,036,854,775,807, not -5"),
        ({"evaluation.ridges": [0.1, -0.5]}, "evaluation.ridges must be between 0 and 1,000,000, not -0.5"),
        ({"evaluation.ridges": [0.1] * 1001}, "evaluation.ridges has 1,001 numbers; at most 1,000 are"),
        ({"evaluation.draws": 0}, "evaluation.draws must be between 1 and 10,000, not 0"),
        ({"evaluation.num_samples": 0}, "evaluation.num_samples must be between 1 and 1,000,000, not 0"),
        ({"evaluation.max_curve_error": 0}, "evaluation.max_curve_error must be between 0.001 and 10,000"),
        ({"evaluation.hit_pixels": 0}, "evaluation.hit_pixels must be greater than 0"),
        ({"evaluation.hit_fraction": 0}, "evaluation.hit_fraction must be greater than 0"),
        ({"evaluation.pck_fraction": 0}, "evaluation.pck_fraction must be greater than 0"),
        ({"evaluation.oks_thresholds": []}, "evaluation.oks_thresholds must be a list of at least one"),
        ({"evaluation.min_visibility": 0}, "evaluation.min_visibility must be between 1 and 2, not 0"),
        ({"method": "zero-shot"}, "method zero-shot needs features, for example --features"),
        ({"method": "guessing"}, "'method' must be one of self-training, zero-shot"),
        ({"features.rotations": 0}, "features.rotations must be between 1 and 360, not 0"),
        (
            {"features.orientation": "down"},
            "'features.orientation' must be one of auto, not-upright, upright, turned, any",
        ),
        ({"student.confident_fraction": 0}, "student.confident_fraction must be greater than 0"),
        ({"student.warmup_fraction": 0}, "student.warmup_fraction must be greater than 0"),
    ],
)
def test_bad_settings_raise_a_one_line_error(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as error:
        config.override(config.preset("tiny"), changes)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_settings_suggest_the_most_similar_one(tmp_path: Path) -> None:
    tiny = config.preset("tiny")
    with pytest.raises(InputError, match=r"setting 'augment\.rotaton'\. Did you mean 'augment\.rotation'\?$"):
        config.override(tiny, {"augment.rotaton": 3})
    with pytest.raises(InputError, match=r"unknown setting 'xyz'; see docs/settings\.md$"):
        config.override(tiny, {"xyz": 3})
    path = tmp_path / "config.yaml"
    path.write_text("augment: {rotaton: 3}")
    with pytest.raises(InputError, match=rf"^{path}: unknown .*Did you mean 'augment\.rotation'\?$"):
        read_config(path)
    path.write_text("agument: {rotation: 3}")
    with pytest.raises(InputError, match=r"unknown setting 'agument'\. Did you mean 'augment'\?$"):
        read_config(path)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_names_of_selfmark_0_1_are_accepted(old: str, new: str) -> None:
    tiny = config.preset("tiny")
    value = _flatten(tiny)[new]
    # Only booleans are changed; a changed number might be out of range.
    value = not value if isinstance(value, bool) else value
    expected = config.override(tiny, {new: value})
    assert config.override(tiny, {old: value}) == expected
    current = config.to_dict(expected)
    assert config.from_dict(config.original_setting_names(current)) == expected
    section, _, name = old.partition(".")
    assert name in config.original_setting_names(current)[section]


def _flatten(settings: config.Config) -> dict[str, object]:
    """Return a mapping from dotted names to all settings."""
    nested_settings = config.to_dict(settings)
    flat_settings = {name: value for name, value in nested_settings.items() if not isinstance(value, dict)}
    for section, values in nested_settings.items():
        if isinstance(values, dict):
            flat_settings |= {f"{section}.{name}": value for name, value in values.items()}
    return flat_settings


_HUGE_NUMBERS = (
    "seed: " + ":".join(["59"] * 3000),
    "seed: 0x" + "f" * 5000,
    "M: " + ":".join(["59"] * 200) + ".5",
    ":".join(["59"] * 3000) + ": 1",
    "seed: !!int " + "59:" * 3000 + "59",
)


@pytest.mark.parametrize("text", ["- a\n- b\n", "{", "K: [1\n", "\x00", "just text", *_HUGE_NUMBERS])
def test_the_error_for_unreadable_yaml_names_the_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.yaml"):
        read_config(path)


def test_auto_chooses_the_preset_by_device_and_explains_it() -> None:
    on_gpu, why_gpu = config.resolve_preset("auto", True, 5000, None)
    on_cpu, why_cpu = config.resolve_preset("auto", False, 5000, 12)
    assert (on_gpu.preset, on_cpu.preset, on_cpu.K) == ("fast", "tiny", 12)
    assert "CUDA" in why_gpu
    assert "no CUDA" in why_cpu
    assert f"with {on_cpu.features.name} features" in why_cpu


def test_auto_uses_fewer_clusters_for_few_images_but_at_least_k() -> None:
    config_for_few, reason = config.resolve_preset("auto", True, 20, 15)
    assert config_for_few.M == 30
    assert "using 30 clusters because 20 images have few keypoints" in reason
    config_for_fewest, _ = config.resolve_preset("auto", True, 2, 15)
    assert config_for_fewest.M == 15


def test_choosing_k_later_gives_the_same_settings() -> None:
    undecided, _ = config.resolve_preset("tiny", False, 5000, "auto")
    assert undecided.K == 0
    for K in (6, 50):
        expected, _ = config.resolve_preset("tiny", False, 5000, K)
        assert config.with_landmarks(undecided, K) == expected


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(InputError, match="unknown preset 'huge'; choose one of paper, fast, tiny"):
        config.preset("huge")
    with pytest.raises(InputError, match=r"unknown preset 'fsat'\. Did you mean 'fast'\?"):
        config.preset("fsat")


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("1E-3", 1e-3), ("2.5e-4", 2.5e-4), ("1.e3", 1e3), ("+3e+2", 300.0)]
)
def test_powers_of_ten_are_numbers(text: str, value: float, tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-3 as text, so such texts must be converted."""
    assert (
        config.override(config.preset("tiny"), {"loss.negative_weight": text}).loss.negative_weight == value
    )
    (tmp_path / "config.yaml").write_text(f"loss: {{negative_weight: {text}}}")
    assert read_config(tmp_path / "config.yaml").loss.negative_weight == value


@pytest.mark.parametrize("text", ["1e", "e5", "1e999", "0x1e3", "1e-3 ", "ten"])
def test_malformed_and_infinite_numbers_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"'optimizer\.lr' must be a number"):
        config.override(config.preset("tiny"), {"optimizer.lr": f"'{text}'"})


# --- pretrained features -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", config.PRESETS)
def test_choosing_features_changes_only_their_name_and_small_image_sizes(name: str) -> None:
    before = config.preset(name)
    after = config.with_features(before, "dinov2-s")
    expected = {"features.name": "dinov2-s", "images.size": 256}
    changed = {key: value for key, value in _flatten(after).items() if value != _flatten(before)[key]}
    assert changed == {key: value for key, value in expected.items() if value != _flatten(before)[key]}
    assert after.uses_features
    assert not before.uses_features


def test_large_images_keep_their_size() -> None:
    large_images = config.override(config.preset("fast"), {"images.size": 512})
    assert config.with_features(large_images, "efficientnet-lite0").images.size == 512


def test_features_can_be_removed_again() -> None:
    with_features = config.with_features(config.preset("fast"), "efficientnet-lite0")
    assert config.with_features(with_features, "none") == config.preset("fast")


@pytest.mark.parametrize("has_cuda", [True, False])
def test_only_the_automatic_choice_of_a_preset_uses_features(has_cuda: bool) -> None:
    automatic, _ = config.resolve_preset("auto", has_cuda, 5000, None)
    assert (automatic.features.name, automatic.images.size) == ("efficientnet-lite0", 256)
    for name in config.PRESETS:
        assert not config.resolve_preset(name, has_cuda, 5000, None)[0].uses_features


def test_zero_shot_landmarks_are_allowed_with_features() -> None:
    with_features = config.with_features(config.preset("tiny"), "efficientnet-lite0")
    assert config.override(with_features, {"method": "zero-shot"}).method == "zero-shot"


@pytest.mark.parametrize(("orientation", "rotations"), [("auto", 1), ("turned", 1), ("any", 5)])
def test_features_are_averaged_over_rotations_only_for_orientation_any(
    orientation: str, rotations: int
) -> None:
    settings = {"features.orientation": orientation, "features.rotations": 5}
    assert config.override(config.preset("tiny"), settings).features.averaged_rotations == rotations


def test_used_settings_exclude_those_of_unused_features_and_methods() -> None:
    tiny = config.preset("tiny")
    changes = {"features.sharpness": 5.0, "student.rounds": 7}
    used = config.used_settings(tiny)
    assert used == config.used_settings(config.override(tiny, changes))
    unused = config.to_dict(tiny).keys() - used.keys()
    methods = {
        "methods",
        "mallis2020",
        "equivariance",
        "dve",
        "zhang2018",
        "jakab2018",
        "lorenz2019",
        "autolink",
    }
    other_sections = {"schedule", "verification", "smoothing", "refinement"}
    assert unused == {"method", "features", "student"} | other_sections | methods
    other_method = config.override(tiny, {"method": "autolink"})
    assert {"method", "methods", "autolink"} == config.used_settings(other_method).keys() - used.keys()
    with_features = config.with_features(tiny, "efficientnet-lite0")
    unused = config.to_dict(with_features).keys() - config.used_settings(with_features).keys()
    assert unused == other_sections | methods
    changed = config.override(with_features, changes)
    assert config.used_settings(changed) != config.used_settings(with_features)
