"""Test that a run is resumed only with its own images, because its stored points refer to them by row."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from selfmark.discovery import discover
from selfmark.errors import InputError
from selfmark.run.folder import Event, Run
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
    def resume(message: str) -> None:
        assert selfmark("discover", "-o", interrupted, "--resume", "--device", "cpu") == 2
        assert message in " ".join(capsys.readouterr().err.split())

    damaged = (images / UNREADABLE).read_bytes()
    shutil.copy(photos / UNREADABLE, images)
    resume("could not be read when the run started, but can be read now")
    # One image more can be read and another image is missing, so the number of images is the same as before.
    (images / READABLE).unlink()
    resume("could not be read when the run started, but can be read now")
    (images / UNREADABLE).write_bytes(damaged)
    resume("could be read when the run started, but cannot be read now")
    Image.new("RGB", (50, 40)).save(images / READABLE)
    resume("had 64 x 64 pixels when the run started and has 50 x 40 pixels now")

    shutil.copy(photos / READABLE, images)
    discover(output=interrupted, resume=True, device="cpu")
    assert Run.open(interrupted).model_folder.exists()


def test_a_foreign_list_of_images_is_refused(interrupted: Path) -> None:
    path = interrupted / "images.json"
    path.write_text(path.read_text().replace(READABLE, "missing.png"))
    with pytest.raises(InputError, match=r"missing\.png could be read when the run started"):
        discover(output=interrupted, resume=True, device="cpu")
