"""Test a small sample of what `make fuzz` does with hundreds of thousands of files."""

from __future__ import annotations

import random
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from selfmark.config import override, preset
from selfmark.errors import InputError, SelfmarkError
from tests.fuzz import fuzzing
from tests.fuzz.__main__ import main as fuzz_main
from tests.fuzz.fuzzing import fuzz, list_corpus_files
from tests.fuzz.readers import Reader, build_readers, make_pictures

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
    "boxes csv",
    "numpy arrays",
    "torch 7 tensor",
    "mp4 header",
    "video",
    "video by opencv",
    "naming edits",
    "written tables",
    "unsigned safetensors",
    "metrics.json",
    "images.json",
    "views.json",
    "log.jsonl",
    "corrections",
)
# These readers accept most corrupted files: they skip the bytes and events that they cannot use.
_MOSTLY_ACCEPTED = ("mp4 header", "log.jsonl")
_NUM_FEW = 30  # files for slow readers; `make fuzz` reads many more


def test_every_reader_is_fuzzed(tmp_path: Path) -> None:
    make_pictures(tmp_path)
    assert tuple(build_readers(tmp_path)) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_readers_only_raise_errors_of_selfmark(kind: str, tmp_path: Path) -> None:
    make_pictures(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = build_readers(tmp_path)[kind]
        if not reader.is_available():
            pytest.skip(f"needs {reader.requires}")
        count = 150 if reader.cost == 1 else _NUM_FEW
        result = fuzz(reader, tmp_path, count, random.Random(f"7 {kind}"))
    assert result.failures == []
    assert result.inputs == count
    if kind not in _MOSTLY_ACCEPTED:
        assert result.refused > count / 10, "too few of the files are really corrupted"
    for path in list_corpus_files(reader, kind):
        (tmp_path / reader.file).write_bytes(path.read_bytes())
        with suppress(SelfmarkError):
            reader.read(tmp_path / reader.file)


def test_failures_found_by_fuzzing_stay_fixed(tmp_path: Path) -> None:
    """Read what once crashed a reader: a rectangle of Label Studio whose id is not text, and invalid YAML."""
    make_pictures(tmp_path)
    studio = build_readers(tmp_path)["label studio"]
    (tmp_path / studio.file).write_bytes(studio.seeds[0].replace(b'"id": "r"', b'"id": {"id": {}}'))
    studio.read(tmp_path / studio.file)
    for value in ("[", "2001-99-99", "&a [*a]", "!!int x"):
        with pytest.raises(InputError):
            override(preset("tiny"), {"K": value})


def test_other_errors_are_counted_as_failures(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        if path.read_bytes() != b"valid":
            raise RuntimeError("not ours")

    reader = Reader("file", fail, (b"valid",), (lambda content, rng: b"corrupted",))
    result = fuzz(reader, tmp_path, 3, random.Random(0))
    assert result.failures == ["RuntimeError: not ours"] * 3


def test_counts_of_several_runs_are_added_and_dead_processes_are_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzzing, "CORPUS", tmp_path / "corpus")
    folder = tmp_path / "process"
    folder.mkdir()
    (folder / "labels.csv").write_bytes(b"deadly")
    counts = {"inputs": 5, "read": 2, "refused": 3, "failures": 0, "slowest_seconds": 0.5}
    done = {"readers": {"deeplabcut csv": counts}, "peak_megabytes": 7, "runs": [{"seed": 1}]}
    total = fuzzing.add_counts([done, fuzzing.record_death(folder, -11)])
    assert total["readers"]["deeplabcut csv"] == counts | {"inputs": 6, "failures": 1}
    assert (total["inputs"], total["failures"], total["runs"]) == (6, 1, [{"seed": 1}])
    assert [path.read_bytes() for path in (tmp_path / "corpus").rglob("*.csv")] == [b"deadly"]


def test_a_reader_without_its_library_is_not_available() -> None:
    reader = Reader("file", lambda path: None, (b"",), (), requires="a_package_that_does_not_exist")
    assert not reader.is_available()
    assert Reader("file", lambda path: None, (b"",), ()).is_available()


def test_zero_minutes_are_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "--minutes", "0"])
    with pytest.raises(SystemExit) as end:
        fuzz_main()
    assert end.value.code == 2
    assert "--minutes must be greater than 0" in capsys.readouterr().err
