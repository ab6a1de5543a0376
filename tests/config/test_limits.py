"""Limits: every number has a minimum and a maximum, from the command line and from a config file."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from selfmark import config
from selfmark.cli.options import parse_settings
from selfmark.config.limits import Limit, between, check_limits, fraction
from selfmark.errors import InputError

TINY = config.preset("tiny")
# Settings that must fit together: a network of depth 1 allows every multiple of 8 pixels, and so on.
FLEXIBLE = {"network.depth": 1, "network.norm_groups": 1, "warmup.bootstrap": "detector-descriptors"}
# A value at its limit is refused if it contradicts another setting.
CONTRADICTIONS = ("must be a multiple of", "M must be at least K", "auto_k.max_images must be", "of memory")
NOT_NUMBERS = (".nan", ".inf", "1.0e+300")


@dataclass(frozen=True)
class Number:
    """A numeric setting: its dotted name, the type of its numbers, how many it needs, and its limit."""

    name: str
    kind: type
    count: int | None  # None: a single number, not a list
    limit: Limit


def _numbers(section: type[Any] = config.Config, prefix: str = "") -> Iterator[Number]:
    hints = typing.get_type_hints(section)
    for item in dataclasses.fields(section):
        hint, name = hints[item.name], prefix + item.name
        if dataclasses.is_dataclass(hint):
            yield from _numbers(hint, f"{name}.")
        elif hint in (int, float):
            yield Number(name, hint, None, config.limit_of(item))
        elif typing.get_origin(hint) is tuple:
            arguments = typing.get_args(hint)
            yield Number(
                name, arguments[0], len([a for a in arguments if a is not ...]), config.limit_of(item)
            )


NUMBERS = list(_numbers())


def _text(number: Number, value: float) -> str:
    """Write a value as YAML, as a list if the setting is a list."""
    one = str(int(value)) if number.kind is int else f"{float(value):.17e}"
    return one if number.count is None else f"[{', '.join([one] * number.count)}]"


def _set(name: str, text: str) -> config.Config:
    """Change a setting as `--set` does."""
    return config.override(TINY, FLEXIBLE | parse_settings([f"{name}={text}"]))


def _read(name: str, text: str) -> config.Config:
    """Read a setting from a config file."""
    section, _, field = name.rpartition(".")
    values: dict[str, Any] = {}
    for dotted, value in FLEXIBLE.items():
        values.setdefault(dotted.partition(".")[0], {})[dotted.partition(".")[2]] = value
    value = yaml.safe_load(text)
    values.setdefault(section, {})[field] = value if section else None
    if not section:
        values = {**{key: item for key, item in values.items() if key}, field: value}
    return config.from_yaml(yaml.safe_dump(values), "config.yaml")


def _value(settings: config.Config, name: str) -> Any:
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def _outcome(door: Any, name: str, text: str) -> str | None:
    """Return the error message, or None if the value is accepted."""
    try:
        accepted = door(name, text)
    except InputError as error:
        return str(error)
    expected = yaml.safe_load(text)
    value = _value(accepted, name)
    assert (list(value) if isinstance(value, tuple) else value) == expected
    return None


@pytest.mark.parametrize("door", [_set, _read])
def test_every_number_is_accepted_within_its_limits_and_refused_beyond(door: Any) -> None:
    assert len(NUMBERS) > 150
    for number in NUMBERS:
        limit = number.limit
        low, high = limit.minimum, limit.maximum
        assert math.isfinite(low) and math.isfinite(high), number  # noqa: PT018
        step = 1 if number.kind is int else max(abs(high), 1) * 1e-6
        lowest = low + 1e-9 * (high - low) if limit.excludes_minimum else low
        for value in sorted({lowest, high, low, low - step, high + step, 0, -1}):
            problem = _outcome(door, number.name, _text(number, value))
            if limit.allows(value):
                assert problem is None or any(words in problem for words in CONTRADICTIONS), problem
            else:
                assert problem is not None, f"{number.name}={value} was accepted"
                assert number.name in problem
        for text in NOT_NUMBERS:
            whole = text if number.count is None else f"[{', '.join([text] * number.count)}]"
            problem = _outcome(door, number.name, whole)
            assert problem is not None, f"{number.name}={whole} was accepted"
            assert number.name in problem
            assert "\n" not in problem


def test_a_number_without_limits_is_an_error_of_the_program() -> None:
    @dataclass(frozen=True)
    class Section:
        speed: float = 1.0

    with pytest.raises(TypeError, match="'speed' has no limits"):
        check_limits(Section())


@pytest.mark.parametrize(
    ("limit", "text", "allowed", "rejected"),
    [
        (Limit(0, 1), "between 0 and 1", 1.0, 1.01),
        (Limit(-0.5, 10_000, excludes_minimum=True), "greater than -0.5 and at most 10,000", 10_000, -0.5),
        (Limit(1, 8), "between 1 and 8", 1, math.nan),
    ],
)
def test_limits(limit: Limit, text: str, allowed: float, rejected: float) -> None:
    assert str(limit) == text
    assert limit.allows(allowed)
    assert not limit.allows(rejected)


def test_the_limit_of_a_list_applies_to_each_number_and_to_its_length() -> None:
    @dataclass(frozen=True)
    class Section:
        drops: tuple[float, ...] = fraction((0.5,))
        counts: tuple[int, ...] = between(1, 5, (1,))

    check_limits(Section((0.0, 1.0), (1, 5)))
    with pytest.raises(InputError, match=r"drops must be between 0 and 1, not 1.5"):
        check_limits(Section((0.5, 1.5)))
    with pytest.raises(InputError, match=r"counts has 1,001 numbers; at most 1,000 are allowed"):
        check_limits(Section(counts=(1,) * 1_001))


def test_every_value_in_the_packaged_presets_and_tables_is_within_its_limits() -> None:
    for name in config.PRESETS:
        assert config.from_dict(config.to_dict(config.preset(name))) == config.preset(name)
    for path in Path(config.__file__).parents[1].glob("paper/reproduction/tables/*.yaml"):
        for changes in _settings_in(yaml.safe_load(path.read_text())):
            config.override(TINY, changes)


def _settings_in(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(key, str) and key.partition(".")[0] in config.to_dict(TINY) and "." in key:
                yield {key: value} | ({"flip.test": False} if key == "flip.train" else {})
            else:
                yield from _settings_in(value)
    elif isinstance(node, list):
        for item in node:
            yield from _settings_in(item)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images.size": 4_096}, "landmarks in images of 4,096 px take about"),
        (
            {"images.size": 1_024, "K": 10_000, "M": 10_000},
            "10,000 landmarks in images of 1,024 px",
        ),
        ({"images.size": 1_024, "runtime.batch": 4_096}, "lower runtime.batch"),
        ({"images.size": 1_024, "stage2.batch": 4_096}, "lower stage2.batch"),
    ],
)
def test_settings_that_need_too_much_memory_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"{words}.*") as error:
        config.override(config.preset("fast"), changes)
    assert "GiB allowed" in str(error.value)


def test_usual_sizes_fit_into_memory() -> None:
    for name in config.PRESETS:
        for size, K in ((1_024, 100), (512, 500), (256, 2_000)):
            config.override(config.preset(name), {"images.size": size, "K": K, "M": K})
