"""Configs as plain dictionaries and YAML, and changes by dotted name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml

from selfmark.config.parsing import build_dataclass, parse_yaml
from selfmark.config.renamed import current_name, rename_settings
from selfmark.config.schema import Config
from selfmark.errors import InputError


def to_dict(config: Config) -> dict[str, Any]:
    """Plain dictionaries and lists, ready for YAML or JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    result: dict[str, Any] = plain(dataclasses.asdict(config))
    return result


def from_dict(values: Mapping[str, Any], where: str = "config") -> Config:
    """Build a config from dictionaries; missing entries take the `paper` preset's value."""
    result: Config = build_dataclass(Config, rename_settings(values), where)
    return result


Section = TypeVar("Section")


def section_from_dict(kind: type[Section], values: Mapping[str, Any], where: str) -> Section:
    """Build one section of a config, e.g. `Images`, from a dictionary."""
    result: Section = build_dataclass(kind, values, where)
    return result


def to_yaml(config: Config) -> str:
    """Serialize a config as YAML."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def from_yaml(text: str, where: str) -> Config:
    """Build a config from YAML; `where` names the source in error messages."""
    values = parse_yaml(text, where)
    if not isinstance(values, dict):
        raise InputError(f"{where} must hold settings as 'name: value' lines")
    return from_dict(values, where)


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """Change settings by dotted name, e.g. {"K": 20, "flip.test": False}; text values are read as YAML."""
    values = to_dict(config)
    for given, value in changes.items():
        name = current_name(given)
        *path, last = name.split(".")
        section = values
        for part in path:
            section = section.get(part, {}) if isinstance(section, dict) else {}
        if not isinstance(section, dict) or last not in section:
            raise InputError(f"there is no setting '{given}'; docs/settings.md lists them")
        section[last] = (
            parse_yaml(value, f"the value of {name}") if isinstance(value, str) and value else value
        )
    return from_dict(values, "settings")
