"""Test that every number has a minimum and a maximum, on the command line and in a config file."""

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
# With these settings, few other values contradict each other: a network of depth 1, for example, allows every
# image side that is a multiple of 8 pixels.
FLEXIBLE = {"network.depth": 1, "network.norm_groups": 1, "warmup.bootstrap": "detector-descriptors"}
# Parts of the messages about values that are within their limits but contradict another setting.
CONTRADICTIONS = ("must be a multiple of", "M must be at least K", "auto_k.max_images must be", "of memory")
NEVER_ALLOWED = (".nan", ".inf", "1.0e+300")


@dataclass(frozen=True)
class Number:
    """A numeric setting: its dotted name, the type of its value, and its limit."""

    name: str
    kind: type
    count: int | None  # length of the list to test; None for a single number
    limit: Limit


def _list_numbers(section: type[Any] = config.Config, prefix: str = "") -> Iterator[Number]:
    """Yield the numeric settings of a section and of the sections in it."""
    hints = typing.get_type_hints(section)
    for item in dataclasses.fields(section):
        hint, name = hints[item.name], prefix + item.name
        if dataclasses.is_dataclass(hint):
            yield from _list_numbers(hint, f"{name}.")
        elif hint in (int, float):
            yield Number(name, hint, None, config.limit_of(item))
        elif typing.get_origin(hint) is tuple:
            arguments = typing.get_args(hint)
            count = len([argument for argument in arguments if argument is not ...])
            yield Number(name, arguments[0], count, config.limit_of(item))


NUMBERS = list(_list_numbers())


def _to_yaml(number: Number, value: float) -> str:
    """Write a value as YAML, as a list if the setting is a list."""
    text = str(int(value)) if number.kind is int else f"{float(value):.17e}"
    return text if number.count is None else f"[{', '.join([text] * number.count)}]"


def _set_option(name: str, text: str) -> config.Config:
    """Change a setting as `--set` does."""
    return config.override(TINY, FLEXIBLE | parse_settings([f"{name}={text}"]))


def _read_file(name: str, text: str) -> config.Config:
    """Read a setting from a config file."""
    values: dict[str, Any] = {}
    for dotted, value in (FLEXIBLE | {name: yaml.safe_load(text)}).items():
        section, _, field = dotted.rpartition(".")
        (values.setdefault(section, {}) if section else values)[field] = value
    return config.from_yaml(yaml.safe_dump(values), "config.yaml")


def _get_value(settings: config.Config, name: str) -> Any:
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def _find_problem(change: Any, name: str, text: str) -> str | None:
    """Change a setting and return the error message, or None if the value is accepted."""
    try:
        accepted = change(name, text)
    except InputError as error:
        return str(error)
    expected = yaml.safe_load(text)
    value = _get_value(accepted, name)
    assert (list(value) if isinstance(value, tuple) else value) == expected
    return None


@pytest.mark.parametrize("change", [_set_option, _read_file])
def test_every_number_is_accepted_within_its_limits_and_refused_beyond(change: Any) -> None:
    assert len(NUMBERS) > 150
    for number in NUMBERS:
        limit = number.limit
        low, high = limit.minimum, limit.maximum
        assert math.isfinite(low) and math.isfinite(high), number  # noqa: PT018
        step = 1 if number.kind is int else max(abs(high), 1) * 1e-6
        smallest_allowed = low + 1e-9 * (high - low) if limit.excludes_minimum else low
        for value in sorted({smallest_allowed, high, low, low - step, high + step, 0, -1}):
            problem = _find_problem(change, number.name, _to_yaml(number, value))
            if limit.allows(value):
                assert problem is None or any(words in problem for words in CONTRADICTIONS), problem
            else:
                assert problem is not None, f"{number.name}={value} was accepted"
                assert number.name in problem
        for text in NEVER_ALLOWED:
            as_yaml = text if number.count is None else f"[{', '.join([text] * number.count)}]"
            problem = _find_problem(change, number.name, as_yaml)
            assert problem is not None, f"{number.name}={as_yaml} was accepted"
            assert number.name in problem
            assert "\n" not in problem


def test_a_setting_declared_without_limits_raises_a_type_error() -> None:
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
def test_a_limit_describes_itself_and_rejects_other_numbers(
    limit: Limit, text: str, allowed: float, rejected: float
) -> None:
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
        for changes in _find_settings(yaml.safe_load(path.read_text())):
            config.override(TINY, changes)


def _find_settings(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the settings with dotted names anywhere in the content of a YAML file."""
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(key, str) and key.partition(".")[0] in config.to_dict(TINY) and "." in key:
                # flip.test needs flip.train, which a table may switch off.
                yield {key: value} | ({"flip.test": False} if key == "flip.train" else {})
            else:
                yield from _find_settings(value)
    elif isinstance(node, list):
        for item in node:
            yield from _find_settings(item)


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
