"""Test that the outputs of different videos and of still images have different names."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from selfmark.export import get_writer
from selfmark.export.output_files import (
    choose_output_paths,
    choose_unique_paths,
    normalize_name,
    number_name,
)
from selfmark.image_ref import ImageRef
from tests.export.fakes import CARD, make_predictions
from tests.images.videos import encode_video

SIZE = (64, 48)


def _predict_frames(videos: Sequence[Path]) -> list[tuple[ImageRef, tuple[int, int]]]:
    return [(ImageRef(video, frame), SIZE) for video in videos for frame in range(2)]


def test_names_stay_unique_after_suffixes_are_kept() -> None:
    paths = choose_output_paths([Path(name) for name in ("a.mp4", "a.avi", "a.mp4.mkv", "b.mkv")])
    assert [path.as_posix() for path in paths.values()] == ["a.mp4", "a.avi", "a.mp4.mkv", "b"]


def test_no_video_has_the_name_of_the_still_images() -> None:
    paths = choose_output_paths([None, *(Path(name) for name in ("images.mp4", "Images.avi"))])
    assert paths[None].as_posix() == "images"
    assert len({normalize_name(path) for path in paths.values()}) == 3


def test_names_differ_on_every_file_system() -> None:
    # The last two names look alike: é is one character in the first, and an e and an accent in the second.
    # Some file systems do not distinguish these names.
    videos = [Path(name) for name in ("Day.mp4", "day.mp4", "DAY_2.mkv", "\u00e9.mp4", "e\u0301.mp4")]
    paths = choose_output_paths(videos)
    assert len({normalize_name(path) for path in paths.values()}) == len(videos)


def test_random_names_get_different_outputs() -> None:
    rng = random.Random(0)
    words = ["a", "A", "a_2", "a.mp4", "a_2.mp4", "a.mp4.mkv", "images", "images.mp4"]
    for _ in range(300):
        videos = {
            Path(rng.choice(["x", "y", "X"]), rng.choice(words) + rng.choice([".mp4", ".mkv", ".MP4"]))
            for _ in range(rng.randint(1, 12))
        }
        sources: list[Path | None] = [*sorted(videos), None]
        paths = choose_output_paths(sources)
        assert list(paths) == sources
        assert len({normalize_name(path) for path in paths.values()}) == len(sources)


def test_many_equal_names_are_numbered() -> None:
    paths = choose_unique_paths({number: [Path("out/a")] for number in range(50)})
    assert sorted(path.as_posix() for path in paths.values()) == sorted(
        ["out/a", *(f"out/a_{number}" for number in range(2, 51))]
    )
    assert number_name(Path("b"), {"out/a"}) == Path("b")


@pytest.mark.parametrize("output_format", ["dlc", "dlc-h5", "sleap-analysis"])
def test_every_video_has_a_table_of_its_own(
    output_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in {"dlc-h5": ("pandas", "tables", "h5py"), "sleap-analysis": ("sleap_io",)}.get(
        output_format, ()
    ):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    videos = [Path(name) for name in ("a.mp4", "a.avi", "a.mp4.mkv")]
    for video in videos:
        encode_video(video, "mpeg4", frames=2)
    out = tmp_path / "out"
    out.mkdir()
    get_writer(output_format)(make_predictions(_predict_frames(videos)), CARD, out)
    assert len(list(out.iterdir())) == len(videos)


def test_every_video_has_a_folder_of_its_own_in_lightning_pose(tmp_path: Path) -> None:
    """A second video called a would be renamed a_2, but this name may belong to a third video."""
    videos = [tmp_path / name for name in ("d1/a.mp4", "d1/a_2.mp4", "d2/a.mp4", "d2/A.mp4")]
    for video in videos:
        video.parent.mkdir(exist_ok=True)
        encode_video(video, "mpeg4", frames=2)
    out = tmp_path / "out"
    out.mkdir()
    get_writer("lightning-pose")(make_predictions(_predict_frames(videos)), CARD, out)
    with open(out / "CollectedData.csv", newline="", encoding="utf-8") as handle:
        images = [row[0] for row in csv.reader(handle)][3:]
    assert len({image.casefold() for image in images}) == 2 * len(videos)
    assert all((out / image).is_file() for image in images)
