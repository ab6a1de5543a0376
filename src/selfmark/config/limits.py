"""Limits of numeric settings, declared where the setting is defined.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Example:
...     batch: int = at_least(1, default=16)
...     ratio: float = fraction(default=0.4)
...     iterations: int = 100  # the default limit: not negative
>>> check_limits(Example(ratio=1.5), "example.")
Traceback (most recent call last):
selfmark.errors.InputError: config: example.ratio must be between 0 and 1, not 1.5
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

from selfmark.errors import InputError

Default = TypeVar("Default")
_KEY = "limit"  # key in a field's metadata


@dataclass(frozen=True)
class Limit:
    """Range of the numbers that a setting allows.

    minimum:          smallest number allowed
    maximum:          largest number allowed
    excludes_minimum: whether the minimum itself is not allowed
    text:             description of the range; if empty, it is made from the numbers
    """

    minimum: float = 0
    maximum: float = math.inf
    excludes_minimum: bool = False
    text: str = ""

    def allows(self, number: float) -> bool:
        """Return True if the number is within the limit."""
        is_above = number > self.minimum if self.excludes_minimum else number >= self.minimum
        return is_above and number <= self.maximum

    def __str__(self) -> str:
        """Describe the limit so that it completes "must be ...".

        >>> str(Limit(1)), str(Limit(0, 1)), str(Limit(0, 10, excludes_minimum=True))
        ('at least 1', 'between 0 and 1', 'greater than 0 and at most 10')
        """
        if self.text:
            return self.text
        low, high = _format(self.minimum), _format(self.maximum)
        if self.excludes_minimum:
            return f"greater than {low}" + ("" if self.maximum == math.inf else f" and at most {high}")
        return f"at least {low}" if self.maximum == math.inf else f"between {low} and {high}"


NOT_NEGATIVE = Limit()  # the limit of settings that declare none
ANY_NUMBER = Limit(-math.inf, text="any number")


def at_least(minimum: float, default: Default, text: str = "") -> Default:
    """Declare a setting of at least `minimum`; in a list, the limit applies to each number."""
    return _field(default, Limit(minimum, text=text))


def between(minimum: float, maximum: float, default: Default) -> Default:
    """Declare a setting between two numbers, both included."""
    return _field(default, Limit(minimum, maximum))


def above(minimum: float, maximum: float, default: Default) -> Default:
    """Declare a setting greater than `minimum` and at most `maximum`."""
    return _field(default, Limit(minimum, maximum, excludes_minimum=True))


def fraction(default: Default) -> Default:
    """Declare a setting between 0 and 1."""
    return between(0, 1, default)


def any_number(default: Default) -> Default:
    """Declare a setting that may also be negative."""
    return _field(default, ANY_NUMBER)


def _field(default: Default, limit: Limit) -> Default:
    result: Default = field(default=default, metadata={_KEY: limit})
    return result


def limit_of(item: dataclasses.Field[Any]) -> Limit:
    """Return the limit of a dataclass field."""
    limit: Limit = item.metadata.get(_KEY, NOT_NEGATIVE)
    return limit


def check_limits(section: Any, prefix: str = "") -> None:
    """Raise if a number of a section, or of the sections in it, is outside its limit.

    Args:
        section: a settings dataclass.
        prefix: dotted name of the section with a final dot, for the error message.

    Raises:
        InputError: if a number is outside its limit; the message names the first such setting.
    """
    for item in dataclasses.fields(section):
        name, value = f"{prefix}{item.name}", getattr(section, item.name)
        if dataclasses.is_dataclass(value):
            check_limits(value, f"{name}.")
            continue
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                limit = limit_of(item)
                require(limit.allows(number), f"{name} must be {limit}, not {_format(number)}")


def require(condition: bool, problem: str) -> None:
    """Raise an InputError with this problem unless the condition holds."""
    if not condition:
        raise InputError(f"config: {problem}")


def _format(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"
