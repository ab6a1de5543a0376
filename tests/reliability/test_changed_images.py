"""Test that a run is resumed only with its own images, because stored points refer to images by number."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.errors import InputError
from selfmark.export import onnx_export
from selfmark.image_ref import ImageRef
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

    def interrupt(event: Event) -> None:
        if event["event"] == "train" and event["stage"] == "round":
            raise KeyboardInterrupt

    output = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        discover(images, output=output, preset="tiny", settings=QUICK, device="cpu", listener=interrupt)
    return output


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


def test_runs_of_earlier_versions_are_resumed_without_digests(interrupted: Path, images: Path) -> None:
    path = interrupted / "points" / "images.safetensors"
    tensors, metadata = read_tensors(path)
    assert tensors.pop("content").count_nonzero() == len(list(images.iterdir())) - 1
    write_tensors(tensors, metadata, path)
    with Image.open(images / READABLE) as image:
        image.transpose(Image.Transpose.ROTATE_180).save(images / READABLE)
    discover(output=interrupted, resume=True, device="cpu")


def test_a_digest_depends_on_the_size_the_start_and_the_end_of_a_file(tmp_path: Path) -> None:
    content = bytes(300_000)
    changed = (content, b"1" + content[1:], content[:-1] + b"1", content + b"0", b"", content[:1])
    refs = [ImageRef(tmp_path / f"{number}.mp4", number) for number in range(len(changed))]
    for ref, value in zip(refs, changed, strict=True):
        ref.path.write_bytes(value)
    digests = compute_content_digests([*refs, ImageRef(refs[0].path, 7), ImageRef(tmp_path / "missing.png")])
    assert len(digests.unique()) == len(changed) + 1
    assert digests[-2:].tolist() == [digests[0], 0]


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
