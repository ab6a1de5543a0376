"""Test the options that commands share: their parsing, and old names that still work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfmark.cli.entry import app
from selfmark.cli.options import RENAMED_OPTIONS, parse_landmark_count, parse_settings, rename_options
from selfmark.errors import InputError
from tests.conftest import selfmark


def test_old_option_names_are_replaced_up_to_the_double_dash() -> None:
    given = ["--normaliser", "box", "--most=5", "--most", "--", "--normaliser"]
    assert rename_options(given) == [
        "--normalizer",
        "box",
        "--max-images=5",
        "--max-images",
        "--",
        "--normaliser",
    ]
    assert rename_options(["--mostly", "x=--most"]) == ["--mostly", "x=--most"]


def test_old_options_work_and_are_not_listed(quick_run: Path, labeled: Path, tmp_path: Path) -> None:
    run = shutil.copytree(quick_run, tmp_path / "run")
    arguments = ("evaluate", run, labeled / "images", "--labels", labeled / "labels.json")
    for option, folder in (("--normaliser", "old"), ("--normalizer", "new")):
        output = tmp_path / folder
        assert selfmark(*arguments, option, "side", "-o", output, "--set=draws=1", "--device=cpu") == 0
    old_metrics, new_metrics = (
        json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("old", "new")
    )
    assert old_metrics["normaliser"] == new_metrics["normaliser"] == "side"
    for command in ("evaluate", "map", "name"):
        text = CliRunner().invoke(app, [command, "--help"]).output
        assert not any(option in text for option in RENAMED_OPTIONS)


def test_settings_are_name_value_pairs() -> None:
    assert parse_settings(["K=3", "flip.test=false", "a=b=c"]) == {"K": "3", "flip.test": "false", "a": "b=c"}
    assert parse_settings(None) == {}
    with pytest.raises(InputError, match="--set takes NAME=VALUE, not 'K'"):
        parse_settings(["K"])


@pytest.mark.parametrize(("text", "count"), [("7", 7), ("auto", "auto"), (None, None)])
def test_valid_landmark_counts_are_parsed(text: str | None, count: object) -> None:
    assert parse_landmark_count(text) == count


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "many", ""])
def test_invalid_landmark_counts_are_rejected(text: str) -> None:
    with pytest.raises(InputError, match="-k takes a number of landmarks"):
        parse_landmark_count(text)
