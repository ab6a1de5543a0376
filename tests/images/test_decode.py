"""Test decoding of color modes, bit depths, orientations and damaged files against independent results."""

from __future__ import annotations

import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from selfmark.images import decode
from selfmark.images.decode import Pixels, UnreadableImage, read_image, read_image_size

LIMIT = 200.0  # megapixels


def make_colors(height: int = 6, width: int = 9) -> Pixels:
    """Return random colors: an image without symmetry or equal neighbors."""
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


# --- modes -----------------------------------------------------------------------------------------


def test_lossless_formats_keep_rgb_exactly(tmp_path: Path) -> None:
    for suffix in ("png", "bmp", "tif", "ppm"):
        path = save(Image.fromarray(make_colors()), tmp_path / f"a.{suffix}")
        np.testing.assert_array_equal(read_image(path, LIMIT), make_colors())
    path = save(Image.fromarray(make_colors()), tmp_path / "a.webp", lossless=True)
    np.testing.assert_array_equal(read_image(path, LIMIT), make_colors())


def test_jpeg_is_close_to_the_original(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 64).astype(np.uint8)[None, :, None].repeat(48, 0).repeat(3, 2)
    pixels = read_image(save(Image.fromarray(ramp), tmp_path / "a.jpg", quality=95), LIMIT)
    assert pixels.shape == (48, 64, 3)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - ramp).max() <= 3


def test_the_result_is_writable(tmp_path: Path) -> None:
    for name, image in (
        ("a.png", Image.fromarray(make_colors())),
        ("b.png", Image.fromarray(make_colors()[..., 0])),
    ):
        assert read_image(save(image, tmp_path / name), LIMIT).flags.writeable


def test_one_bit_images_become_black_and_white(tmp_path: Path) -> None:
    bits = np.array([[True, False, True], [False, False, True]])
    pixels = read_image(save(Image.fromarray(bits), tmp_path / "a.png"), LIMIT)
    np.testing.assert_array_equal(pixels, np.where(bits, 255, 0)[..., None].repeat(3, 2))


def test_gray_is_repeated_in_all_channels(tmp_path: Path) -> None:
    gray = make_colors()[..., 0]
    pixels = read_image(save(Image.fromarray(gray), tmp_path / "a.pgm"), LIMIT)
    np.testing.assert_array_equal(pixels, gray[..., None].repeat(3, 2))


def compose_over_white(color: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Blend colors [..., 3] with white, by their opacity [...] in 0..255."""
    opacity = alpha[..., None] / 255.0
    return color * opacity + 255.0 * (1 - opacity)


def test_rgba_is_composed_over_white(tmp_path: Path) -> None:
    alpha = make_colors()[..., 1]
    image = Image.fromarray(np.dstack([make_colors(), alpha]))
    pixels = read_image(save(image, tmp_path / "a.png"), LIMIT)
    assert np.abs(pixels - compose_over_white(make_colors(), alpha)).max() <= 1


def test_gray_with_alpha_is_composed_over_white(tmp_path: Path) -> None:
    gray, alpha = make_colors()[..., 0], make_colors()[..., 1]
    image = Image.fromarray(np.dstack([gray, alpha]))
    assert image.mode == "LA"
    pixels = read_image(save(image, tmp_path / "a.png"), LIMIT)
    assert np.abs(pixels - compose_over_white(gray[..., None].repeat(3, 2), alpha)).max() <= 1


def make_palette_image() -> tuple[Image.Image, np.ndarray, np.ndarray]:
    """Return an indexed image, its palette [4, 3] and the indices [H, W]."""
    palette = np.array([[10, 20, 30], [200, 0, 0], [0, 200, 0], [5, 5, 250]], np.uint8)
    indices = np.arange(20, dtype=np.uint8).reshape(4, 5) % 4
    indexed = Image.frombytes("P", (5, 4), indices.tobytes())
    indexed.putpalette(palette.tobytes())
    return indexed, palette, indices


def test_palette_indices_become_colors(tmp_path: Path) -> None:
    image, palette, indices = make_palette_image()
    for name in ("a.png", "a.gif", "a.bmp"):
        np.testing.assert_array_equal(read_image(save(image, tmp_path / name), LIMIT), palette[indices])


def test_a_transparent_palette_entry_becomes_white(tmp_path: Path) -> None:
    image, palette, indices = make_palette_image()
    palette[2] = 255
    for name in ("a.png", "a.gif"):
        path = save(image, tmp_path / name, transparency=2)
        np.testing.assert_array_equal(read_image(path, LIMIT), palette[indices])


def test_palette_entries_with_alpha_are_composed_over_white(tmp_path: Path) -> None:
    image, palette, indices = make_palette_image()
    alpha = np.array([255, 128, 0, 51], np.uint8)
    path = save(image, tmp_path / "a.png", transparency=alpha.tobytes())
    expected = compose_over_white(palette, alpha)[indices]
    assert np.abs(read_image(path, LIMIT) - expected).max() <= 1


def test_a_transparent_color_becomes_white(tmp_path: Path) -> None:
    image = make_colors()
    path = save(Image.fromarray(image), tmp_path / "a.png", transparency=tuple(map(int, image[2, 3])))
    expected = image.copy()
    expected[2, 3] = 255
    np.testing.assert_array_equal(read_image(path, LIMIT), expected)


def test_cmyk_is_converted_to_rgb(tmp_path: Path) -> None:
    inks = np.random.default_rng(1).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    path = save(Image.frombytes("CMYK", (7, 5), inks.tobytes()), tmp_path / "a.tif")
    ink_fractions = inks / 255.0
    expected = 255 * (1 - ink_fractions[..., :3]) * (1 - ink_fractions[..., 3:])
    assert np.abs(read_image(path, LIMIT) - expected).max() <= 1.5


def test_ycbcr_is_converted_to_rgb(tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    path = save(Image.frombytes("YCbCr", (7, 5), values.tobytes()), tmp_path / "a.tif")
    y, cb, cr = np.moveaxis(values.astype(float), 2, 0)
    cb, cr = cb - 128, cr - 128
    expected = np.dstack([y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb]).clip(0, 255)
    assert np.abs(read_image(path, LIMIT) - expected).max() <= 2


def to_lab(rgb: np.ndarray) -> np.ndarray:
    """Convert sRGB colors to CIE L*a*b* under D50, which TIFF and ICC use."""
    srgb = rgb / 255.0
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    matrix = [  # sRGB to XYZ, adapted to D50
        [0.4360747, 0.3850649, 0.1430804],
        [0.2225045, 0.7168786, 0.0606169],
        [0.0139322, 0.0971045, 0.7141733],
    ]
    xyz = linear @ np.array(matrix).T / (0.96422, 1.0, 0.82521)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)


def test_lab_is_converted_to_rgb(tmp_path: Path) -> None:
    expected = np.array([[[255] * 3, [0] * 3, [128] * 3, [200, 80, 60], [90, 120, 180]]], np.uint8)
    stored = np.rint(to_lab(expected) * (2.55, 1, 1)).astype(np.int64).astype(np.uint8)  # a and b are signed
    path = save(Image.frombytes("LAB", (5, 1), stored.tobytes()), tmp_path / "a.tif")
    assert stored.tobytes() in path.read_bytes()
    assert np.abs(read_image(path, LIMIT).astype(int) - expected).max() <= 3


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_sixteen_bits_are_divided_by_257(tmp_path: Path, name: str) -> None:
    values = np.array([[0, 100, 129, 257], [4095, 32768, 65534, 65535]], np.uint16)
    path = save(Image.fromarray(values), tmp_path / name)
    expected = np.rint(values / 257).astype(np.uint8)
    np.testing.assert_array_equal(read_image(path, LIMIT), expected[..., None].repeat(3, 2))


def test_a_dark_sixteen_bit_image_stays_dark_in_every_format(tmp_path: Path) -> None:
    """Pillow opens a 16-bit PGM as 32-bit integers. If all are below 256, they are still 16-bit values."""
    values = np.full((3, 4), 200, np.uint16)
    for name in ("a.png", "a.tif", "a.pgm"):
        assert read_image(save(Image.fromarray(values), tmp_path / name), LIMIT).max() == 1


def test_big_endian_sixteen_bits_are_read(tmp_path: Path) -> None:
    values = np.array([[0, 257, 65535], [514, 25700, 771]], np.uint16)
    image = Image.frombytes("I;16B", (3, 2), values.astype(">u2").tobytes())
    pixels = read_image(save(image, tmp_path / "a.tif"), LIMIT)
    np.testing.assert_array_equal(pixels[..., 0], [[0, 1, 255], [2, 100, 3]])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0, 7, 255]], [[0, 7, 255]]),  # fits into 8 bits
        ([[0, 257, 65535]], [[0, 1, 255]]),  # fits into 16 bits
        ([[0, 50_000, 100_000]], [[0, 128, 255]]),  # stretched from minimum to maximum
        ([[-100, 0, 100]], [[0, 128, 255]]),
    ],
)
def test_32_bit_integers_are_scaled_to_8_bits(
    tmp_path: Path, values: list[list[int]], expected: list[list[int]]
) -> None:
    path = save(Image.fromarray(np.array(values, np.int32)), tmp_path / "a.tif")
    np.testing.assert_array_equal(read_image(path, LIMIT)[..., 0], expected)


def test_floats_are_stretched_from_minimum_to_maximum(tmp_path: Path) -> None:
    values = np.array([[-0.5, 0.0, 0.5], [np.nan, np.inf, 0.25]], np.float32)
    pixels = read_image(save(Image.fromarray(values), tmp_path / "a.tif"), LIMIT)
    np.testing.assert_array_equal(pixels[..., 2], [[0, 128, 255], [0, 0, 191]])


def test_constant_and_nan_floats_are_black(tmp_path: Path) -> None:
    for value in (3.0, np.nan):
        path = save(Image.fromarray(np.full((2, 2), value, np.float32)), tmp_path / "a.tif")
        assert read_image(path, LIMIT).max() == 0


def test_the_first_image_of_a_multi_picture_jpeg_is_read(tmp_path: Path) -> None:
    """Many phones write JPEG files with a second image after the first."""
    first, second = Image.new("RGB", (16, 8), (250, 10, 10)), Image.new("RGB", (16, 8), (10, 10, 250))
    path = tmp_path / "a.jpg"
    first.save(path, format="MPO", save_all=True, append_images=[second])
    pixels = read_image(path, LIMIT)
    assert np.abs(pixels.astype(int) - (250, 10, 10)).max() <= 4


def test_only_the_first_frame_is_read(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    for name in ("a.gif", "a.tif"):
        path = save(frames[0], tmp_path / name, save_all=True, append_images=frames[1:])
        np.testing.assert_array_equal(read_image(path, LIMIT), np.full((8, 8, 3), (255, 0, 0)))


# --- orientation -----------------------------------------------------------------------------------

ORIENTATION_TAG = 274  # number of the tag in EXIF 2.3
XMP_TAG = 700  # number of the tag in TIFF
# Mapping from the value of the tag to the sides of the scene that row 0 and column 0 of the file store.
STORED_SIDES = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def to_stored(scene: Pixels, orientation: int) -> Pixels:
    """Return the pixels that a camera in this orientation stores; they are copied one by one."""
    height, width = scene.shape[:2]
    row_side, column_side = STORED_SIDES[orientation]
    upright = row_side in ("top", "bottom")
    stored = np.zeros((height, width, 3) if upright else (width, height, 3), np.uint8)
    for row in range(stored.shape[0]):
        for column in range(stored.shape[1]):
            position = {}
            for side, index in ((row_side, row), (column_side, column)):
                axis = "y" if side in ("top", "bottom") else "x"
                last = height - 1 if axis == "y" else width - 1
                position[axis] = index if side in ("top", "left") else last - index
            stored[row, column] = scene[position["y"], position["x"]]
    return stored


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_undone(tmp_path: Path, orientation: int, name: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    options = {"lossless": True} if name == "a.webp" else {}
    path = save(Image.fromarray(to_stored(make_colors(), orientation)), tmp_path / name, exif=exif, **options)
    np.testing.assert_array_equal(read_image(path, LIMIT), make_colors())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_of_jpeg_is_undone(tmp_path: Path, orientation: int) -> None:
    scene = make_colors(2, 3).repeat(16, 0).repeat(16, 1)  # JPEG preserves uniform blocks well
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    stored = Image.fromarray(to_stored(scene, orientation))
    path = save(stored, tmp_path / "a.jpg", exif=exif, quality=98, subsampling=0)
    pixels = read_image(path, LIMIT)
    assert pixels.shape == scene.shape
    assert np.abs(pixels.astype(int) - scene).max() <= 8


def test_the_exif_orientation_of_sixteen_bits_is_undone(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 6
    values = np.array([[0, 257], [514, 771], [1028, 1285]], np.uint16)
    pixels = read_image(save(Image.fromarray(values), tmp_path / "a.png", exif=exif), LIMIT)
    np.testing.assert_array_equal(pixels[..., 0], [[4, 2, 0], [5, 3, 1]])


FORMATS_WITH_ORIENTATION = ["a.jpg", "a.png", "a.tif", "a.webp"]


def make_xmp(orientation: int) -> bytes:
    """Return the XMP metadata of an image with this orientation."""
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="{orientation}"/>'.encode()


@pytest.mark.parametrize("name", FORMATS_WITH_ORIENTATION)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_in_the_header_is_that_of_the_upright_image(
    tmp_path: Path, orientation: int, name: str
) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    path = save(Image.fromarray(to_stored(make_colors(), orientation)), tmp_path / name, exif=exif)
    assert read_image_size(path) == (9, 6)
    assert read_image(path, LIMIT).shape[:2] == (6, 9)


@pytest.mark.parametrize(
    "options", [{"compression": "tiff_lzw"}, {"compression": "jpeg"}, {"big_tiff": True}]
)
def test_the_size_in_the_header_of_a_tiff_does_not_depend_on_its_encoding(
    tmp_path: Path, options: dict[str, object]
) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 6
    path = save(Image.fromarray(to_stored(make_colors(), 6)), tmp_path / "a.tif", exif=exif, **options)
    assert read_image_size(path) == (9, 6)
    assert read_image(path, LIMIT).shape[:2] == (6, 9)


@pytest.mark.parametrize("name", FORMATS_WITH_ORIENTATION)
@pytest.mark.parametrize("orientation", [3, 6])
def test_the_size_in_the_header_is_upright_if_only_xmp_has_the_orientation(
    tmp_path: Path, orientation: int, name: str
) -> None:
    metadata = make_xmp(orientation)
    options: dict[str, object] = {"xmp": metadata}
    if name == "a.png":
        options = {"pnginfo": PngInfo()}
        options["pnginfo"].add_itxt("XML:com.adobe.xmp", metadata.decode())
    elif name == "a.tif":
        options = {"tiffinfo": {XMP_TAG: metadata}}
    path = save(Image.fromarray(to_stored(make_colors(), orientation)), tmp_path / name, **options)
    assert read_image_size(path) == (9, 6)
    assert read_image(path, LIMIT).shape[:2] == (6, 9)


def test_an_image_with_damaged_exif_is_read(tmp_path: Path) -> None:
    path = save(
        Image.fromarray(make_colors()), tmp_path / "a.png", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(read_image(path, LIMIT), make_colors())


# --- unreadable files ------------------------------------------------------------------------------


def make_png_header(width: int, height: int, depth: int = 8) -> bytes:
    """Return a gray PNG file that ends where its pixels should begin."""

    def make_chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", header) + make_chunk(b"IDAT", b"")


def test_an_empty_file_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    with pytest.raises(UnreadableImage, match=r"^empty file$"):
        read_image(tmp_path / "a.jpg", LIMIT)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.gif", "a.tif", "a.ppm"])
def test_a_truncated_file_is_unreadable(tmp_path: Path, name: str) -> None:
    path = save(Image.fromarray(make_colors(60, 80)), tmp_path / name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UnreadableImage, match=r"^truncated$"):
        read_image(path, LIMIT)


@pytest.mark.parametrize("height", [8, 120])
def test_a_png_with_a_flipped_bit_is_unreadable_or_keeps_its_pixels(tmp_path: Path, height: int) -> None:
    """Pillow alone does not notice most changes of the pixels. The larger image has several IDAT chunks."""
    pixels = make_colors(height, 200)
    path = save(Image.fromarray(pixels), tmp_path / "a.png")
    content = path.read_bytes()
    assert (content.count(b"IDAT") > 1) == (height > 8)
    damaged = 0
    for position in range(0, len(content), max(1, len(content) // 400)):
        path.write_bytes(flip_bit(content, position))
        try:
            np.testing.assert_array_equal(read_image(path, LIMIT), pixels)
        except UnreadableImage:
            damaged += 1
    assert damaged > 300
    path.write_bytes(flip_bit(content, len(content) // 2))
    with pytest.raises(UnreadableImage, match=r"^damaged: the checksum of its pixels is wrong$"):
        read_image(path, LIMIT)


def flip_bit(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]


def test_a_truncated_webp_file_is_unreadable(tmp_path: Path) -> None:
    path = save(Image.fromarray(make_colors(60, 80)), tmp_path / "a.webp")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UnreadableImage, match=r"damaged|truncated"):
        read_image(path, LIMIT)


def test_a_text_named_jpg_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("hello, I am not an image")
    with pytest.raises(UnreadableImage, match="not an image"):
        read_image(tmp_path / "a.jpg", LIMIT)


def test_missing_files_and_folders_are_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="no such file"):
        read_image(tmp_path / "a.jpg", LIMIT)
    with pytest.raises(UnreadableImage, match="directory"):
        read_image(tmp_path, LIMIT)


def test_a_huge_image_is_rejected_before_decoding(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(make_png_header(100_000, 100_000))
    with pytest.raises(UnreadableImage, match=r"^10000 megapixels, more than the 200 allowed$"):
        read_image(tmp_path / "a.png", LIMIT)


def test_pillows_size_limit_does_not_apply(tmp_path: Path) -> None:
    path = save(Image.fromarray(make_colors(100, 100)), tmp_path / "a.png")
    assert read_image(path, 0.01).shape == (100, 100, 3)
    with pytest.raises(UnreadableImage, match=r"more than the 0\.0099 allowed"):
        read_image(path, 0.0099)
    # 190 megapixels exceed Pillow's limit of 179, but not ours, so the only error is the missing data.
    (tmp_path / "b.png").write_bytes(make_png_header(19_000, 10_000, depth=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnreadableImage, match=r"truncated|damaged") as caught:
            read_image(tmp_path / "b.png", LIMIT)
    assert "bomb" not in str(caught.value)


def make_noise(mode: str) -> Image.Image:
    rng = np.random.default_rng(0)
    if mode in ("I;16", "I", "F"):
        dtype, limit = {"I;16": (np.uint16, 1 << 16), "I": (np.int32, 1 << 20), "F": (np.float32, 9)}[mode]
        return Image.fromarray((rng.random((31, 17)) * limit).astype(dtype))
    colors = Image.fromarray(rng.integers(0, 256, (31, 17, 4), dtype=np.uint8))
    return colors if mode == "RGBA" else colors.convert("RGB").convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_images_that_are_converted_in_strips_have_the_same_pixels(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(make_noise(mode), tmp_path / "a.tif")
    whole = read_image(path, LIMIT)
    monkeypatch.setattr(decode, "_STRIP_PIXELS", 100)
    np.testing.assert_array_equal(read_image(path, LIMIT), whole)


@pytest.mark.parametrize("mode", ["RGBA", "I;16", "F"])
def test_decoding_takes_little_more_memory_than_the_image_and_its_pixels(mode: str, tmp_path: Path) -> None:
    side = 4000
    path = save(Image.new(mode, (side, side), 0), tmp_path / ("a.tif" if mode == "F" else "a.png"))
    Image.new("RGBA", (8, 8)).save(tmp_path / "small.png")
    # Pillow needs up to 4 bytes per pixel, and the result 3.
    code = f"""
import resource
from pathlib import Path
from selfmark.images.decode import read_image
read_image(Path({str(tmp_path / "small.png")!r}), 200)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {10 * side**2}, resource.RLIM_INFINITY))
read_image(Path({str(path)!r}), 200)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
