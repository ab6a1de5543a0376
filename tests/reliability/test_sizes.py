"""Files that claim huge sizes or point elsewhere are refused before they cost memory or time."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from selfmark.config import Images
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.images import video
from selfmark.images.decode import UnreadableImage, read_image
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.run.config_file import read_config
from selfmark.run.tensor_files import read_tensors

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
        ("images.max_megapixels", 1e12, "max_megapixels"),
        ("network.channels", 10**9, "network.channels must be between"),
        ("network.depth", 10**6, "network.depth must be between"),
        ("network.descriptor", 10**9, "network.descriptor must be between"),
        ("network.norm_groups", 0, "network.norm_groups must be between"),
        ("network.channels", 1024, "does not match"),  # half a gigabyte of weights that are not in the file
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
    part = content
    for section in sections:
        part = part[section]
    part[last] = value
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
def test_a_header_with_impossible_shapes_is_refused(
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


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99))


def _bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


HUGE = {
    "png": _png(100_000, 100_000),
    "bmp": _bmp(100_000, 100_000),
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
    """400 megapixels of one color: half a megabyte as a file, 1.2 gigabytes as pixels."""
    path = tmp_path / "bomb.png"
    stream = zlib.compressobj(1)
    rows = bytes(1 + 3 * 20_000) * 100
    # After a full flush, equal rows become equal bytes, so the second block can be repeated.
    first, following = (stream.compress(rows) + stream.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    data = first + following * 199 + stream.flush()
    content = bytearray(_png(20_000, 20_000))
    at = content.index(b"IDAT") - 4
    path.write_bytes(bytes(content[:at]) + struct.pack(">I", len(data)) + b"IDAT" + data)
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


def test_a_video_with_more_frames_than_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.mp4"
    path.write_bytes(b"\0\0\0\x18ftypisom" + bytes(4_000))
    monkeypatch.setattr(video, "count_frames", lambda path: 2**31)
    with pytest.raises(InputError, match="2147483648 frames, but the file is far too small"):
        list_images([path])


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


def test_archives_are_written_but_never_unpacked() -> None:
    """A path inside an archive therefore cannot overwrite a file."""
    uses = [
        (path.name, line.strip())
        for path in SOURCE.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"ZipFile\(|tarfile|unpack_archive|extractall", line)
    ]
    assert uses == [("cvat.py", 'zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,')]


def test_valid_models_can_still_be_loaded(quick_run: Path) -> None:
    detector = Detector.load(quick_run)
    pixels = torch.from_numpy(np.zeros((1, 3, 64, 64), np.uint8))
    assert detector.locate(pixels).xy.isfinite().all()
