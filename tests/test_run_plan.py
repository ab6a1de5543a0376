"""Test the settings that follow from the options of a discovery and the number of images."""

from typing import Any

import pytest
import torch

from selfmark.config import PRESETS, Config
from selfmark.errors import InputError
from selfmark.run_plan import RunInputs, RunOptions, check_request, resolve_config
from selfmark.tracking.regions import Regions

ITERATIONS = ("warmup", "rounds", "stage2")


def resolve(preset: str, num_images: int, **settings: object) -> tuple[Config, str]:
    options = RunOptions(
        10, preset=preset, settings={key.replace("__", "."): settings[key] for key in settings}
    )
    return resolve_config(RunInputs([]), options, num_images, torch.device("cpu"))


@pytest.mark.parametrize(("num_images", "factor"), [(60, 0.457), (3_000, 1.0), (40_000, 1.679), (10**6, 2.0)])
def test_fast_trains_longer_on_more_images(num_images: int, factor: float) -> None:
    reference_config, _ = resolve("fast", 3_000)
    config, reason = resolve("fast", num_images)
    for section in ITERATIONS:
        expected = factor * getattr(reference_config, section).iterations
        assert getattr(config, section).iterations == pytest.approx(expected, abs=1)
    assert config.rounds.count == reference_config.rounds.count
    assert (f"for {num_images:,} images" in reason) == (factor != 1)


@pytest.mark.parametrize("preset", ["paper", "tiny"])
def test_other_presets_have_a_fixed_schedule(preset: str) -> None:
    config_for_few, config_for_many = (resolve(preset, num_images)[0] for num_images in (60, 40_000))
    assert config_for_few == config_for_many


@pytest.mark.parametrize(
    ("name", "animals", "problem"),
    [
        ("tracking.min_contrast", 0, "only if animals are tracked: add --find-animals"),
        ("smoothing.max_gap", 1, "has no effect on a discovery: give it to 'selfmark predict'"),
    ],
)
def test_settings_without_effect_are_refused(name: str, animals: int, problem: str) -> None:
    inputs = RunInputs(["a.mp4"], regions=Regions(animals=animals))
    options = RunOptions(10, preset="tiny", settings={name: 1})
    with pytest.raises(InputError, match=f"the setting {name} .*{problem}"):
        check_request(inputs, options, torch.device("cpu"))


@pytest.mark.parametrize(
    ("option", "setting", "value"),
    [
        ({"landmarks": 5}, "K", "7"),
        ({"landmarks": "auto"}, "K", 3),
        ({"method": "dve"}, "method", "autolink"),
        ({"features": "none"}, "features.name", "dinov2-s"),
        ({"verify": True}, "verification.enabled", "false"),
    ],
)
def test_options_and_settings_must_not_contradict_each_other(
    option: dict[str, Any], setting: str, value: object
) -> None:
    """The check is shared by `discover`, `check` and the Python functions."""
    inputs = RunInputs(["a.png"])
    with pytest.raises(InputError, match=f"{setting}={value} contradicts the option for this setting"):
        check_request(inputs, RunOptions(settings={setting: value}, **option), torch.device("cpu"))
    same_value = "0" if option == {"landmarks": "auto"} else str(next(iter(option.values())))
    check_request(inputs, RunOptions(settings={setting: same_value}, **option), torch.device("cpu"))


def test_tracking_settings_are_used_to_track_animals() -> None:
    inputs = RunInputs(["a.mp4"], regions=Regions(animals=1))
    options = RunOptions(10, preset="tiny", settings={"tracking.min_contrast": 20})
    assert check_request(inputs, options, torch.device("cpu")).min_contrast == 20


def test_a_fixed_schedule_and_iterations_of_the_user_are_kept() -> None:
    fixed_config, reason = resolve("fast", 60, schedule__growth=0)
    assert fixed_config.stage2.iterations == resolve("fast", 3_000)[0].stage2.iterations
    assert "images" not in reason
    own_config, _ = resolve("fast", 60, stage2__iterations=77)
    assert own_config.stage2.iterations == 77
    assert own_config.warmup.iterations == resolve("fast", 60)[0].warmup.iterations


def test_methods_of_other_papers_have_a_fixed_schedule() -> None:
    config_for_few, config_for_many = (
        resolve("fast", num_images, method="zhang2018")[0] for num_images in (60, 3_000)
    )
    assert config_for_few == config_for_many


def test_presets_skip_iterations_only_on_request() -> None:
    for name, settings in PRESETS.items():
        assert not settings.schedule.stop_when_still, name
    config, reason = resolve("tiny", 60, schedule__stop_when_still=True)
    assert config.schedule.stop_when_still
    assert "rounds may end early" in reason
    assert "early" not in resolve("paper", 60)[1]
