"""Check the types of the arguments of public functions; a wrong type gives an error of one sentence."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from selfmark.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

# Some annotated types also accept values of other types: NumPy's numbers, any path and any iterable.
_ACCEPTED: dict[Any, type | tuple[type, ...]] = {
    int: numbers.Integral,
    float: numbers.Real,
    Path: os.PathLike,
    Sequence: Iterable,
}


def check_argument_types(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise an InputError if an argument does not have its annotated type.

    A missing or unknown argument still raises a TypeError. The argument `device` is not checked, because it
    may be a torch device as well as a string.

    >>> @check_argument_types
    ... def repeat(text: str, times: int | None = None) -> str:
    ...     return text * (times or 1)
    >>> repeat("a", "b")
    Traceback (most recent call last):
        ...
    selfmark.errors.InputError: repeat: 'times' must be int or None, not 'b'
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = typing.get_type_hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in hints and name != "device" and not is_instance(value, hints[name]):
                raise InputError(
                    f"{function.__name__}: '{name}' must be {describe_type(hints[name])}, not "
                    f"{reprlib.repr(value)}"
                )
            if isinstance(value, str | os.PathLike) and "\0" in os.fspath(value):
                raise InputError(f"{function.__name__}: '{name}' contains a null character; correct it")
        return function(*args, **kwargs)

    return checked


def is_instance(value: Any, hint: Any) -> bool:
    """Return True if a value has an annotated type; for a literal, only the type of the value is checked.

    >>> [is_instance(value, Sequence[str]) for value in (["a"], [1], "a")]
    [True, False, False]
    >>> is_instance(2, int), is_instance(True, int)  # Python counts True and False as integers.
    (True, False)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(is_instance(value, argument) for argument in arguments)
    if origin is typing.Literal:
        return isinstance(value, tuple({type(argument) for argument in arguments}))
    kind: Any = origin or hint
    if not isinstance(value, _ACCEPTED.get(kind, kind)) or (isinstance(value, bool) and kind in (int, float)):
        return False
    if kind is Sequence:
        items = value if isinstance(value, Collection) else ()  # A generator can be read only once.
        return not isinstance(value, str | bytes | Mapping) and all(
            is_instance(item, arguments[0]) for item in items
        )
    return kind is not Mapping or all(is_instance(key, arguments[0]) for key in value)


def describe_type(hint: Any) -> str:
    """Return an annotated type in words.

    >>> describe_type(str | Path | Sequence[str | Path] | None)
    'str, Path, sequence of str or Path, or None'
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        words = [describe_type(argument) for argument in arguments]
        comma = "," if any(" " in word for word in words) and len(words) > 2 else ""
        return f"{', '.join(words[:-1])}{comma} or {words[-1]}"
    if origin is typing.Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if origin is Sequence:
        return f"sequence of {describe_type(arguments[0])}"
    if origin is not None:
        return str(origin.__name__).lower()
    return "None" if hint is type(None) else str(getattr(hint, "__name__", hint))
