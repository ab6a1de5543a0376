"""Corrupt valid files: change their bytes, or replace parts of JSON documents."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

# Values that break readers: numbers at limits, lone surrogates, unexpected types, deep nesting.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, -1e308),
    *(float("nan"), float("inf"), float("-inf")),
    *("", " ", "\0", "\ud800", "\x1b[2J", "<script>", "a" * 300, "../../etc/passwd", "/dev/zero"),
    *(".png", "a/b.png", "é\n", "1e9", "nan"),
    *([], {}, [[]], [0], [None] * 9, {"": ""}, {"id": {}}, [1, 2, 3, 4]),
)
ODD_BYTES = (
    *(
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\n",
        b"\r",
        b'"',
        b",",
        b":",
        b"- ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"'",
    ),
    *(
        b"&a ",
        b"*a",
        b"!!python/object/apply:os.system ['true']",
        b"!!binary x",
        b"2001-99-99",
        b"<<: ",
        b"|",
    ),
    *(b"1e999", b"-1", b"99999999999999999999", b"nan", b"#"),
    *(b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff"),
)


def change_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip a bit, or remove, repeat, replace or insert some bytes, once or a few times."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        position = rng.randrange(len(data) + 1)
        length = min(rng.choice((1, 1, 2, 4, 16, 64)), len(data) - position)
        kind = rng.randrange(6)
        if kind == 0 and position < len(data):
            data[position] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[position : position + length]
        elif kind == 2:
            data[position:position] = data[position : position + length] * rng.choice((1, 2, 50))
        elif kind == 3:
            data[position : position + length] = rng.randbytes(length)
        elif kind == 4:
            data[position:position] = rng.choice(ODD_BYTES)
        else:
            del data[position:]
    return bytes(data)


def change_json(content: bytes, rng: random.Random) -> bytes:
    """Replace, drop or duplicate a few parts of a JSON document."""
    value = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = _change(value, rng)
    return json.dumps(value).encode()


def change_lines(content: bytes, rng: random.Random) -> bytes:
    """Change one line of a file with a JSON document in each line."""
    lines = [line for line in content.splitlines() if line.strip()] or [b"{}"]
    row = rng.randrange(len(lines))
    try:
        changed = change_json(lines[row], rng)
    except ValueError:  # this line was corrupted in an earlier round
        return change_bytes(content, rng)
    return b"\n".join((*lines[:row], changed, *lines[row + 1 :], b""))


def _change(value: Any, rng: random.Random) -> Any:
    if rng.random() < 0.15 or not isinstance(value, (dict, list)) or not value:
        return rng.choice(ODD_VALUES) if rng.random() < 0.9 else _make_nested_list(rng)
    if isinstance(value, dict):
        key = rng.choice(list(value))
        action = rng.random()
        if action < 0.2:
            return {name: part for name, part in value.items() if name != key}
        if action < 0.25:
            return value | {str(rng.choice(ODD_VALUES))[:40]: value[key]}
        return value | {key: _change(value[key], rng)}
    index = rng.randrange(len(value))
    action = rng.random()
    if action < 0.1:
        return value[:index] + value[index + 1 :]
    if action < 0.2:
        return [*value, value[index]]
    return [*value[:index], _change(value[index], rng), *value[index + 1 :]]


def _make_nested_list(rng: random.Random) -> Any:
    value: Any = 1
    for _ in range(rng.choice((5, 50, 400))):
        value = [value]
    return value


Mutator = Callable[[bytes, random.Random], bytes]
