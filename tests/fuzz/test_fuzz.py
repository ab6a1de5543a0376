"""A sample of the spoilt files that `python -m tests.fuzz` makes by the hundred thousand."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest

from selfmark.config import override, preset
from selfmark.errors import InputError
from tests.fuzz.__main__ import fuzz
from tests.fuzz.readers import Reader, make_pictures, readers

KINDS = (
    "images",
    "coco as images",
    "coco as labels",
    "deeplabcut csv",
    "label studio",
    "model.json",
    "config.yaml",
    "text list",
    "points csv",
    "safetensors",
)


def test_every_reader_is_tried(tmp_path: Path) -> None:
    make_pictures(tmp_path)
    assert tuple(readers(tmp_path)) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_only_errors_of_our_own_come_out(kind: str, tmp_path: Path) -> None:
    make_pictures(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally = fuzz(readers(tmp_path)[kind], tmp_path, 150, random.Random(f"7 {kind}"))
    assert tally.failures == []
    assert tally.inputs == 150
    assert tally.refused > 15  # the files really are spoilt


def test_what_was_found_before_stays_mended(tmp_path: Path) -> None:
    """A rectangle of Label Studio whose id is no word; settings that are no YAML."""
    make_pictures(tmp_path)
    studio = readers(tmp_path)["label studio"]
    (tmp_path / studio.file).write_bytes(studio.seeds[0].replace(b'"id": "r"', b'"id": {"id": {}}'))
    studio.read(tmp_path / studio.file)
    for value in ("[", "2001-99-99", "&a [*a]", "!!int x"):
        with pytest.raises(InputError):
            override(preset("tiny"), {"K": value})


def test_what_is_not_ours_is_noticed(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        if path.read_bytes() != b"valid":
            raise RuntimeError("not ours")

    reader = Reader("file", fail, (b"valid",), (lambda content, rng: b"spoilt",))
    tally = fuzz(reader, tmp_path, 3, random.Random(0))
    assert tally.failures == ["RuntimeError: not ours"] * 3
