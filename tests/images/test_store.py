"""Test the image store: order, skipped images, large JPEGs, memory, and crops that are read in batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from selfmark.config import Images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images import crop_readers, read_crops
from selfmark.images import store as store_module
from selfmark.images.crop import compute_crop_regions, extract_crop, keypoint_bounds
from selfmark.images.decode import DecodedImage, Pixels, read_image
from selfmark.images.store import ImageStore, SkippedImage, iterate_crops, load_store

SMALL = Images(size=64)
GIGABYTES = 1.0  # enough memory for every store that need not be memory-mapped


def write_images(folder: Path, count: int) -> list[Path]:
    """Write images of random noise, each with a different size."""
    generator = np.random.default_rng(count)
    paths = []
    for number in range(count):
        pixels = generator.integers(0, 256, (30 + 3 * number, 70 - 2 * number, 3), np.uint8)
        paths.append(folder / f"{number:03}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def compute_expected_pixels(ref: ImageRef, images: Images, original: Pixels | None = None) -> np.ndarray:
    """Compute one crop directly, [3, S, S]."""
    original = read_image(ref.path, 200.0) if original is None else original
    box = [np.nan] * 4 if ref.box is None else list(ref.box)
    region = compute_crop_regions([[original.shape[1], original.shape[0]]], [box], images)[0]
    return extract_crop(original, region, images.size).transpose(2, 0, 1)


def test_still_images_are_cropped_in_order(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 9)
    boxes = [None, (5.0, 6.0, 20.0, 15.5), None]
    refs = [ImageRef(path, box=boxes[number % 3]) for number, path in enumerate(paths)]
    store = load_store(refs, SMALL, GIGABYTES, None)
    assert len(store) == 9
    assert store.refs == tuple(refs)
    assert store.skipped == ()
    assert store.pixels.shape == (9, 3, 64, 64)
    assert store.pixels.dtype == torch.uint8
    for ref, pixels in zip(refs, store.pixels.numpy(), strict=True):
        np.testing.assert_array_equal(pixels, compute_expected_pixels(ref, SMALL))
    np.testing.assert_array_equal(store.sizes, [[70 - 2 * n, 30 + 3 * n] for n in range(9)])
    box_rows = np.array([[np.nan] * 4 if ref.box is None else ref.box for ref in refs])
    np.testing.assert_array_equal(store.regions, compute_crop_regions(store.sizes, box_rows, SMALL))
    np.testing.assert_array_equal(store.bounds, keypoint_bounds(store.sizes, box_rows, store.regions, 64))
    assert (store.video == -1).all()
    assert (store.frame == -1).all()
    dtypes = {
        "sizes": np.int64,
        "regions": np.float64,
        "bounds": np.float32,
        "video": np.int64,
        "frame": np.int64,
    }
    assert {name: getattr(store, name).dtype for name in dtypes} == dtypes


def test_the_box_rule_is_applied(tmp_path: Path) -> None:
    ref = ImageRef(write_images(tmp_path, 1)[0], box=(10.0, 5.0, 30.0, 20.0))
    store = load_store([ref], Images(size=64, box_rule="body", body_scale=1.5), GIGABYTES, None)
    np.testing.assert_allclose(store.regions, [[10, 0, 30, 30]])


def test_unreadable_images_are_skipped_and_listed(tmp_path: Path) -> None:
    good_refs = write_images(tmp_path, 4)
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "broken.avi").write_text("no video")
    refs = [
        ImageRef(tmp_path / "empty.jpg"),
        ImageRef(good_refs[0]),
        ImageRef(tmp_path / "text.jpg"),
        ImageRef(tmp_path / "gone.png"),
        ImageRef(good_refs[1], box=(500.0, 0.0, 5.0, 5.0)),
        ImageRef(good_refs[2]),
        ImageRef(tmp_path / "broken.avi", frame=3),
        ImageRef(good_refs[1]),
    ]
    store = load_store(refs, SMALL, GIGABYTES, None)
    assert [ref.path for ref in store.refs] == [good_refs[0], good_refs[2], good_refs[1]]
    assert store.skipped == (
        SkippedImage(str(tmp_path / "empty.jpg"), "empty file"),
        SkippedImage(str(tmp_path / "text.jpg"), "not an image, or an unsupported format"),
        SkippedImage(str(tmp_path / "gone.png"), "no such file or directory"),
        SkippedImage(str(good_refs[1]), "the box is empty or outside the image"),
        SkippedImage(f"{tmp_path / 'broken.avi'}#3", "the video cannot be read"),
    )
    for ref, pixels in zip(store.refs, store.pixels.numpy(), strict=True):
        np.testing.assert_array_equal(pixels, compute_expected_pixels(ref, SMALL))


def test_the_limit_on_megapixels_is_applied(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 2)
    store = load_store(
        [ImageRef(path) for path in paths], Images(size=64, max_megapixels=0.0022), GIGABYTES, None
    )
    assert [ref.path for ref in store.refs] == [paths[0]]  # 70 x 30 pixels; the other has 68 x 33
    assert "more than the 0.0022 allowed" in store.skipped[0].reason


def test_a_store_without_usable_images_is_an_error(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    with pytest.raises(
        InputError, match=r"none of the images could be read \(0 of 2\); the first is .*a\.jpg \(empty file\)"
    ):
        load_store([ImageRef(tmp_path / "a.jpg"), ImageRef(tmp_path / "b.jpg")], SMALL, GIGABYTES, None)
    with pytest.raises(InputError, match=r"none of the images could be read \(0 of 0\)"):
        load_store([], SMALL, GIGABYTES, None)
    assert list(iterate_crops([], SMALL, 4)) == []


# --- videos ----------------------------------------------------------------------------------------


def read_frame_numbers(store: ImageStore) -> list[int]:
    """Return the frame numbers that the `write_video` fixture encoded in the green channel."""
    return [round((float(pixels[1, 20:44].mean(dtype=torch.float64)) - 8) / 6) for pixels in store.pixels]


def test_frames_of_several_videos_are_loaded_in_any_order(
    tmp_path: Path, write_video: Callable[..., Path]
) -> None:
    first, second = (write_video(tmp_path / name, 12, "MJPG") for name in ("a.avi", "b.avi"))
    still_ref = write_images(tmp_path, 1)[0]
    refs = [
        ImageRef(second, 3),
        ImageRef(first, 9),
        ImageRef(still_ref),
        ImageRef(first, 2, (0.0, 0.0, 64.0, 48.0)),
        ImageRef(second, 11),
        ImageRef(first, 2),
        ImageRef(second, 50),
        ImageRef(second, 0),
    ]
    store = load_store(refs, SMALL, GIGABYTES, None)
    assert store.refs == tuple(ref for ref in refs if ref.frame != 50)
    assert store.skipped == (SkippedImage(f"{second}#50", "the video ends before this frame"),)
    assert store.video.tolist() == [0, 1, -1, 1, 0, 1, 0]
    assert store.frame.tolist() == [3, 9, -1, 2, 11, 2, 0]
    numbers = read_frame_numbers(store)
    assert numbers[:2] + numbers[3:] == [3, 9, 2, 11, 2, 0]


# --- large JPEGs, which are decoded at a reduced size ----------------------------------------------


def draw_dots(width: int, height: int, centers: Sequence[tuple[int, int]]) -> np.ndarray:
    """Draw bright round spots on a dark background, [H, W, 3]."""
    y, x = np.mgrid[:height, :width]
    heat = sum(np.exp(-((x - column) ** 2 + (y - row) ** 2) / (2 * 60.0**2)) for column, row in centers)
    return np.repeat((20 + 200 * np.clip(heat, 0, 1)).astype(np.uint8)[..., None], 3, axis=2)


def find_centroid(crop: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Return the center (x, y) of the bright spot near a position."""
    x0, y0 = (round(float(value)) - 6 for value in near)
    window = np.clip(crop[0, y0 : y0 + 13, x0 : x0 + 13].astype(float) - 25, 0, None)  # no background
    y, x = np.mgrid[y0 : y0 + 13, x0 : x0 + 13]
    return np.array([(x * window).sum(), (y * window).sum()]) / window.sum()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(1504, 1208), (1501, 1207)])
def test_crops_of_large_jpegs_are_aligned(tmp_path: Path, orientation: int, size: tuple[int, int]) -> None:
    """Crops agree with full decoding in every orientation, even if no reduction divides the size."""
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[274] = orientation  # the tag of the orientation
    Image.fromarray(draw_dots(*size, [(300, 310), (1200, 900), (700, 600)])).save(path, quality=95, exif=exif)
    ref = ImageRef(path)
    store = load_store([ref], SMALL, GIGABYTES, None)
    full_pixels = compute_expected_pixels(ref, SMALL)
    assert tuple(store.sizes[0]) == (size if orientation < 5 else size[::-1])
    assert np.abs(store.pixels[0].numpy().astype(int) - full_pixels).max() <= 6
    spots = [np.array([column, row]) for _, row, column in np.argwhere(full_pixels[:1] > 205)]
    assert len(spots) >= 3
    for spot in spots:
        shift = find_centroid(store.pixels[0].numpy(), spot) - find_centroid(full_pixels, spot)
        assert np.abs(shift).max() < 0.03  # network pixels, each as wide as 23 pixels of the JPEG


def test_the_smallest_box_limits_the_reduction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factors: list[int] = []
    real = read_crops.decode_image

    def record_factor(
        path: Path, limit: float, max_reduction: Callable[[tuple[int, int]], float]
    ) -> DecodedImage:
        decoded = real(path, limit, max_reduction)
        factors.append(decoded.factor)
        return decoded

    monkeypatch.setattr(read_crops, "decode_image", record_factor)
    images = Images(size=64, margin=0.0)
    for name, options in (("a.jpg", {}), ("a.png", {}), ("b.jpg", {"format": "MPO"})):
        Image.fromarray(draw_dots(1600, 1200, [(500, 500)])).save(tmp_path / name, **options)
    for name, sides, expected in (
        ("a.jpg", [None], 8),
        ("a.jpg", [1023], 4),  # a factor of 8 needs a side of 64 x 2 x 8 = 1024
        ("a.jpg", [1024, 600], 4),
        ("a.jpg", [256], 2),
        ("a.jpg", [255], 1),
        ("a.jpg", [1600, 20], 1),
        ("b.jpg", [None], 8),  # the format of many phones
        ("a.png", [None], 1),
    ):
        boxes = [None if side is None else (10.0, 10.0, float(side), float(side)) for side in sides]
        load_store([ImageRef(tmp_path / name, box=box) for box in boxes], images, GIGABYTES, None)
        assert factors.pop() == expected, (name, sides)
    assert not factors


def test_a_thin_jpeg_is_reduced_only_as_far_as_its_height_allows(tmp_path: Path) -> None:
    """The width would allow a larger reduction than the height, which is only 4 pixels."""
    path = tmp_path / "a.jpg"
    Image.fromarray(draw_dots(3000, 4, [(1500, 2)])).save(path)
    store = load_store([ImageRef(path)], SMALL, GIGABYTES, None)
    assert (
        np.abs(store.pixels[0].numpy().astype(int) - compute_expected_pixels(ImageRef(path), SMALL)).max()
        <= 12
    )


def test_each_file_is_decoded_once(
    tmp_path: Path, write_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    video = write_video(tmp_path / "a.avi", 6, "MJPG")
    first_still, second_still = write_images(tmp_path, 2)
    reads: list[Path] = []
    real_image, real_frames = read_crops.decode_image, store_module.read_frames

    def count_image(
        path: Path, limit: float, max_reduction: Callable[[tuple[int, int]], float]
    ) -> DecodedImage:
        reads.append(path)
        return real_image(path, limit, max_reduction)

    def count_frames(path: Path, frames: Sequence[int]) -> object:
        assert sorted(frames) == [1, 4]
        reads.append(path)
        return real_frames(path, frames)

    monkeypatch.setattr(read_crops, "decode_image", count_image)
    monkeypatch.setattr(store_module, "read_frames", count_frames)
    boxes = [(0.0, 0.0, 20.0, 20.0), (10.0, 5.0, 20.0, 20.0), (12.0, 8.0, 9.0, 20.0)]
    refs = [ImageRef(first_still, box=box) for box in boxes]
    refs += [ImageRef(video, frame, box) for frame in (1, 4) for box in boxes]
    refs += [ImageRef(second_still)]
    store = load_store(refs, SMALL, GIGABYTES, None)
    assert store.refs == tuple(refs)
    assert sorted(reads) == sorted([first_still, video, second_still])
    for ref, pixels in zip(store.refs[:3], store.pixels[:3].numpy(), strict=True):
        np.testing.assert_array_equal(pixels, compute_expected_pixels(ref, SMALL))


def test_a_long_video_is_not_read_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a limited number of frames is prefetched."""
    num_read = 0

    def generate_frames(path: Path, frames: Sequence[int]) -> object:
        nonlocal num_read
        for frame in frames:
            num_read += 1
            yield frame, np.full((10, 10, 3), frame % 256, np.uint8)

    monkeypatch.setattr(store_module, "read_frames", generate_frames)
    before = threading.active_count()
    batches = iterate_crops([ImageRef(tmp_path / "v.mp4", frame) for frame in range(5000)], SMALL, 8)
    for number in range(3):
        batch = next(batches)
        assert batch.frame.tolist() == list(range(8 * number, 8 * number + 8))
        assert batch.pixels[:, 0, 0, 0].tolist() == batch.frame.tolist()
        assert num_read <= 8 * (number + 1) + crop_readers.PREFETCH
    batches.close()  # also ends the threads
    assert threading.active_count() == before


# --- batches and memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_concatenated_batches_equal_the_store(
    tmp_path: Path, write_video: Callable[..., Path], batch: int
) -> None:
    refs = [ImageRef(path) for path in write_images(tmp_path, 7)]
    refs += [ImageRef(write_video(tmp_path / "a.avi", 6, "MJPG"), frame) for frame in range(0, 9, 2)]
    refs.insert(0, ImageRef(tmp_path / "gone0.jpg"))
    refs.insert(5, ImageRef(tmp_path / "gone1.jpg"))
    all_images = load_store(refs, SMALL, GIGABYTES, None)
    parts = list(iterate_crops(refs, SMALL, batch))
    assert all(len(part) == batch for part in parts[:-1])
    assert torch.equal(torch.cat([part.pixels for part in parts]), all_images.pixels)
    assert [ref for part in parts for ref in part.refs] == list(all_images.refs)
    assert [item for part in parts for item in part.skipped] == list(all_images.skipped)
    assert len(all_images.skipped) == 4  # two missing files, and frames 6 and 8 after the end
    for name in ("sizes", "regions", "bounds", "video", "frame"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(part, name) for part in parts]), getattr(all_images, name)
        )


def test_images_skipped_at_the_end_are_still_reported(tmp_path: Path) -> None:
    refs = [ImageRef(write_images(tmp_path, 1)[0]), ImageRef(tmp_path / "gone.jpg")]
    full, rest = iterate_crops(refs, SMALL, 1)
    assert (len(full), full.skipped) == (1, ())
    assert (len(rest), len(rest.skipped)) == (0, 1)
    assert rest.pixels.shape == (0, 3, 64, 64)
    assert rest.regions.shape == (0, 4)


def test_large_stores_are_memory_mapped(tmp_path: Path) -> None:
    refs = [ImageRef(path) for path in write_images(tmp_path, 5)]
    refs.insert(2, ImageRef(tmp_path / "gone.jpg"))
    in_memory = load_store(refs, SMALL, GIGABYTES, tmp_path / "unused")
    assert not (tmp_path / "unused").exists()
    num_bytes = 6 * 3 * 64 * 64
    mapped = load_store(refs, SMALL, (num_bytes - 1) / 1e9, tmp_path / "new" / "scratch")
    file = tmp_path / "new" / "scratch" / "images.u8"
    assert torch.equal(mapped.pixels, in_memory.pixels)
    assert file.read_bytes()[: mapped.pixels.numel()] == mapped.pixels.numpy().tobytes()
    assert load_store(refs, SMALL, num_bytes / 1e9, None).pixels.shape == mapped.pixels.shape
    with pytest.raises(ValueError, match="scratch"):
        load_store(refs, SMALL, (num_bytes - 1) / 1e9, None)


def test_a_second_store_does_not_overwrite_the_first(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 2)
    first = load_store([ImageRef(paths[0])], SMALL, 0.0, tmp_path)
    before = first.pixels.clone()
    second = load_store([ImageRef(paths[1])], SMALL, 0.0, tmp_path)
    assert torch.equal(first.pixels, before)
    assert not torch.equal(first.pixels, second.pixels)


def test_a_full_disk_is_an_error_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(InputError, match="not enough disk space"):
        load_store([ImageRef(path) for path in write_images(tmp_path, 1)], SMALL, 0.0, tmp_path / "s")


def test_progress_also_counts_skipped_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_LOAD_BATCH", 2)
    refs = [ImageRef(path) for path in write_images(tmp_path, 5)]
    refs.append(ImageRef(tmp_path / "gone.jpg"))
    calls: list[tuple[int, int]] = []
    load_store(refs, SMALL, GIGABYTES, None, lambda done, total: calls.append((done, total)))
    assert calls == [(2, 6), (4, 6), (6, 6)]


def test_arrays_of_different_lengths_are_rejected(tmp_path: Path) -> None:
    store = load_store([ImageRef(write_images(tmp_path, 1)[0])], SMALL, GIGABYTES, None)
    with pytest.raises(ValueError, match="one row"):
        ImageStore(**{**vars(store), "frame": np.zeros(2, np.int64)})


def test_boxes_without_area_are_skipped(tmp_path: Path) -> None:
    """Label files contain such boxes, for example for an object with only one visible point."""
    path = tmp_path / "a.png"
    Image.new("RGB", (40, 30), "red").save(path)
    boxes = [(1.0, 1.0, 0.0, 9.0), (1.0, 1.0, 9.0, 9.0), (5.0, 5.0, 0.0, 0.0)]
    store = load_store([ImageRef(path, box=box) for box in boxes], Images(size=64), GIGABYTES, None)
    assert [ref.box for ref in store.refs] == [boxes[1]]
    assert [item.reason for item in store.skipped] == ["the box is empty or outside the image"] * 2
