"""Frozen dataclasses from what YAML and JSON hold, every value checked against the type of its field.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Box:
...     width: int = 1
...     share: float = 0.5
>>> build(Box, {"share": 1}, "box.yaml")
Box(width=1, share=1.0)
>>> build(Box, {"width": 1.5}, "box.yaml")
Traceback (most recent call last):
selfmark.errors.InputError: box.yaml: 'width' must be a whole number, not 1.5
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import reprlib
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

import yaml

from selfmark.errors import InputError


def parse_yaml(text: str, where: str) -> Any:
    """What YAML says, or one sentence on why it says nothing."""
    try:
        return yaml.safe_load(text)
    # Besides its own errors PyYAML lets through what building dates, numbers and keys raises.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{where} is not YAML: {reason}") from error


@functools.cache  # slow, and asked for every section of every config
def _type_hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def build_dataclass(kind: type[Any], values: Mapping[str, Any], where: str, prefix: str = "") -> Any:
    """A `kind` with these values, its defaults elsewhere; errors begin with `where` and `prefix`."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: '{prefix.rstrip('.')}' must hold settings, not {reprlib.repr(values)}")
    hints = _type_hints(typing.cast(Any, kind))
    unknown = sorted(str(name) for name in values if name not in hints)
    if unknown:
        raise InputError(f"{where}: there is no setting '{prefix}{unknown[0][:100]}'")
    return kind(
        **{
            item.name: _convert(hints[item.name], values[item.name], where, prefix + item.name)
            for item in fields(kind)
            if item.name in values
        }
    )


def _convert(hint: Any, value: Any, where: str, name: str) -> Any:
    """Check one value against its field's type; ints pass as floats, lists as tuples, nothing else bends."""

    def wrong(expected: str) -> InputError:
        return InputError(f"{where}: '{name}' must be {expected}, not {reprlib.repr(value)}")

    if dataclasses.is_dataclass(hint):
        return build_dataclass(typing.cast(type[Any], hint), value, where, name + ".")
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise wrong("one of " + ", ".join(map(str, arguments)))
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise wrong("a list of numbers")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise wrong(f"a list of {len(arguments)} numbers")
        return tuple(_convert(arguments[0], item, where, name) for item in value)
    if hint is float:
        if isinstance(value, str) and _POWER.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _fits(value):
            raise wrong("a number")
        return float(value)
    if hint is int and (isinstance(value, bool) or not isinstance(value, int) or not _fits(value)):
        raise wrong("a whole number")
    if hint in (bool, str) and not isinstance(value, hint):
        raise wrong("true or false" if hint is bool else "text")
    return value


_POWER = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d{1,3}")  # 1e-3: a number to people, a word to YAML 1.1


def _fits(value: float) -> bool:
    """Whether a number is finite and not beyond what 64 bits hold."""
    return -(2**63) <= value < 2**63 if isinstance(value, int) else math.isfinite(value)
