"""Test views of the same frames: frames are decoded once, and crops equal those of views read alone."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.config import Images
from selfmark.image_ref import Box, ImageRef
from selfmark.images import store as store_module
from selfmark.images.shared_reading import load_shared_store, share_reading
from selfmark.images.store import ImageStore, load_store
from tests.images.videos import encode_changing_video, encode_video

LEFT, RIGHT = (0.0, 0.0, 32.0, 48.0), (32.0, 0.0, 32.0, 40.0)
IMAGES = Images(size=32, aspect="stretched", margin=0.0)
GIGABYTES = 1.0


@pytest.fixture
def frames(tmp_path: Path) -> list[ImageRef]:
    """Frames of a video; the last does not exist."""
    video = encode_video(tmp_path / "video.mp4", "mpeg4", frames=12, noise=40)
    return [ImageRef(video, frame) for frame in (0, 3, 6, 9, 50)]


@pytest.fixture
def decoded_videos(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record which videos are decoded."""
    paths: list[Path] = []
    read_frames = store_module.read_frames

    def read(path: Path, numbers: Any) -> Any:
        paths.append(path)
        return read_frames(path, numbers)

    monkeypatch.setattr(store_module, "read_frames", read)
    return paths


def crop_to(frames: list[ImageRef], box: Box) -> list[ImageRef]:
    return [replace(ref, box=box) for ref in frames]


def assert_equal(actual: ImageStore, expected: ImageStore) -> None:
    for field in fields(ImageStore):
        ours, theirs = getattr(actual, field.name), getattr(expected, field.name)
        if isinstance(theirs, tuple):
            assert ours == theirs
        else:
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_two_views_are_decoded_once_and_equal_views_that_are_read_alone(
    frames: list[ImageRef], decoded_videos: list[Path]
) -> None:
    expected = [load_store(crop_to(frames, box), IMAGES, GIGABYTES, None) for box in (LEFT, RIGHT)]
    assert len(expected[0].skipped) == 1, "one frame does not exist"
    decoded_videos.clear()
    reports: list[tuple[int, int]] = []
    with share_reading([LEFT, RIGHT]):
        for box, store in zip((LEFT, RIGHT), expected, strict=True):
            refs = crop_to(frames, box)
            shared = load_shared_store(
                refs, IMAGES, GIGABYTES, None, lambda done, total: reports.append((done, total))
            )
            assert_equal(shared, store)
            # The verification of a view loads a part of the view's images again.
            part = load_shared_store(refs[1:], IMAGES, GIGABYTES, None)
            assert_equal(part, load_store(refs[1:], IMAGES, GIGABYTES, None))
    assert len(decoded_videos) == 1 + 2, "once for both views together, and twice for the comparisons"
    assert reports[-1] == (5, 5)


def test_views_are_read_alone_if_sharing_is_impossible(
    frames: list[ImageRef], decoded_videos: list[Path], tmp_path: Path
) -> None:
    with share_reading([LEFT, RIGHT]):  # too little memory for both views
        for box in (LEFT, RIGHT):
            load_shared_store(crop_to(frames, box), IMAGES, 1e-9, tmp_path)
    assert len(decoded_videos) == 2
    decoded_videos.clear()
    with share_reading([LEFT, RIGHT]):
        load_shared_store(crop_to(frames, LEFT), IMAGES, GIGABYTES, None)
        load_shared_store(crop_to(frames[:2], RIGHT), replace(IMAGES, size=16), GIGABYTES, None)
        other_refs = [replace(frames[0], frame=1, box=RIGHT)]
        assert load_shared_store(other_refs, IMAGES, GIGABYTES, None).refs == tuple(other_refs)
    assert len(decoded_videos) == 3, "other settings and a new frame are not shared"
    load_shared_store(crop_to(frames, RIGHT), IMAGES, GIGABYTES, None)
    assert len(decoded_videos) == 4, "outside the context, nothing is kept"


def test_a_view_outside_some_frames_is_skipped_only_there(tmp_path: Path, decoded_videos: list[Path]) -> None:
    sizes = [(64, 48), (32, 48), (32, 48), (64, 48)]
    video = encode_changing_video(tmp_path / "video.mkv", sizes)
    frames = [ImageRef(video, frame) for frame in (0, 1, 2, 3, 50)]
    expected = [load_store(crop_to(frames, box), IMAGES, GIGABYTES, None) for box in (LEFT, RIGHT)]
    assert [item.name.rpartition("#")[2] for item in expected[1].skipped] == ["1", "2", "50"]
    decoded_videos.clear()
    with share_reading([LEFT, RIGHT]):
        for box, store in zip((LEFT, RIGHT), expected, strict=True):
            assert_equal(load_shared_store(crop_to(frames, box), IMAGES, GIGABYTES, None), store)
    assert len(decoded_videos) == 1
