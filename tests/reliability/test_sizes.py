"""Test that files that claim huge sizes or point elsewhere are refused before they take memory or time."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from selfmark.config import Images
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluation.label_files import read_label_file
from selfmark.images import input_files, video_av, video_opencv
from selfmark.images.coco import read_coco
from selfmark.images.decode import UnreadableImage, read_image, read_image_size
from selfmark.images.input_files import read_csv_rows, read_text_lines
from selfmark.images.mp4_header import check_mp4_header
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.keypoints import points_file
from selfmark.paper.datasets.numpy_files import load_arrays
from selfmark.run.config_file import read_config
from selfmark.run.files import read_json
from selfmark.run.guarded_files import open_to_read
from selfmark.run.tensor_files import read_tensors
from tests.images.videos import encode_video

SOURCE = Path(__file__).parents[2] / "src" / "selfmark"


@pytest.fixture(autouse=True)
def _limit_memory_and_time() -> Iterator[None]:
    """Fail if a test takes more than 300 MB of memory or 20 seconds of CPU time."""
    memory_before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before < 300 * 1024  # in KiB
    assert time.process_time() - start < 20


# --- models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("K", 10**9, "but there are 4 names"),
        ("names", ["a"] * 20_000, "20000 landmark names; 1 to 10,000 are allowed"),
        ("names", ["a" * 2_000] * 4, "is not a valid landmark name"),
        ("images.size", 10**9, "images.size must be between"),
        ("images.size", 4_096, "landmarks in images of 4,096 px take about .* GiB of memory per image"),
        ("images.max_megapixels", 1e12, "max_megapixels"),
        ("network.channels", 10**9, "network.channels must be between"),
        ("network.depth", 10**6, "network.depth must be between"),
        ("network.descriptor", 10**9, "network.descriptor must be between"),
        ("network.norm_groups", 0, "network.norm_groups must be between"),
        # A network with 1024 channels has far more weights than the file contains.
        ("network.channels", 1024, "does not match"),
        ("mirror", [10**9] * 4, "permutation"),
        ("skeleton", [[0, 10**9]], "skeleton"),
    ],
)
def test_a_model_card_with_huge_numbers_is_refused(
    name: str, value: Any, words: str, quick_run: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(quick_run / "model", tmp_path / "model"))
    content = json.loads((folder / "model.json").read_text())
    *sections, last = name.split(".")
    values = content
    for section in sections:
        values = values[section]
    values[last] = value
    (folder / "model.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        Detector.load(folder)


def test_weights_of_another_type_are_refused_before_they_are_read(quick_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(quick_run / "model", tmp_path / "model"))
    tensors = load_file(folder / "weights.safetensors")
    name = "head.last.bias"
    save_file(tensors | {name: tensors[name].double()}, folder / "weights.safetensors")
    with pytest.raises(InputError, match=r"'head.last.bias' is F64 \[4\], not F32 \[4\]"):
        Detector.load(folder)


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [([10**9, 10**6], [0, 12]), ([3], [0, 10**15]), ([2**62, 4], [0, 12]), ([-1], [0, 12])],
)
def test_a_header_with_invalid_shapes_is_refused(
    shape: list[int], offsets: list[int], tmp_path: Path
) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    path = tmp_path / "weights.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    with pytest.raises(InputError, match=re.escape(str(path))):
        read_tensors(path)


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(InputError, match="damaged"):
        read_tensors(path)


def test_yaml_with_exponential_aliases_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    path = tmp_path / "config.yaml"
    for last in ("K: *a11", "images: *a11", "*a0 : 1"):
        path.write_text("\n".join([*lines, last]))
        with pytest.raises(InputError):
            read_config(path)
    path.write_text("rounds: {lr_drops: &a [1, *a]}")
    with pytest.raises(InputError):
        read_config(path)
    path.write_text("K: " + "[" * 100_000)
    with pytest.raises(InputError):
        read_config(path)


# --- images and videos ------------------------------------------------------------------------------


def _make_png(width: int, height: int) -> bytes:
    def make_chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", header) + make_chunk(b"IDAT", zlib.compress(b"\0" * 99))


def _make_bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


HUGE = {
    "png": _make_png(100_000, 100_000),
    "bmp": _make_bmp(100_000, 100_000),
    "ppm": b"P6 100000 100000 255\n\0\0\0",
    "gif": b"GIF89a"
    + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0)
    + b"\x2c\0\0\0\0\xff\xff\xff\xff\0\2\0;",
}


@pytest.mark.parametrize("kind", HUGE)
def test_an_image_with_a_huge_size_in_its_header_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"huge.{kind}"
    path.write_bytes(HUGE[kind])
    with pytest.raises(UnreadableImage, match=r"megapixels, more than the 200 allowed"):
        read_image(path, 200.0)


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    """The image has 400 megapixels of one color: 5 megabytes in the file, and 1.2 gigabytes decoded."""
    path = tmp_path / "bomb.png"
    stream = zlib.compressobj(1)
    rows = bytes(1 + 3 * 20_000) * 100
    # After a full flush, equal rows are compressed to equal bytes, so the second block can be repeated.
    first, following = (stream.compress(rows) + stream.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    data = first + following * 199 + stream.flush()
    content = bytearray(_make_png(20_000, 20_000))
    chunk_start = content.index(b"IDAT") - 4  # The length of a chunk comes before its name.
    path.write_bytes(bytes(content[:chunk_start]) + struct.pack(">I", len(data)) + b"IDAT" + data)
    with pytest.raises(UnreadableImage, match="400 megapixels"):
        read_image(path, 200.0)


def test_endless_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "good.png")
    assert [ref.path.name for ref in list_images([tmp_path])] == ["good.png"]
    for name in ("pipe.png", "zero.png"):
        with pytest.raises(UnreadableImage):
            read_image(tmp_path / name, 1.0)
        with pytest.raises(InputError):
            list_images([tmp_path / name])


def test_links_are_followed_but_only_to_images(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "photos", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    Image.new("RGB", (8, 8), "blue").save(elsewhere / "good.png")
    (elsewhere / "secret").write_text("do not show\n" * 20)
    (folder / "linked.png").symlink_to(elsewhere / "good.png")
    (folder / "secret.png").symlink_to(elsewhere / "secret")
    store = load_store(list_images([folder]), Images(size=16), 1.0, None)
    assert [ref.path.name for ref in store.refs] == ["linked.png"]
    assert [(Path(item.name).name, item.reason) for item in store.skipped] == [
        ("secret.png", "not an image, or an unsupported format")
    ]


def _write_lying_video(path: Path, frames: int, table: bytes = b"stsz") -> Path:
    """Write an MP4 file of 9 frames whose tables claim a different number of frames.

    The table of times (stts) is always changed. The table of sizes (stsz) is changed if `table` is b"stsz".
    """
    encode_video(path, "mpeg4", frames=9)
    content = bytearray(path.read_bytes())
    if table == b"stsz":
        # Claim that all frames have 100 bytes (stsz) and are in the first chunk (stsc).
        struct.pack_into(">II", content, content.index(b"stsz") + 8, 100, frames)
        struct.pack_into(">I", content, content.index(b"stsc") + 16, frames)
    # Claim one entry for all frames in the table of times.
    struct.pack_into(">II", content, content.index(b"stts") + 8, 1, frames)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("reader", [video_av, video_opencv])
@pytest.mark.parametrize("frames", [10**6, 10**8, 2**31 - 1, 2**32 - 1])
def test_a_video_that_claims_more_frames_than_bytes_is_refused(
    frames: int, reader: ModuleType, tmp_path: Path
) -> None:
    path = _write_lying_video(tmp_path / "long.mp4", frames)
    for read in (reader.probe_video, lambda path: list(reader.read_frames(path, [0, 5]))):
        with pytest.raises(InputError, match=f"claims {frames:,} frames, but the file has [0-9,]+ bytes"):
            read(path)
    with pytest.raises(InputError, match=f"claims {frames:,} frames"):
        list_images([_write_lying_video(tmp_path / "times.mp4", frames, b"stts")])


def test_a_video_with_too_many_frames_is_to_be_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode_video(tmp_path / "long.mp4", "mpeg4", frames=9)
    monkeypatch.setattr(input_files, "MAX_FRAMES", 8)
    with pytest.raises(InputError, match="has 9 frames; split it into files of at most 8"):
        check_mp4_header(tmp_path / "long.mp4")


def test_the_rest_of_a_folder_is_read_if_the_header_of_a_video_is_false(tmp_path: Path) -> None:
    _write_lying_video(tmp_path / "lying.mp4", 10**8)
    encode_video(tmp_path / "good.mp4", "mpeg4", frames=9)
    (tmp_path / "huge.png").write_bytes(HUGE["png"])
    for number in range(3):
        Image.new("RGB", (32, 32), (99, number, 0)).save(tmp_path / f"{number}.png")
    refs = list_images([tmp_path])
    assert [(ref.path.name, ref.frame) for ref in refs if ref.path.suffix == ".mp4"] == [
        *(("good.mp4", frame) for frame in range(9)),
        ("lying.mp4", 0),
    ]
    store = load_store(refs, Images(size=16), 1.0, None)
    assert len(store.refs) == 12
    assert {Path(item.name.partition("#")[0]).name for item in store.skipped} >= {"huge.png"}
    assert len(store.skipped) == 2


def test_the_header_of_a_fragmented_or_nested_file_is_checked(tmp_path: Path) -> None:
    def make_box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(content), kind) + content

    def check(*boxes: bytes) -> None:
        path = tmp_path / "video.mp4"
        path.write_bytes(make_box(b"ftyp", b"isom") + b"".join(boxes))
        check_mp4_header(path)

    fragments = []
    for num_frames in (70, 60):
        frames = make_box(b"trun", struct.pack(">II", 0, num_frames))
        fragments.append(make_box(b"moof", make_box(b"traf", frames)))
    check(fragments[0], bytes(40))
    with pytest.raises(InputError, match="claims 130 frames"):  # The file has fewer bytes than 130.
        check(*fragments)
    with pytest.raises(InputError, match="compressed header"):
        check(make_box(b"moov", make_box(b"cmov", b"")))
    edits = make_box(b"elst", struct.pack(">II", 0, 2**30))
    with pytest.raises(InputError, match="claims 1,073,741,824 frames"):
        check(make_box(b"moov", make_box(b"trak", make_box(b"edts", edits))))
    nested = make_box(b"stsz", struct.pack(">III", 0, 1, 2**30))
    for kind in (b"stbl", b"minf", b"mdia", b"trak", b"moov"):
        nested = make_box(kind, nested)
    with pytest.raises(InputError, match="claims 1,073,741,824 frames"):
        check(nested)
    # In headers that are damaged or nested too deeply, no number of frames is found, so they pass.
    for damaged in (b"\0\0\0\1moov", b"\0\0\0\3moov", b"moov", nested[:40]):
        check(damaged)
    for _ in range(3_000):
        nested = make_box(b"moov", nested)
    check(nested)


def test_an_image_that_claims_more_pixels_than_its_bytes_can_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.png"
    path.write_bytes(_make_png(10_000, 10_000))
    with pytest.raises(UnreadableImage, match=r"claims 10,000 x 10,000 pixels, but the file has \d+ bytes"):
        read_image(path, 200.0)
    Image.new("1", (4_000, 3_000)).save(path)  # The image has one color and takes about 1.5 kilobytes.
    assert read_image(path, 200.0).shape == (3_000, 4_000, 3)


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n",
        b"#EXTM3U\n\xff\xfe#EXTINF:1,\nhttp://localhost/a.ts\n",
        b"ffconcat version 1.0\nfile '/etc/hostname'\n",
        b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"></MPD>\xff',
        b"just words\n",
    ],
)
def test_a_playlist_is_not_a_video(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(content)
    with pytest.raises(InputError, match="it is a text file or a playlist"):
        list_images([path])
    labels = {"images": [{"id": 1, "file_name": "video.mp4", "frame": 0}], "annotations": []}
    (tmp_path / "set.json").write_text(json.dumps(labels))
    with pytest.raises(
        InputError, match=r"none of the images could be read \(0 of 1\).*the video cannot be read"
    ):
        load_store(list_images([tmp_path / "set.json"]), Images(size=16), 1.0, None)


# --- labels and tables ------------------------------------------------------------------------------


def test_labels_that_would_need_far_more_memory_than_their_file_are_refused(tmp_path: Path) -> None:
    """A table of all names for all objects grows with the square of the file's size."""
    names = [f"name {number}" for number in range(1_001)]
    images = [{"id": number, "file_name": f"{number}.png"} for number in range(1_001)]
    annotations = [{"image_id": number, "keypoints": [1, 1, 2], name: 1} for number, name in enumerate(names)]
    path = tmp_path / "labels.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    file = read_coco(path)
    with pytest.raises(InputError, match=r"1,00\d different keys; at most 1,000 are allowed"):
        file.fields(file.annotations)
    sizes = {"original_width": 10, "original_height": 10, "type": "keypointlabels"}
    regions = [sizes | {"value": {"x": 1, "y": 1, "keypointlabels": [name]}} for name in names]
    task = {"data": {"image": "a.png"}, "annotations": [{"result": regions}]}
    path.write_text(json.dumps([task]))
    with pytest.raises(InputError, match=r"1,001 different labels; at most 1,000 are allowed"):
        read_label_file(path)


def test_a_table_with_many_individuals_of_one_body_part_each_is_refused(tmp_path: Path) -> None:
    """Every individual gets a list of all body parts, so memory grows with the square of the file's size."""

    def write(individuals: int, bodyparts: int) -> Path:
        pairs = [(f"i{n}", f"b{n % bodyparts}") for n in range(individuals)]
        lines = [
            ["scorer", *["s"] * (2 * individuals)],
            ["individuals", *[individual for individual, _ in pairs for _ in "xy"]],
            ["bodyparts", *[bodypart for _, bodypart in pairs for _ in "xy"]],
            ["coords", *["x", "y"] * individuals],
            ["a.png", *["1", "2"] * individuals],
        ]
        path = tmp_path / "labels.csv"
        path.write_text("".join(f"{','.join(line)}\n" for line in lines))
        return path

    with pytest.raises(InputError, match="a few of the 4,000 body parts of each of its 4,000 individuals"):
        read_label_file(write(4_000, 4_000))
    assert len(read_label_file(write(4_000, 20)).annotations) == 4_000
    assert len(read_label_file(write(30, 30)).annotations) == 30


def _read_points_file(path: Path) -> None:
    list(points_file._read_rows(path))


SPARSE: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "labels.json": (read_label_file, InputError),
    "labels.csv": (read_label_file, InputError),
    "boxes.csv": (read_csv_rows, InputError),
    "list.txt": (read_text_lines, InputError),
    "points.csv": (_read_points_file, InputError),
    "run.json": (read_json, InputError),
    "points.safetensors": (read_tensors, InputError),
    "photo.webp": (lambda path: read_image(path, 200.0), UnreadableImage),
    "header.webp": (read_image_size, UnreadableImage),
}


@pytest.mark.parametrize("name", SPARSE)
def test_large_files_that_consist_of_holes_are_not_read(name: str, tmp_path: Path) -> None:
    """They take hardly any space on the disk, but as much memory as their size."""
    read, error = SPARSE[name]
    path = tmp_path / name
    if name.endswith(".webp"):
        Image.new("RGB", (8, 8)).save(path)
    else:
        path.write_text("[" if name.endswith(".json") else "image,x,y\n")
    os.truncate(path, 500 << 20)
    with pytest.raises(error, match="damaged: most of its 524,288,000 bytes were never written"):
        read(path)


def test_large_files_without_holes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    with open(path, "wb") as handle:
        for _ in range(65):
            handle.write(b"x" * (1 << 20))
    with open_to_read(path, 1 << 30) as handle:
        assert handle.tell() == 0
        assert handle.read(1) == b"x"


def test_an_array_that_claims_more_numbers_than_bytes_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    content = (tmp_path / "a.npy").read_bytes()
    lying = content.replace(b"(3, 2), }      ", b"(3, 2000000), }")
    assert len(lying) == len(content)
    (tmp_path / "a.npy").write_bytes(lying)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xy.npy", lying)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(InputError, match=r"is not a file of plain NumPy arrays, or it is damaged"):
            load_arrays(tmp_path / name)
    np.savez_compressed(tmp_path / "a.npz", xy=np.zeros((1_000, 1_000)))
    assert load_arrays(tmp_path / "a.npz")["xy"].shape == (1_000, 1_000)


def test_archives_are_written_but_never_unpacked() -> None:
    """A path inside an archive therefore cannot overwrite a file."""
    uses = [
        (path.name, line.strip())
        for path in SOURCE.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"ZipFile\(|tarfile|unpack_archive|extractall", line)
    ]
    assert uses == [
        ("cvat.py", 'zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive,'),
        ("cvat.py", "with zipfile.ZipFile(path) as archive:"),  # This call reads back what was written.
    ]


def test_valid_models_can_still_be_loaded(quick_run: Path) -> None:
    detector = Detector.load(quick_run)
    pixels = torch.from_numpy(np.zeros((1, 3, 64, 64), np.uint8))
    assert detector.locate(pixels).xy.isfinite().all()
