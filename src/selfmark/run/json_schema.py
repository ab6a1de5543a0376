"""Check values from the files of a run folder, which may come from a stranger."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

from selfmark.errors import InputError

_MAX_NUMBER = 1e15  # far above any count, time or error; a float holds all whole numbers up to it exactly

_MAX_NESTING = 50  # lists and objects inside each other; real files have fewer than 10

MAX_NAME_LENGTH = 1_000  # characters in the name of a landmark or point
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # besides lone surrogates

Check = Callable[[Any], bool]


def parse_json(text: str) -> Any:
    """Parse JSON text whose lists and objects are not nested so deeply that recursive functions fail.

    >>> parse_json('{"points": [[1, 2], [3, 4]]}')
    {'points': [[1, 2], [3, 4]]}
    >>> parse_json("[" * 51 + "]" * 51)
    Traceback (most recent call last):
    ValueError: it is nested too deeply

    Raises:
        ValueError: if the text is not JSON, or has more than 50 levels.
    """
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    items: Iterable[Any] = [content]
    for _ in range(_MAX_NESTING + 1):
        containers = [item for item in items if isinstance(item, (dict, list))]
        if not containers:
            return content
        items = chain.from_iterable(item.values() if isinstance(item, dict) else item for item in containers)
    raise ValueError("it is nested too deeply")


def is_number(value: Any) -> bool:
    """Return True for a finite number of a reasonable size; booleans do not count as numbers.

    >>> is_number(2.5), is_number(True), is_number(1e300), is_number(float("nan"))
    (True, False, False, False)
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER


def is_count(value: Any) -> bool:
    """Return True for a whole number that is not negative.

    >>> is_count(0), is_count(-1), is_count(2.0)
    (True, False, False)
    """
    return isinstance(value, int) and is_number(value) and value >= 0


def is_int64(value: Any) -> TypeGuard[int]:
    """Return True for a whole number that fits into 64 bits; booleans do not count as numbers.

    >>> is_int64(-1), is_int64(2**63 - 1), is_int64(2**63), is_int64(True)
    (True, True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def is_text(value: Any) -> bool:
    """Return True for a string that files and terminals can show: without lone surrogates or null bytes."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_point_name(value: Any) -> bool:
    r"""Return True for a text that every format can store as the name of a landmark or point.

    XML (Label Studio) has the smallest set of characters: line ends are allowed, but no control characters.

    >>> is_point_name("œil gauche"), is_point_name("a\x1bb"), is_point_name("")
    (True, False, False)
    """
    return is_text(value) and 0 < len(value) <= MAX_NAME_LENGTH and not _NOT_IN_XML.search(value)


def is_bool(value: Any) -> bool:
    """Return True for True and False."""
    return isinstance(value, bool)


def is_list_of(check: Check) -> Check:
    """Return a check for lists whose items all pass a given check.

    >>> is_list_of(is_count)([1, 2]), is_list_of(is_count)([1, "2"])
    (True, False)
    """
    return lambda value: isinstance(value, list) and all(map(check, value))


def is_dict_of(check: Check) -> Check:
    """Return a check for dictionaries whose keys are valid text and whose values all pass a given check.

    >>> is_dict_of(is_number)({"total": 0.5}), is_dict_of(is_number)([0.5])
    (True, False)
    """
    return lambda value: (
        isinstance(value, dict) and all(map(is_text, value)) and all(map(check, value.values()))
    )


def is_none_or(check: Check) -> Check:
    """Return a check that accepts None and every value that passes a given check."""
    return lambda value: value is None or check(value)


def is_object(fields: dict[str, Check], optional: dict[str, Check] | None = None) -> Check:
    """Return a check for dictionaries whose fields pass their checks; see `require_fields`.

    >>> is_object({"images": is_count})({"images": 3, "other": None}), is_object({"images": is_count})({})
    (True, False)
    """

    def check(value: Any) -> bool:
        try:
            require_fields(value, fields, optional)
        except ValueError:
            return False
        return True

    return check


def require_fields(values: Any, fields: dict[str, Check], optional: dict[str, Check] | None = None) -> None:
    """Raise a ValueError unless a value is a dictionary whose fields pass their checks.

    Args:
        values: value from a JSON file.
        fields: mapping from the names of fields that the value must have to their checks.
        optional: mapping from the names of fields that the value may have to their checks.
    """
    if not isinstance(values, dict):
        raise ValueError(f"a JSON object was expected, not {str(values)[:40]!r}")
    for name, check in (fields | (optional or {})).items():
        if name not in values:
            if name in fields:
                raise ValueError(f"'{name}' is missing")
        elif not check(values[name]):
            raise ValueError(f"{str(values[name])[:40]!r} is not a valid value of '{name}'")


@contextmanager
def report_content_errors(path: Path) -> Iterator[None]:
    """Convert errors caused by unexpected content of a file to an InputError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(f"{path} is not valid for this run: {reason}") from error
