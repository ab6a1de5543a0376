"""Read and write config.yaml."""

from __future__ import annotations

from pathlib import Path

from selfmark.config import Config, from_yaml, to_yaml
from selfmark.errors import InputError
from selfmark.run.files import atomic_write


def write_config(config: Config, path: Path) -> None:
    """Write a config to a YAML file."""
    with atomic_write(path) as temporary:
        temporary.write_text(to_yaml(config), encoding="utf-8")


def read_config(path: Path) -> Config:
    """Read a config from a YAML file written by `write_config` or by a user."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8") from error
    return from_yaml(text, str(path))
