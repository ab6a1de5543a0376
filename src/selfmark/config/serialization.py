"""Convert configs to and from dictionaries and YAML, and change settings by dotted name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import yaml

from selfmark.config.parsing import build_dataclass, convert_fields, describe_unknown_setting, parse_yaml
from selfmark.config.renamed import current_name, rename_settings
from selfmark.config.schema import Config, Images
from selfmark.errors import InputError

Section = TypeVar("Section")

# Settings that `used_settings` leaves out for runs without features. Methods of other papers use no features,
# but keep `method`; dve also keeps `features`.
_ONLY_WITH_FEATURES = ("method", "features", "student")
# Sections with the settings of the methods of other papers.
_METHOD_SECTIONS = (
    "methods",
    "mallis2020",
    "equivariance",
    "dve",
    "zhang2018",
    "jakab2018",
    "lorenz2019",
    "autolink",
)

# Settings that did not exist when the first digests of settings were published. With their defaults, these
# settings change no result, so they must not change a digest either.
_ADDED_LATER = (
    ("images", "aspect"),
    ("loss", "hinge"),
    ("loss", "descriptors"),
    ("correspondence", "filter"),
    ("correspondence", "extra_points"),
    ("stage2", "head"),
    ("stage2", "average"),
    ("stage2", "outside"),
    ("stage2", "cutout_color"),
    ("augment", "border"),
    ("augment", "noise_fraction"),
    ("guards", "familiar_images"),
    ("guards", "compared_images"),
    ("guards", "max_unfamiliarity"),
    ("tracking", "appearance_seconds"),
    ("tracking", "max_appearance_ratio"),
    ("tracking", "max_outside"),
    ("tracking", "max_missing"),
)


def to_dict(config: Config) -> dict[str, Any]:
    """Convert a config to plain dictionaries and lists, ready for YAML or JSON."""
    result: dict[str, Any] = _to_plain(config)
    return result


def _to_plain(value: Any) -> Any:
    """Convert a section, or the value of a setting, to dictionaries and lists."""
    if dataclasses.is_dataclass(value):
        return {item.name: _to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    return [_to_plain(item) for item in value] if isinstance(value, tuple) else value


@functools.cache
def _default_settings() -> dict[str, Any]:
    return to_dict(Config())


def used_settings(config: Config) -> dict[str, Any]:
    """Return the settings that results depend on, in the form of `to_dict`.

    Digests are computed from these settings. The following are left out:

    - the sections `verification`, `smoothing` and `refinement`;
    - the section `schedule`, because the iterations that follow from it are included;
    - the sections of other methods than the run's own;
    - the settings in `_ONLY_WITH_FEATURES` if the run uses no features, with the exceptions given there;
    - the settings in `_ADDED_LATER` that have their defaults.
    """
    values = _omit_later_defaults(to_dict(config))
    unused_sections = {"schedule", "verification", "smoothing", "refinement", *_METHOD_SECTIONS}
    if config.is_from_another_paper:
        unused_sections -= {"methods", config.method}
    if not config.uses_features:
        unused_sections |= {*_ONLY_WITH_FEATURES}
        if config.method == "dve":  # The method dve clusters cells with the K-means settings of features.
            unused_sections -= {"features"}
        if config.is_from_another_paper:
            unused_sections -= {"method"}
    return {name: value for name, value in values.items() if name not in unused_sections}


def _omit_later_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return the sections, leaving out the settings of `_ADDED_LATER` that have their defaults."""
    defaults = _default_settings()
    return {
        section: {
            name: value
            for name, value in content.items()
            if (section, name) not in _ADDED_LATER or value != defaults[section][name]
        }
        if isinstance(content, dict)
        else content
        for section, content in values.items()
    }


def used_image_settings(images: Images) -> dict[str, Any]:
    """Return the settings of `images` that digests are computed from; see `used_settings`."""
    values: dict[str, Any] = _omit_later_defaults({"images": dataclasses.asdict(images)})["images"]
    return values


def from_dict(values: Mapping[str, Any], source: str = "config") -> Config:
    """Build a config from dictionaries.

    Args:
        values: mapping from sections to their settings. Missing settings take the defaults of `Config`. Old
            names (see `renamed`) are accepted.
        source: where the values come from, for error messages.
    """
    result: Config = build_dataclass(Config, rename_settings(values), source)
    return result


def section_from_dict(section: type[Section], values: Mapping[str, Any], source: str) -> Section:
    """Build one section of a config, e.g. `Images`, from a dictionary."""
    result: Section = build_dataclass(section, values, source)
    return result


def to_yaml(config: Config) -> str:
    """Convert a config to YAML."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)


@functools.lru_cache(maxsize=4)  # parsing YAML takes 25 ms, and a run reads its config up to nine times
def from_yaml(text: str, source: str) -> Config:
    """Build a config from YAML; `source` names the file in error messages."""
    values = parse_yaml(text, source)
    if not isinstance(values, dict):
        raise InputError(f"{source} must contain settings as 'name: value' lines")
    return from_dict(values, source)


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return a config with some settings changed.

    >>> override(Config(), {"K": 20, "flip.test": "false"}).flip.test
    False

    Args:
        config: the config to start from.
        changes: mapping from dotted names to new values. Text is parsed as YAML. Old names (see `renamed`)
            are accepted.

    Raises:
        InputError: if a setting does not exist or cannot have the value.
    """
    # Convert only the sections that change: planning the paper's tables overrides thousands of configs.
    changed_sections = {current_name(key).split(".")[0] for key in changes}
    known_sections = [item.name for item in dataclasses.fields(config) if item.name in changed_sections]
    values = {name: _to_plain(getattr(config, name)) for name in known_sections}
    for key, value in changes.items():
        name = current_name(key)
        *path, last = name.split(".")
        section = values
        for part in path:
            section = section.get(part, {}) if isinstance(section, dict) else {}
        if not isinstance(section, dict) or last not in section:
            raise InputError(describe_unknown_setting(key, _dotted_names(to_dict(config))))
        section[last] = (
            parse_yaml(value, f"the value of {name}") if isinstance(value, str) and value else value
        )
    return dataclasses.replace(config, **convert_fields(Config, values, "settings"))


def _dotted_names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted_names(value, f"{prefix}{name}.")
        else:
            yield prefix + name
