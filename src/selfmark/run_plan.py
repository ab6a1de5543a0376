"""Describe the inputs and options of a discovery, and derive the settings that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from selfmark.config import (
    AUTO_RECIPE,
    Config,
    Method,
    Tracking,
    current_name,
    override,
    recipe_settings,
    resolve_preset,
    settings_of_method,
)
from selfmark.config.schedule import fit_schedule, schedule_settings
from selfmark.errors import InputError
from selfmark.features.loading import check_features, resolve_features
from selfmark.tracking.regions import Regions
from selfmark.wording import describe_count

# Settings are checked for this number of images before the images are counted. With fewer images, presets
# have fewer clusters. Settings that are refused for many images are therefore refused for few images, too.
_MANY_IMAGES = 1_000_000


class RunInputs(NamedTuple):
    """The images of a run, as given by the user.

    inputs:  folders, glob patterns and files; see `images.sources.list_images`
    every:   use every n-th frame of each video
    regions: where the objects are in the images; None uses the boxes of COCO files, and each image without a
             box shows one object that fills it
    """

    inputs: Sequence[str | Path]
    every: int = 1
    regions: Regions | None = None


@dataclass(frozen=True)
class RunOptions:
    """Options of a discovery; see the arguments of `discovery.discover`."""

    landmarks: int | Literal["auto"] | None = None
    output: str | Path | None = None
    preset: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    device: str = "auto"
    features: str | None = None
    method: Method | None = None
    verify: bool | None = None
    recipe: str = AUTO_RECIPE
    start_from: str = ""


def options_to_json(inputs: RunInputs, options: RunOptions) -> dict[str, Any]:
    """Return the options that run.json stores, by name; config.yaml does not contain these options.

    >>> options_to_json(RunInputs(["a.mp4"], 2, Regions(crop=(0, 0, 9, 9))), RunOptions())["--crop"]
    [0, 0, 9, 9]
    """
    regions = inputs.regions or Regions()
    return {
        "--every": inputs.every,
        "--boxes": None if regions.boxes is None else str(regions.boxes),
        "--crop": None if regions.crop is None else list(regions.crop),
        "--find-animals": regions.animals,
        "--recipe": options.recipe,
        "-k": options.landmarks,
    }


def check_request(inputs: RunInputs, options: RunOptions, device: torch.device) -> Tracking:
    """Check the inputs and the number of landmarks of a new run, and its settings if animals are tracked.

    Args:
        inputs: the images.
        options: the options of the discovery.
        device: device to compute on.

    Returns:
        The settings for tracking animals. They are needed first, because the other settings may depend on
        the number of images, and tracking determines this number.

    Raises:
        InputError: if there are no inputs; if the number of landmarks is not possible; if a setting has no
            effect or contradicts an option; or if animals are to be tracked and the settings cannot be used,
            whatever the number of images is.
    """
    landmarks = options.landmarks
    if not inputs.inputs:
        raise InputError("no images given: give a folder, image files or a video")
    if landmarks is not None and landmarks != "auto" and not (isinstance(landmarks, int) and landmarks >= 1):
        raise InputError(f"the number of landmarks must be at least 1, or 'auto', not {landmarks!r}")
    _require_used_settings(options.settings, inputs.regions)
    by_option = {
        "K": landmarks,
        "method": options.method,
        "features.name": options.features,
        "verification.enabled": options.verify,
    }
    require_no_contradiction(options.settings, by_option)
    if inputs.regions is not None and inputs.regions.animals:
        # Settings must not be refused after minutes of tracking. Without tracking, the caller resolves them
        # immediately.
        resolve_config(inputs, options, _MANY_IMAGES, device)
    return _read_tracking_settings(options)


def require_no_contradiction(settings: Mapping[str, Any], by_option: Mapping[str, Any]) -> None:
    """Raise if a setting has another value than the option for this setting.

    Args:
        settings: settings as the user gave them; those of `--set` are still text.
        by_option: mapping from names of settings to the values of their options; None if an option is not
            given.
    """
    given_by_name = {current_name(name): value for name, value in settings.items()}
    for name, value in by_option.items():
        given = given_by_name.get(name)
        if value is None or given is None:
            continue
        text = "0" if (name, value) == ("K", "auto") else str(value)
        if str(given).strip().lower() != text.lower():
            raise InputError(
                f"--set {name}={given} contradicts the option for this setting, which is {value}: give only "
                "one of them"
            )


def _require_used_settings(settings: Mapping[str, Any], regions: Regions | None) -> None:
    """Raise if a setting has no effect on a discovery, whatever the other settings are."""
    for name in settings:
        section = name.partition(".")[0]
        if section == "smoothing":
            raise InputError(
                f"the setting {name} has no effect on a discovery: give it to 'selfmark predict'"
            )
        if section == "tracking" and not (regions and regions.animals):
            raise InputError(
                f"the setting {name} has an effect only if animals are tracked: add --find-animals, or leave "
                "it out"
            )


def _read_tracking_settings(options: RunOptions) -> Tracking:
    changes = {name: value for name, value in options.settings.items() if name.startswith("tracking.")}
    return override(Config(), changes).tracking


def resolve_config(
    inputs: RunInputs, options: RunOptions, num_images: int, device: torch.device
) -> tuple[Config, str]:
    """Return the settings of a new run, and a phrase that explains the choice of the preset.

    Args:
        inputs: the images.
        options: the options of the discovery.
        num_images: number of images.
        device: device to compute on.
    """
    settings = options.settings
    method = settings.get("method", options.method)
    features = settings.get("features.name", options.features)
    if features is None and method not in (None, "self-training", "zero-shot"):
        features = "none"  # methods of other papers use no features
    if features is not None:
        features = resolve_features(str(features))
        settings = {**settings, "features.name": features}
    config, reason = resolve_preset(
        options.preset, device.type == "cuda", num_images, options.landmarks, features
    )
    if inputs.regions is not None and inputs.regions.animals:
        tracking = _read_tracking_settings(options)
        config = replace(config, augment=replace(config.augment, rotation=tracking.rotation))
    if options.method is not None:
        # The features must be known before the method is checked against them.
        config = override(config, {"features.name": config.features.name, "method": options.method})
    implied = settings_of_method(config.method if method is None else str(method))
    # The recipe overrides the settings of the method, and the user's own settings override both.
    config = override(config, {**implied, **recipe_settings(options.recipe), **settings})
    config, reason = _fit_schedule(config, reason, settings, num_images)
    check_features(config.features.name)
    if options.verify is not None:
        config = override(config, {"verification.enabled": options.verify})
    elif options.preset == "auto" and "verification.enabled" not in settings:
        has_enough_images = num_images >= config.verification.min_images
        config = override(config, {"verification.enabled": device.type == "cuda" and has_enough_images})
    return config, reason


def _fit_schedule(
    config: Config, reason: str, settings: Mapping[str, Any], num_images: int
) -> tuple[Config, str]:
    """Fit the iterations of self-training to the number of images; keep those that the user has set."""
    if config.method != "self-training":
        return config, reason
    if config.schedule.stop_when_still:
        reason += "; rounds may end early"
    given = {name: settings[name] for name in schedule_settings(config) if name in settings}
    fitted = override(fit_schedule(config, num_images), given)
    if fitted == config:
        return config, reason
    percent = round(100 * config.schedule.factor(num_images))
    return fitted, f"{reason}; {percent} % of its iterations, for {describe_count(num_images, 'image')}"
