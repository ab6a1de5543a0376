"""Test unusual and hostile file names: no code in them runs, and CSV and COCO files have the right names."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from selfmark.demo.scene import Scene
from selfmark.discovery import discover
from selfmark.errors import InputError
from selfmark.images.sources import list_images
from selfmark.run.folder import Run
from tests.browser import visit
from tests.conftest import QUICK, selfmark

ATTACK = "<img src=x onerror=window.attacked=1>"
NAMES = (
    f"{ATTACK}.png",
    "\"><svg onload='window.attacked=1'>.png",
    "line\nbreak.png",
    "comma, \"quotes\" and 'more'.png",
    "=HYPERLINK(1).png",
    "[red]markup[bold].png",
    "\x1b[31mcolor.png",
    "{{ 7 * 7 }}.png",
    "emoji \N{CAT FACE}\N{COMBINING ACUTE ACCENT}.png",
    " leading and trailing .png",
    "%s %d $HOME `true` \\n.png",
    "é" * 125 + ".png",  # 254 bytes; the maximum is 255
)


@pytest.fixture(scope="module")
def hostile(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a hostile name; its images have hostile names too, and one of them is broken."""
    folder = tmp_path_factory.mktemp("names") / ATTACK
    folder.mkdir()
    for name, image in zip(NAMES, scene.images, strict=False):
        Image.fromarray(image).save(folder / name)
    (folder / f"broken {ATTACK}.png").write_bytes(b"nothing")
    return folder


def test_images_with_hostile_names_are_found(hostile: Path) -> None:
    assert {ref.path.name for ref in list_images([hostile])} == {*NAMES, f"broken {ATTACK}.png"}


def test_tables_and_coco_files_have_the_right_names(hostile: Path, quick_run: Path, tmp_path: Path) -> None:
    expected = {str(hostile / name) for name in NAMES}
    assert selfmark("predict", quick_run, hostile, "-o", tmp_path, "--device", "cpu") == 0
    with open(tmp_path / "landmarks.csv", newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert {row["image"] for row in rows} == expected
    assert len(rows) == 4 * len(NAMES)
    assert selfmark("predict", quick_run, hostile, "-o", tmp_path, "--format", "coco") == 0
    content = json.loads((tmp_path / "landmarks.json").read_text(encoding="utf-8"))
    assert {image["file_name"] for image in content["images"]} == expected


@pytest.mark.parametrize("output_format", ["coco-results", "cvat", "dlc", "label-studio", "ultralytics"])
def test_writers_of_other_formats_do_not_crash_on_hostile_names(
    output_format: str, hostile: Path, quick_run: Path, tmp_path: Path
) -> None:
    assert selfmark("predict", quick_run, hostile, "-o", tmp_path, "--format", output_format) in (0, 2)


def test_no_code_runs_in_the_report(browser: Any, hostile: Path, tmp_path: Path) -> None:
    """The content security policy is off, so that only escaping protects the page."""
    output = tmp_path / ATTACK
    discover(hostile, output=output, preset="tiny", settings=QUICK | {"M": 6}, device="cpu")
    assert any(event["event"] == "skipped" for event in Run.open(output).events())
    page = output / "report" / "index.html"
    assert ATTACK not in page.read_text(encoding="utf-8")
    with visit(browser, page, bypass_csp=True) as visited:
        assert not visited.was_attacked()
        assert visited.find_problems() == []


def test_names_that_are_not_utf8_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "good.png")
    os.rename(tmp_path / "good.png", os.fsencode(tmp_path) + b"/\xff\xfe.png")
    with pytest.raises(InputError, match=r"is not valid UTF-8; rename it"):
        list_images([tmp_path])
    assert selfmark("discover", tmp_path, "-o", tmp_path / "run") == 2
    assert "\\udcff" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["folder", "argument", "list", "COCO"])
def test_names_that_the_locale_cannot_encode_are_refused_with_the_cure(source: str, tmp_path: Path) -> None:
    """The name is valid UTF-8, so it is the locale that must change."""
    name = "\u00fcn\u00efcode-\u65e5.png"
    Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "list.txt").write_text(f"{name}\n", encoding="utf-8")
    images = [{"id": 1, "file_name": name}]
    (tmp_path / "set.json").write_text(json.dumps({"images": images}))
    item = {"folder": ".", "argument": name, "list": "list.txt", "COCO": "set.json"}[source]
    command = [sys.executable, "-m", "selfmark", "predict", "demo", item, "-o", "out"]
    ascii_locale = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    refused = subprocess.run(
        command, cwd=tmp_path, env=ascii_locale, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    error = " ".join(refused.stderr.split())
    assert "has characters that the locale (ascii) does not have" in error
    assert error.endswith("set the environment variable PYTHONUTF8=1")
    assert "\\xfcn\\xefcode-\\u65e5.png" in error.replace(" ", "")
    assert not (tmp_path / "out").exists()
    if source == "list":
        cured = subprocess.run(command, cwd=tmp_path, env=ascii_locale | {"PYTHONUTF8": "1"}, check=False)
        assert cured.returncode == 0


@pytest.mark.parametrize("name", ["a" * 300, "a\0b.png", "x" * 300 + ".png"])
def test_invalid_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        list_images([tmp_path / name])
    (tmp_path / "list.txt").write_text(f"{name}\n")
    with pytest.raises(InputError, match="line 1: there is no file"):
        list_images([tmp_path / "list.txt"])
    (tmp_path / "set.json").write_text(json.dumps({"images": [{"id": 1, "file_name": name}]}))
    with pytest.raises(InputError):
        list_images([tmp_path / "set.json"])


def test_a_null_character_in_any_name_of_a_list_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    for name, frame in (("b\0.jpg", None), ("b\0.mp4", 1)):
        images = [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": name, "frame": frame}]
        (tmp_path / "set.json").write_text(json.dumps({"images": images}))
        with pytest.raises(InputError, match=r"b\\x00.* has a null character"):
            list_images([tmp_path / "set.json"])
    with pytest.raises(InputError, match="there is no file"):
        list_images(["a\0/*.png"])


def test_messages_contain_no_terminal_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert selfmark("discover", tmp_path / "\x1b[2J[/red]\n.png", "-o", tmp_path / "run") == 2
    message = capsys.readouterr().err
    assert "\x1b[2J" not in message
    assert "\\x1b[2J[/red]\\n.png" in message
