"""Limits of numeric settings, declared where the setting is defined.

Every number has a minimum and a maximum. The maximum is far above any practical value. It only keeps a typo
or an untrusted file from exhausting memory or overflowing float32.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Example:
...     batch: int = between(1, 4_096, default=16)
...     ratio: float = fraction(default=0.4)
>>> check_limits(Example(ratio=1.5), "example.")
Traceback (most recent call last):
selfmark.errors.InputError: config: example.ratio must be between 0 and 1, not 1.5
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypeVar

from selfmark.errors import InputError

Default = TypeVar("Default")
_KEY = "limit"  # key in a field's metadata
_MAX_LENGTH = 1_000  # maximum length of a list of numbers


@dataclass(frozen=True)
class Limit:
    """Range of the numbers that a setting allows.

    minimum:          lower end of the range
    maximum:          upper end of the range, which is allowed
    excludes_minimum: whether the minimum itself is not allowed
    text:             description of the range; if empty, the two numbers describe it
    """

    minimum: float
    maximum: float
    excludes_minimum: bool = False
    text: str = ""

    def allows(self, number: float) -> bool:
        """Return True if the number is inside the range."""
        is_above = number > self.minimum if self.excludes_minimum else number >= self.minimum
        return is_above and number <= self.maximum

    def __str__(self) -> str:
        """Describe the range so that the text completes the sentence "must be ...".

        >>> str(Limit(0, 1)), str(Limit(0, 10_000, excludes_minimum=True))
        ('between 0 and 1', 'greater than 0 and at most 10,000')
        """
        if self.text:
            return self.text
        low, high = _format(self.minimum), _format(self.maximum)
        return (
            f"greater than {low} and at most {high}" if self.excludes_minimum else f"between {low} and {high}"
        )


def between(minimum: float, maximum: float, default: Default, text: str = "") -> Default:
    """Declare a setting between two numbers, both included; in a list, the limit applies to each number."""
    return _field(default, Limit(minimum, maximum, text=text))


def above(minimum: float, maximum: float, default: Default) -> Default:
    """Declare a setting greater than `minimum` and at most `maximum`."""
    return _field(default, Limit(minimum, maximum, excludes_minimum=True))


def fraction(default: Default) -> Default:
    """Declare a setting between 0 and 1."""
    return between(0, 1, default)


def _field(default: Default, limit: Limit) -> Default:
    result: Default = field(default=default, metadata={_KEY: limit})
    return result


def limit_of(item: dataclasses.Field[Any]) -> Limit:
    """Return the limit of a dataclass field that holds numbers."""
    if _KEY not in item.metadata:
        raise TypeError(
            f"the setting '{item.name}' has no limits: declare it with between, above or fraction"
        )
    limit: Limit = item.metadata[_KEY]
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
        numbers = value if isinstance(value, tuple) else (value,)
        if len(numbers) > _MAX_LENGTH:
            raise InputError(
                f"config: {name} has {len(numbers):,} numbers; at most {_MAX_LENGTH:,} are allowed"
            )
        for number in numbers:
            if isinstance(number, int | float) and not isinstance(number, bool):
                limit = limit_of(item)
                if not limit.allows(number):
                    raise InputError(f"config: {name} must be {limit}, not {_format(number)}")


def require(condition: bool, problem: str) -> None:
    """Raise an InputError that states the problem, unless the condition holds."""
    if not condition:
        raise InputError(f"config: {problem}")


def _format(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
