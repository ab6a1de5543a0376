"""Encode videos in many formats with PyAV; the green value of a frame encodes its number."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

av: Any = pytest.importorskip("av")

MILLISECOND = Fraction(1, 1000)


def read_frame_number(image: np.ndarray) -> int:
    """Return the number of a frame, modulo 41, from its green value."""
    return round((float(image[..., 1].mean()) - 8) / 6)


def encode_video(
    path: Path,
    codec: str,
    *,
    frames: int = 40,
    pixels: str = "yuv420p",
    size: tuple[int, int] = (64, 48),
    milliseconds: Sequence[int] | None = None,
    rotation: int | None = None,
    gop: int = 12,
    noise: int = 0,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
) -> Path:
    """Write a video: green is 8 + 6 (i mod 41) in frame i, red fills the left half, blue the right half.

    The modulus keeps green below 256.

    Args:
        path: the file; its extension selects the container.
        codec: name of the encoder.
        frames: number of frames.
        pixels: pixel format.
        size: width and height, pixels.
        milliseconds: display time of each frame; None for 25 frames per second.
        rotation: rotation at display, degrees counterclockwise; None for no display matrix.
        gop: distance between key frames.
        noise: if not 0, fill red and blue with random values below `noise`, which makes the file larger.
        options: options of the encoder.
        container: options of the container.
    """
    rng = np.random.default_rng(0)
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV cannot write {codec}")
    unit = Fraction(1, 25) if milliseconds is None else MILLISECOND
    with av.open(str(path), "w", options=container or {}) as file:
        stream = file.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt, stream.gop_size, stream.codec_context.time_base = pixels, gop, unit
        stream.options = options or {}
        if rotation is not None:
            stream.set_display_rotation(rotation)
        for number in range(frames):
            image = np.zeros((size[1], size[0], 3), np.uint8)
            image[:, : size[0] // 2, 0] = image[:, size[0] // 2 :, 2] = 200
            image[..., 1] = 8 + 6 * (number % 41)
            if noise:
                image[..., ::2] = rng.integers(0, noise, (size[1], size[0], 2))
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = milliseconds[number] if milliseconds else number, unit
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path


def encode_changing_video(path: Path, sizes: Sequence[tuple[int, int]]) -> Path:
    """Write a Matroska video of JPEG images in which every frame has its own width and height.

    The header has the size of the first frame. Frames are filled with noise.
    """
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mjpeg", rate=10)
        stream.width, stream.height = sizes[0]
        stream.pix_fmt = "yuvj420p"
        for number, (width, height) in enumerate(sizes):
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "JPEG", subsampling=2)
            packet = av.Packet(buffer.getvalue())
            packet.stream, packet.time_base = stream, MILLISECOND
            packet.pts = packet.dts = 100 * number
            packet.is_keyframe = True
            file.mux(packet)
    return path
