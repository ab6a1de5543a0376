"""Test that a run is resumed only with its own images, because stored points refer to images by number."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from PIL import Image

from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.errors import InputError
from selfmark.export import onnx_export
from selfmark.image_ref import ImageRef
from selfmark.images.decode import compute_content_digest, compute_earlier_digest
from selfmark.images.run_images import compute_content_digests, load_run_images
from selfmark.model.card import read_card
from selfmark.refinement import refine_run
from selfmark.report import run_report
from selfmark.run.folder import Event, Run
from selfmark.run.tensor_files import read_tensors, write_tensors
from tests.conftest import QUICK, selfmark

pytestmark = pytest.mark.usefixtures("without_report")
UNREADABLE, READABLE = "003.png", "010.png"


@pytest.fixture
def images(photos: Path, tmp_path: Path) -> Path:
    """Return a folder with copies of the photos, one of which cannot be read."""
    folder = Path(shutil.copytree(photos, tmp_path / "images"))
    (folder / UNREADABLE).write_bytes((photos / UNREADABLE).read_bytes()[:100])
    return folder


@pytest.fixture
def interrupted(images: Path, tmp_path: Path) -> Path:
    """Return a run that was interrupted in its first round."""
    interrupt_in_first_round(images, tmp_path / "run")
    return tmp_path / "run"


def interrupt_in_first_round(images: Path, output: Path) -> None:
    def interrupt(event: Event) -> None:
        if event["event"] == "train" and event["stage"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        discover(images, output=output, preset="tiny", settings=QUICK, device="cpu", listener=interrupt)


def test_a_run_is_not_resumed_with_other_images(
    interrupted: Path, images: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def assert_refused(message: str) -> None:
        assert selfmark("discover", "-o", interrupted, "--resume", "--device", "cpu") == 2
        assert message in " ".join(capsys.readouterr().err.split())

    damaged = (images / UNREADABLE).read_bytes()
    shutil.copy(photos / UNREADABLE, images)
    assert_refused("could not be read when the run started, but can be read now")
    # One more image can be read, and another one is missing, so the number of images is the same as before.
    (images / READABLE).unlink()
    assert_refused("could not be read when the run started, but can be read now")
    (images / UNREADABLE).write_bytes(damaged)
    assert_refused("could be read when the run started, but cannot be read now")
    Image.new("RGB", (50, 40)).save(images / READABLE)
    assert_refused("had 64 x 64 pixels when the run started and has 50 x 40 pixels now")

    shutil.copy(photos / READABLE, images)
    discover(output=interrupted, resume=True, device="cpu")
    assert Run.open(interrupted).model_folder.exists()


def test_a_run_is_not_resumed_with_images_of_other_content(
    interrupted: Path, images: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The images have the same sizes as before, but show something else."""
    path = images / READABLE
    with Image.open(path) as image:
        image.transpose(Image.Transpose.ROTATE_180).save(path)
    assert selfmark("discover", "-o", interrupted, "--resume", "--device", "cpu") == 2
    (error,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert error.startswith(f"selfmark: the content of {path} has changed since the run started: restore")

    shutil.copy(photos / READABLE, images)  # A copy has another time of modification, which does not matter.
    (images / READABLE).touch()
    discover(output=interrupted, resume=True, device="cpu")


@pytest.mark.parametrize("size", [300, 1000])
def test_a_change_in_the_middle_of_a_file_is_noticed(
    size: int, images: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uncompressed images with a plain border have the same size, start and end, whatever they show."""
    for path in images.iterdir():
        path.unlink()
    for path in sorted(photos.iterdir())[:10]:
        framed = Image.new("RGB", (size, size), "white")
        with Image.open(path) as image:
            framed.paste(image.resize((size // 2, size // 2)), (size // 4, size // 4))
        framed.save(images / f"{path.stem}.bmp")
    changed = images / "004.bmp"
    before = digest_ends(changed)
    run = tmp_path / "run"
    interrupt_in_first_round(images, run)
    with Image.open(changed) as image:
        image.transpose(Image.Transpose.ROTATE_180).save(changed)
    assert digest_ends(changed) == before
    assert selfmark("discover", "-o", run, "--resume", "--device", "cpu") == 2
    assert f"the content of {changed} has changed since the run started" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["without digests", "with digests of the ends of files"])
def test_runs_of_earlier_versions_are_resumed(version: str, interrupted: Path, images: Path) -> None:
    path = interrupted / "points" / "images.safetensors"
    tensors, metadata = read_tensors(path)
    assert tensors.pop("digest").count_nonzero() == len(list(images.iterdir())) - 1
    run = Run.open(interrupted)
    if version == "without digests":
        with Image.open(images / READABLE) as image:
            image.transpose(Image.Transpose.ROTATE_180).save(images / READABLE)
    else:
        tensors["content"] = compute_content_digests(run.refs(), digest_ends)
        tensors["content"][sorted(path.name for path in images.iterdir()).index(UNREADABLE)] = 0
    write_tensors(tensors, metadata, path)
    if version != "without digests":
        content = (images / READABLE).read_bytes()
        with Image.open(images / READABLE) as image:
            image.transpose(Image.Transpose.ROTATE_180).save(images / READABLE)
        with pytest.raises(InputError, match="has changed since the run started"):
            discover(output=interrupted, resume=True, device="cpu")
        (images / READABLE).write_bytes(content)
    discover(output=interrupted, resume=True, device="cpu")


def digest_ends(path: Path) -> int:
    """Return the digest that earlier versions stored, by their rule."""
    content = path.read_bytes()
    digest = hashlib.sha256(f"{len(content)} ".encode() + content[: 1 << 16] + content[-(1 << 16) :]).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def test_a_digest_depends_on_the_size_and_on_all_parts_of_a_file(tmp_path: Path) -> None:
    def digest(content: bytes) -> int:
        path = tmp_path / "file"
        path.write_bytes(content)
        assert compute_earlier_digest(path) == digest_ends(path)
        return compute_content_digest(path)

    small, large = bytes(1 << 20), bytes(5_000_000)
    changed = [small, small + b"0", small[:-1] + b"1", b"1" + small[1:], b"", small[:1], large, large + b"0"]
    changed += [small[:at] + b"1" + small[at + 1 :] for at in (70_000, 500_000, 900_000)]
    assert len({digest(content) for content in changed}) == len(changed)
    # In large files, a change is noticed wherever it is if it is as long as the distance of two blocks.
    unchanged, length = digest(large), len(large) // 32
    for at in range(0, len(large) - length, 200_000):
        assert digest(large[:at] + b"1" * length + large[at + length :]) != unchanged


def test_a_missing_file_and_a_repeated_file_have_digests(tmp_path: Path) -> None:
    refs = [ImageRef(tmp_path / "a.mp4", 0), ImageRef(tmp_path / "a.mp4", 7), ImageRef(tmp_path / "no.png")]
    refs[0].path.write_bytes(b"a")
    first, second, missing = compute_content_digests(refs).tolist()
    assert first == second != missing == 0


def test_a_foreign_list_of_images_is_refused(interrupted: Path) -> None:
    path = interrupted / "images.json"
    path.write_text(path.read_text().replace(READABLE, "missing.png"))
    with pytest.raises(InputError, match=r"missing\.png could be read when the run started"):
        discover(output=interrupted, resume=True, device="cpu")


def test_images_of_the_same_names_in_another_folder_are_refused(
    quick_run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paths of a run may be relative to the folder in which it was started."""
    run = Run.open(Path(shutil.copytree(quick_run, tmp_path / "run")))
    path = run.path / "images.json"
    path.write_text(path.read_text().replace(str(photos), "images"))
    for name, size in (("own", None), ("other", (200, 50))):
        folder = tmp_path / name / "images"
        shutil.copytree(photos, folder)
        for image in folder.iterdir() if size else ():
            Image.new("RGB", size).save(image)
    monkeypatch.chdir(tmp_path / "own")
    refs = run.refs()[:3]
    assert load_run_images(run, refs, run.config.images).refs == tuple(refs)
    monkeypatch.chdir(tmp_path / "other")
    message = "had 64 x 64 pixels when the run started and has 200 x 50 pixels now.* paths are relative"
    for use in (
        lambda: load_run_images(run, refs, run.config.images),
        lambda: onnx_export._load_sample(run.path, read_card(run.model_folder)),
        lambda: refine_run._load_kept_images(run.path, [], run.config, Detector.load(run.path)),
        lambda: run_report._choose_images(run, None),
    ):
        with pytest.raises(InputError, match=message):
            use()
