"""Build frozen dataclasses from YAML and JSON values, checking every value against the type of its field.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Box:
...     width: int = 1
...     weight: float = 0.5
>>> build_dataclass(Box, {"weight": 1}, "box.yaml")
Box(width=1, weight=1.0)
>>> build_dataclass(Box, {"width": 1.5}, "box.yaml")
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
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal

import yaml

from selfmark.errors import InputError, suggest

# PyYAML does not catch errors raised while it constructs dates, numbers and keys.
_YAML_ERRORS = (
    *(yaml.YAMLError, ValueError, TypeError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)
_MAX_DIGITS = 1_000  # characters of a number; Python does not print whole numbers of more than 4,300 digits


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses huge numbers: YAML 1.1 has them in base 16 and 60 (59:59) too."""

    def construct_number(self, node: yaml.ScalarNode) -> float:
        if len(node.value) > _MAX_DIGITS:
            raise ValueError(f"a number has more than {_MAX_DIGITS:,} characters")
        is_int = node.tag == "tag:yaml.org,2002:int"
        return self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)


for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_number)


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML.

    Args:
        text: the YAML text.
        source: where the text comes from, for the error message.

    Raises:
        InputError: if the text is not valid YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except _YAML_ERRORS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{source} is not valid YAML: {reason}") from error


def describe_unknown_setting(name: str, known: Iterable[str]) -> str:
    """Return a message about an unknown setting; the message suggests a similar known setting, if any."""
    suggestion = suggest(name, known)
    return f"unknown setting '{name[:100]}'" + (f".{suggestion}" if suggestion else "; see docs/settings.md")


@functools.cache  # slow, and needed for every section of every config
def _type_hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def build_dataclass(cls: type[Any], values: Mapping[str, Any], source: str, prefix: str = "") -> Any:
    """Build a dataclass from a mapping; fields that the mapping lacks take their defaults.

    Args:
        cls: the dataclass.
        values: values by field name; nested dataclasses are nested mappings.
        source: where the values come from, for error messages.
        prefix: dotted name of the section with a final dot, for error messages.

    Raises:
        InputError: if a name is unknown or a value does not have the type of its field.
    """
    return cls(**convert_fields(cls, values, source, prefix))


def convert_fields(
    cls: type[Any], values: Mapping[str, Any], source: str, prefix: str = ""
) -> dict[str, Any]:
    """Check and convert the values of some fields of a dataclass; see `build_dataclass` for the arguments."""
    if not isinstance(values, Mapping):
        raise InputError(
            f"{source}: '{prefix.rstrip('.')}' must contain settings, not {reprlib.repr(values)}"
        )
    hints = _type_hints(typing.cast(Any, cls))
    unknown_keys = sorted(str(name) for name in values if name not in hints)
    if unknown_keys:
        known = [prefix + name for name in hints]
        raise InputError(f"{source}: {describe_unknown_setting(prefix + unknown_keys[0], known)}")
    return {
        item.name: _convert(hints[item.name], values[item.name], source, prefix + item.name)
        for item in fields(cls)
        if item.name in values
    }


def _convert(hint: Any, value: Any, source: str, name: str) -> Any:
    """Check a value against the type of its field; convert ints to floats and lists to tuples as needed."""

    def mismatch(expected: str) -> InputError:
        return InputError(f"{source}: '{name}' must be {expected}, not {reprlib.repr(value)}")

    if dataclasses.is_dataclass(hint):
        return build_dataclass(typing.cast(type[Any], hint), value, source, name + ".")
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            names = [str(argument) for argument in arguments]
            suggestion = suggest(value, names) if isinstance(value, str) else ""
            period = "." if suggestion else ""
            raise InputError(f"{mismatch('one of ' + ', '.join(names))}{period}{suggestion}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise mismatch("a list of numbers")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise mismatch(f"a list of {len(arguments)} numbers")
        return tuple(_convert(arguments[0], item, source, name) for item in value)
    if hint is float:
        if isinstance(value, str) and _SCIENTIFIC_NOTATION.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_representable(value):
            raise mismatch("a number")
        return float(value)
    if hint is int and (
        isinstance(value, bool) or not isinstance(value, int) or not _is_representable(value)
    ):
        raise mismatch("a whole number")
    if hint in (bool, str) and not isinstance(value, hint):
        raise mismatch("true or false" if hint is bool else "text")
    return value


_SCIENTIFIC_NOTATION = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d{1,3}")  # YAML 1.1 reads 1e-3 as text


def _is_representable(value: float) -> bool:
    """Return True for a finite float, and for an integer that fits into 64 bits."""
    return -(2**63) <= value < 2**63 if isinstance(value, int) else math.isfinite(value)
