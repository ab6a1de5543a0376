"""Test splits of images: sizes, order, videos and objects of one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfmark.image_ref import ImageRef
from selfmark.images.splits import split_images

STILLS = [ImageRef(Path(f"{number:03d}.jpg")) for number in range(100)]
VIDEOS = [ImageRef(Path(name), frame=number) for number in range(20) for name in ("a.mp4", "b.mp4")]


@pytest.mark.parametrize("refs", [STILLS, VIDEOS, STILLS + VIDEOS])
def test_the_parts_are_disjoint_complete_and_in_order(refs: list[ImageRef]) -> None:
    first, second = split_images(refs, 0.25, 1_000, seed=1)
    assert sorted([*first, *second], key=refs.index) == refs
    assert first == sorted(first, key=refs.index)
    assert second == sorted(second, key=refs.index)
    assert len(second) == len(refs) // 4


def test_the_last_frames_of_each_video_are_in_the_second_part() -> None:
    _, second = split_images(VIDEOS, 0.1, 1_000, seed=0)
    assert {(ref.path.name, ref.frame) for ref in second} == {
        (name, frame) for name in ("a.mp4", "b.mp4") for frame in (18, 19)
    }


def test_extracted_frames_are_split_like_a_video() -> None:
    frames = [ImageRef(Path(f"{number}.png"), clip=("clip.mp4", number)) for number in (3, 1, 2, 0)]
    _, second = split_images(frames, 0.25, 10, seed=0)
    assert [ref.clip for ref in second] == [("clip.mp4", 3)]


def test_objects_of_one_image_stay_together() -> None:
    pairs = [ImageRef(ref.path, box=(left, 0.0, 5.0, 5.0)) for ref in STILLS for left in (0.0, 9.0)]
    first, second = split_images(pairs, 0.3, 1_000, seed=2)
    assert not {ref.path for ref in first} & {ref.path for ref in second}
    assert len(second) == 60


def test_the_second_part_is_limited_and_random() -> None:
    _, second = split_images(STILLS, 0.5, 7, seed=0)
    assert len(second) == 7
    assert second != split_images(STILLS, 0.5, 7, seed=1)[1]
    assert second == split_images(STILLS, 0.5, 7, seed=0)[1]


def test_a_single_image_stays_in_the_first_part() -> None:
    assert split_images(STILLS[:1], 0.5, 10, seed=0) == (STILLS[:1], [])
