"""Test that boxes of files that state other image sizes than the images have are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image

from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.images.stated_sizes import read_size
from selfmark.tracking.regions import Regions, locate_objects
from tests.conftest import selfmark

BOX = [4, 6, 20, 16]


def _save_photos(folder: Path, count: int, size: tuple[int, int] = (96, 80), orientation: int = 1) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    for number in range(count):
        Image.new("RGB", size).save(folder / f"{number:03d}.png", exif=exif)


def _write_boxes(path: Path, sizes: Sequence[tuple[Any, Any] | None], boxes_per_image: int = 1) -> Path:
    """Write a COCO file with boxes of 000.png, 001.png, ..."""
    images = [
        {"id": number, "file_name": f"{number:03d}.png"}
        | ({} if size is None else {"width": size[0], "height": size[1]})
        for number, size in enumerate(sizes)
    ]
    annotations = [
        {"id": len(sizes) * copy + number, "image_id": number, "category_id": 1, "bbox": BOX}
        for copy in range(boxes_per_image)
        for number in range(len(sizes))
    ]
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    return path


def _read_as_input(path: Path, on_note: Callable[[str], None]) -> list[ImageRef]:
    return locate_objects([path], on_note=on_note)


def _read_as_boxes(path: Path, on_note: Callable[[str], None]) -> list[ImageRef]:
    return locate_objects([path.parent / "*.png"], regions=Regions(boxes=path), on_note=on_note)


BOTH_WAYS = pytest.mark.parametrize("read", [_read_as_input, _read_as_boxes])
Read = Callable[[Path, Callable[[str], None]], list[ImageRef]]


@BOTH_WAYS
@pytest.mark.parametrize("size", [(192, 160), ("192", 160.0)])
def test_boxes_are_refused_if_the_images_have_another_size(
    read: Read, size: tuple[Any, Any], tmp_path: Path
) -> None:
    _save_photos(tmp_path, 4)
    path = _write_boxes(tmp_path / "boxes.json", [size] * 4)
    with pytest.raises(InputError, match=r"boxes.json belongs to other images.*4 of 4") as caught:
        read(path, lambda note: None)
    assert "'000.png' is 192 x 160 pixels in the boxes" in str(caught.value)
    assert "\n" not in str(caught.value)


@BOTH_WAYS
@pytest.mark.parametrize("size", [None, (96, 80), (96.0, "80"), (0, 0), (None, 80)])
def test_boxes_of_images_of_the_stated_or_of_unknown_size_are_used(
    read: Read, size: tuple[Any, Any] | None, tmp_path: Path
) -> None:
    _save_photos(tmp_path, 4)
    notes: list[str] = []
    refs = read(_write_boxes(tmp_path / "boxes.json", [size] * 4, boxes_per_image=2), notes.append)
    assert [ref.box for ref in refs if ref.box] == [tuple(BOX)] * len(refs)
    assert len({ref.path for ref in refs}) == 4
    assert notes == []


@BOTH_WAYS
def test_there_is_a_note_if_few_images_have_another_size(read: Read, tmp_path: Path) -> None:
    _save_photos(tmp_path, 4)
    notes: list[str] = []
    path = _write_boxes(tmp_path / "boxes.json", [(96, 80), (96, 80), (192, 160), (96, 80)])
    assert len(read(path, notes.append)) == 4
    (note,) = notes
    assert "1 of 4 images checked does not fit its boxes; for example, '002.png' is 192 x 160" in note


@BOTH_WAYS
@pytest.mark.parametrize("orientation", [6, 8])
def test_boxes_in_the_frame_of_the_stored_pixels_are_refused(
    read: Read, orientation: int, tmp_path: Path
) -> None:
    _save_photos(tmp_path, 3, (96, 80), orientation)
    assert len(read(_write_boxes(tmp_path / "upright.json", [(80, 96)] * 3), lambda note: None)) == 3
    path = _write_boxes(tmp_path / "turned.json", [(96, 80)] * 3)
    with pytest.raises(InputError, match=r"turned.json states width and height of 3 of 3 images"):
        read(path, lambda note: None)


def test_boxes_of_frames_are_refused_if_the_video_has_another_size(
    write_video: Callable[..., Path], tmp_path: Path
) -> None:
    write_video(tmp_path / "clip.avi", 4, "MJPG")  # 64 x 48 pixels
    annotations = [{"id": frame, "image_id": frame, "bbox": BOX} for frame in range(3)]
    for width, height in ((64, 48), (128, 96)):
        images = [
            {"id": frame, "frame": frame, "file_name": "clip.avi", "width": width, "height": height}
            for frame in range(3)
        ]
        path = tmp_path / f"{width}.json"
        path.write_text(json.dumps({"images": images, "annotations": annotations}))
    assert len(locate_objects([tmp_path / "64.json"])) == 3
    assert len(locate_objects([tmp_path / "clip.avi"], regions=Regions(boxes=tmp_path / "64.json"))) == 3
    for inputs, regions in (("128.json", None), ("clip.avi", Regions(boxes=tmp_path / "128.json"))):
        with pytest.raises(InputError, match=r"128.json belongs to other images.*3 of 3"):
            locate_objects([tmp_path / inputs], regions=regions)


def test_a_list_of_images_without_boxes_may_state_other_sizes(tmp_path: Path) -> None:
    _save_photos(tmp_path, 3)
    path = _write_boxes(tmp_path / "images.json", [(192, 160)] * 3, boxes_per_image=0)
    assert len(list_images([path])) == 3


def test_images_that_cannot_be_read_are_left_to_the_prediction(tmp_path: Path) -> None:
    _save_photos(tmp_path, 3)
    (tmp_path / "001.png").write_bytes(b"no image")
    (tmp_path / "002.png").unlink()
    assert len(list_images([_write_boxes(tmp_path / "boxes.json", [(96, 80)] * 3)])) == 3


@pytest.mark.parametrize("name", ["b\0.png", "b\0.mp4", "x" * 400 + ".png", "x" * 400 + ".mp4", "no.mp4"])
def test_impossible_and_missing_files_have_no_size(name: str, tmp_path: Path) -> None:
    assert read_size(ImageRef(tmp_path / name, 0 if name.endswith("mp4") else None)) is None


def test_a_null_character_in_the_name_of_a_video_is_refused(tmp_path: Path) -> None:
    _save_photos(tmp_path, 2)
    path = _write_boxes(tmp_path / "boxes.json", [(96, 80)] * 2)
    content = json.loads(path.read_text())
    content["images"][1] |= {"file_name": "b\0.mp4", "frame": 0}
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="has a null character"):
        list_images([path])


def test_predict_refuses_boxes_of_images_of_another_size(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _save_photos(tmp_path, 4)
    path = _write_boxes(tmp_path / "boxes.json", [(192, 160)] * 4)
    for inputs in ([path], [tmp_path / "*.png", "--boxes", path]):
        assert selfmark("predict", quick_run, *inputs, "-o", tmp_path / "out", "--device=cpu") == 2
        assert "belongs to other images" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
