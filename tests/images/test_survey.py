"""Test the survey of images: what it counts, and how it describes the counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch

from selfmark.config import Images
from selfmark.image_ref import ImageRef
from selfmark.images.store import ImageStore, load_store
from selfmark.images.survey import choose_stride, describe_survey, survey_images


def _write_image(path: Path, width: int, height: int, seed: int) -> ImageRef:
    coarse = np.random.default_rng(seed).integers(0, 255, (5, 5, 3), dtype=np.uint8)
    cv2.imwrite(str(path), cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC))
    return ImageRef(path)


def _load_images(refs: list[ImageRef], size: int = 64) -> ImageStore:
    return load_store(refs, Images(size=size), 1.0, None)


def test_sizes_copies_and_unreadable_images_are_counted(tmp_path: Path) -> None:
    refs = [_write_image(tmp_path / f"{seed}.png", 80 + 40 * seed, 60, seed) for seed in range(3)]
    refs.append(_write_image(tmp_path / "copy.png", 80, 60, 0))
    (tmp_path / "broken.png").write_text("not an image")
    survey = survey_images(_load_images([*refs, ImageRef(tmp_path / "broken.png")]))
    assert (survey.images, survey.files, survey.videos, survey.skipped) == (4, 4, 0, 1)
    assert survey.sizes == ((80, 60), (160, 60))
    assert (survey.copies, survey.near, survey.boxed, survey.cut_off) == (1, 0, 0, 0)
    first, skipped, copies = describe_survey(survey)
    assert first.startswith("4 images from 4 files, 80 x 60 to 160 x 60 pixels")
    assert "squares of 80 to 160 pixels, resized to 64 x 64" in first
    assert skipped.startswith("1 image cannot be read and is left out; the first is")
    assert "broken.png" in skipped
    assert copies.index("copy.png") < copies.index("0.png")


def test_stretched_crops_are_not_called_squares(tmp_path: Path) -> None:
    refs = [_write_image(tmp_path / f"{width}.png", width, 60, width) for width in (80, 120)]
    store = load_store(refs, Images(size=64, aspect="stretched"), 1.0, None)
    (sentence,) = describe_survey(survey_images(store))
    assert "squares" not in sentence
    assert "whose longer sides have 80 to 120 pixels, stretched to 64 x 64" in sentence


def test_sentences_about_one_image_are_in_the_singular(tmp_path: Path) -> None:
    box = (0.0, 0.0, 20.0, 20.0)
    store = _load_images([ImageRef(_write_image(tmp_path / "a.png", 80, 60, 0).path, box=box)])
    survey = replace(survey_images(store), copies=1, near=2, first_copy=("b", "a"), boxed=1, cut_off=1)
    total, copies, small, cut_off = describe_survey(survey)
    assert total.startswith("1 object from 1 file, 80 x 60 pixels;")
    assert copies.startswith(
        "1 image is a copy of another and 2 images are almost the same as others (for example, b repeats a)"
    )
    assert small.startswith("1 of 1 object is smaller than 32 pixels and shows few details")
    assert cut_off == "1 of 1 box reaches the border of the image: this object may be cut off"


def test_objects_at_the_border_count_as_cut_off_unless_all_images_have_the_same_box(tmp_path: Path) -> None:
    path = _write_image(tmp_path / "image.png", 100, 80, 0).path
    boxes = [
        (10.0, 10.0, 30.0, 30.0),
        (0.0, 20.0, 30.0, 30.0),
        (60.0, 40.0, 40.0, 20.0),
        (5.0, 50.0, 9.0, 40.0),
    ]
    survey = survey_images(_load_images([ImageRef(path, box=box) for box in boxes]))
    assert (survey.boxed, survey.cut_off) == (4, 3)
    assert "3 of 4 boxes reach the border" in describe_survey(survey)[-1]
    others = [
        ImageRef(_write_image(tmp_path / f"{seed}.png", 100, 80, seed).path, box=boxes[1]) for seed in (1, 2)
    ]
    assert survey_images(_load_images(others)).boxed == 0, "the same box in every image is a crop"


def _build_video_store(thumbnails: np.ndarray) -> ImageStore:
    count = len(thumbnails)
    return ImageStore(
        pixels=torch.zeros(count, 3, 8, 8, dtype=torch.uint8),
        refs=tuple(ImageRef(Path("a.mp4"), frame) for frame in range(count)),
        sizes=np.full((count, 2), 8),
        regions=np.tile([0.0, 0.0, 8.0, 8.0], (count, 1)),
        bounds=np.zeros((count, 4), np.float32),
        video=np.zeros(count, np.int64),
        frame=np.arange(count),
        track=np.full(count, -1),
        skipped=(),
    )


def test_the_stride_keeps_frames_that_differ() -> None:
    # A bright bar moves by one pixel every five frames.
    thumbnails = np.zeros((2_000, 32, 32), np.float32)
    for frame in range(2_000):
        thumbnails[frame, :, (frame // 5) % 32] = 255
    assert choose_stride(thumbnails, _build_video_store(thumbnails)) == 5
    assert choose_stride(thumbnails[::5], _build_video_store(thumbnails[::5])) == 1
    identical = np.zeros((2_000, 32, 32), np.float32)
    assert choose_stride(identical, _build_video_store(identical)) == 10, "at least 200 frames are kept"
    assert choose_stride(identical[:100], _build_video_store(identical[:100])) == 1
