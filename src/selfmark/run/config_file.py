"""Read and write config.yaml."""

from __future__ import annotations

from pathlib import Path

from selfmark.config import Config, from_yaml, to_yaml
from selfmark.run.files import read_text, write_text


def write_config(config: Config, path: Path) -> None:
    """Write a config to a YAML file."""
    write_text(to_yaml(config), path)


def read_config(path: Path) -> Config:
    """Read a config from a YAML file written by `write_config` or by a user."""
    return from_yaml(read_text(path), str(path))
