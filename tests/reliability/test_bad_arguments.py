"""Test that nonsensical paths, numbers and files are refused immediately, with one sentence."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from selfmark.cli import entry
from selfmark.comparison.comparison_plan import parse_duration
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.box_matching import _read_size
from selfmark.images.decode import UnreadableImage, read_image_size
from selfmark.images.input_files import read_text_input, require_readable
from selfmark.multiview.view_boxes import parse_views, require_views_inside_all
from selfmark.tracking.regions import parse_crop
from tests.conftest import read_error_line, selfmark

TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"


def test_messages_of_system_errors_are_one_sentence(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test a name that is too long for the file system, and a disk error that no function handles."""
    assert selfmark("discover", photos, "-o", tmp_path / "run", "--start-from", "a" * 5000) == 2
    assert "File name too long" in read_error_line(capsys)

    def fail(**options: object) -> None:
        raise OSError(5, "Input/output error", "/data/\x1b[2Ja.png")

    monkeypatch.setattr(entry, "app", fail)
    assert selfmark("doctor") == 2
    assert read_error_line(capsys) == "selfmark: /data/\\x1b[2Ja.png: Input/output error"


def test_a_closed_output_pipe_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "selfmark", "--version"]
    finished = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (1, "")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_special_files_are_refused_instead_of_read(kind: str, photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for read in (require_readable, read_text_input):
        with pytest.raises(InputError, match="not a regular file"):
            read(path)
    assert selfmark("compare", photos, "--labels", path, "-o", tmp_path / "compare") == 2
    assert selfmark("predict", TOY_DETECTOR, photos, "--boxes", path, "-o", tmp_path / "out") == 2


def test_line_ends_become_newlines_and_byte_order_marks_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfa.png\r\nb.png\rc.png\n")
    assert read_text_input(path) == path.read_text(encoding="utf-8-sig") == "a.png\nb.png\nc.png\n"


@pytest.mark.parametrize("text", ["nan", "inf", "1e300", "5"])
def test_trail_requires_draw_and_a_valid_length(
    text: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = [] if text == "5" else ["--draw"]
    output = tmp_path / "out"
    assert selfmark("predict", TOY_DETECTOR, photos, "-o", output, "--trail", text, *drawn) == 2
    assert "--trail" in read_error_line(capsys)
    assert not output.exists()


def test_crops_views_and_time_budgets_have_limits() -> None:
    for text in ("0,0,1e-300,5", "0,0,0.5,0.5"):
        with pytest.raises(InputError):
            parse_crop(text)
        with pytest.raises(InputError):
            parse_views([f"a={text}", "b=50,50,9,9"])
    for budget in ("9" * 400 + "h", "1001h", "0.0s"):
        with pytest.raises(InputError):
            parse_duration(budget)
    assert parse_duration("1000h") == 3.6e6


@pytest.mark.parametrize(("option", "value"), [("--seed", "9" * 50), ("-k", "9" * 20), ("--set", "M=0")])
def test_settings_of_a_comparison_are_checked_before_any_method_starts(
    option: str, value: str, labeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, labels = tmp_path / "out", labeled / "labels.json"
    assert selfmark("compare", labeled / "images", "--labels", labels, "-o", output, option, value) == 2
    assert "must be" in read_error_line(capsys)
    assert not output.exists()


def _write_png(path: Path, side: int) -> None:
    """Write a PNG whose header claims `side` x `side` pixels, with the data of one row."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(3 * side + 1))), chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def test_a_decompression_bomb_is_refused_without_decoding_it(tmp_path: Path) -> None:
    """Pillow decodes a PNG to find its orientation: 10,000 megapixels would take 30 GB."""
    bomb = tmp_path / "bomb.png"
    _write_png(bomb, 100_000)
    with pytest.raises(UnreadableImage, match="megapixels"):
        read_image_size(bomb)
    views = parse_views(["a=0,0,5,5", "b=5,5,5,5"])
    # This check skips unreadable files, which are reported later.
    require_views_inside_all(views, [ImageRef(bomb)])
    with pytest.raises(InputError, match="cannot be read"):
        _read_size(bomb)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--crop", "0,0,inf,1"], "--crop takes X,Y,WIDTH,HEIGHT in pixels, not '0,0,inf,1'"),
        (["--crop", "0,0,1e300,1e300"], "--crop takes X,Y,WIDTH,HEIGHT in pixels, not '0,0,1e300,1e300'"),
        (["--find-animals", "9" * 30], "the number of animals must be 1 to 100, not " + "9" * 30),
        (["--find-animals", "1000000"], "the number of animals must be 1 to 100, not 1000000"),
        (["--device", "meta"], "unknown device 'meta': use auto, cpu or cuda"),
        ([""], "an input is empty; give a file or folder (use . for the current folder)"),
    ],
)
def test_invalid_regions_devices_and_inputs_are_refused(
    arguments: list[str], sentence: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert selfmark("predict", TOY_DETECTOR, photos, *arguments, "-o", output) == 2
    assert read_error_line(capsys) == f"selfmark: {sentence}"
    assert not output.exists()


def test_a_number_of_landmarks_with_thousands_of_digits_is_refused(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selfmark("discover", photos, "-k", "9" * 5_000, "-o", tmp_path / "run") == 2
    assert f"not '{'9' * 40}'" in read_error_line(capsys)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("WORLD_SIZE", "abc", "the environment variable WORLD_SIZE must be a number, not 'abc'"),
        ("WORLD_SIZE", "2", "WORLD_SIZE asks for 2 processes, but RANK is not set"),
        ("TORCHELASTIC_RESTART_COUNT", "x", "TORCHELASTIC_RESTART_COUNT must be a number, not 'x'"),
    ],
)
def test_invalid_torchrun_variables_are_refused(
    name: str,
    value: str,
    sentence: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert selfmark("discover", photos, "-k", 4, "-o", tmp_path / "run", "--device", "cpu") == 2
    assert sentence in read_error_line(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", [",", " ", " , ,"])
def test_an_empty_list_of_methods_does_not_mean_all_methods(
    text: str, labeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, labels = tmp_path / "out", labeled / "labels.json"
    images = labeled / "images"
    assert selfmark("compare", images, "--labels", labels, "-o", output, "--methods", text) == 2
    assert f"'{text}' names no method; choose from self-training, " in read_error_line(capsys)
    assert not output.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["discover", "NAME", "-o", "OUTPUT"],
        ["discover", "PHOTOS", "-o", "OUTPUT", "--set", "NAME=1"],
        ["discover", "PHOTOS", "-o", "OUTPUT", "--method", "NAME"],
        ["predict", "NAME", "PHOTOS", "-o", "OUTPUT"],
        ["predict", "TOY", "PHOTOS", "-o", "OUTPUT", "--format", "NAME"],
        ["predict", "TOY", "PHOTOS", "-o", "OUTPUT", "--boxes", "NAME"],
        ["predict", "TOY", "PHOTOS", "-o", "OUTPUT", "--device", "NAME"],
        ["compare", "PHOTOS", "--labels", "LABELS", "-o", "OUTPUT", "--methods", "NAME"],
        ["compare", "PHOTOS", "--labels", "NAME", "-o", "OUTPUT"],
        ["evaluate", "NAME", "PHOTOS"],
        ["doctor", "--NAME"],
    ],
)
@pytest.mark.parametrize("name", ["a" * 100_000, "a b " * 25_000])
def test_messages_do_not_repeat_very_long_arguments(
    name: str,
    arguments: list[str],
    photos: Path,
    labeled: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = {
        "NAME": name,
        "OUTPUT": str(tmp_path / "out"),
        "PHOTOS": str(photos),
        "TOY": str(TOY_DETECTOR),
        "LABELS": str(labeled / "labels.json"),
    }
    given = [values.get(item, item.replace("NAME", name)) for item in arguments]
    assert selfmark(*given) == 2
    assert len(read_error_line(capsys)) < 2_500


def test_shortened_messages_keep_the_end_of_names_and_sentences() -> None:
    error = InputError(f"there is no file '{'a' * 5000}.png'; check the path")
    assert str(error).endswith("aaa.png'; check the path")
    assert len(str(error)) < 600
    assert error.args[0].count("a") > 5000


def test_a_deleted_current_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        assert selfmark("doctor") == 2
    finally:
        os.chdir(tmp_path)
    assert "the current folder no longer exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-k", "5", "--set", "K=7"], "--set K=7 contradicts the option for this setting, which is 5"),
        (["-k", "auto", "--set", "K=3"], "--set K=3 contradicts"),
        (["--seed", "3", "--set", "seed=5"], "--set seed=5 contradicts"),
        (["--temporal", "--set", "temporal.enabled=false"], "which is True"),
        (["--no-verify", "--set", "verification.enabled=true"], "which is False"),
        (["--detector", "orb", "--set", "keypoints.detector=sift"], "which is orb"),
        (["--detector", "orb", "--points", "POINTS"], "--detector orb has no effect with --points"),
    ],
)
def test_contradictory_options_of_discover_are_refused(
    options: list[str], message: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "points.csv").write_text("image,x,y\n000.png,3,4\n")
    given = [str(tmp_path / "points.csv") if word == "POINTS" else word for word in options]
    assert selfmark("discover", photos, "-o", tmp_path / "run", *given) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
