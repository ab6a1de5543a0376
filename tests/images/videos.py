"""Videos of every kind, made with PyAV, whose frames can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

av: Any = pytest.importorskip("av")

MILLISECOND = Fraction(1, 1000)


def number_of(image: np.ndarray) -> int:
    """The number of a frame by its brightness."""
    return round((float(image[..., 1].mean()) - 8) / 6)


def encode_video(
    path: Path,
    codec: str,
    frames: int = 40,
    pixels: str = "yuv420p",
    size: tuple[int, int] = (64, 48),
    milliseconds: Sequence[int] | None = None,
    turned: int | None = None,
    gop: int = 12,
    noise: int = 0,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
) -> Path:
    """Green is 8 + 6 i in frame i, from 41 on anew; red fills the left half, blue the right; or noise."""
    rng = np.random.default_rng(0)
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV cannot write {codec}")
    unit = Fraction(1, 25) if milliseconds is None else MILLISECOND
    with av.open(str(path), "w", options=container or {}) as file:
        stream = file.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt, stream.gop_size, stream.codec_context.time_base = pixels, gop, unit
        stream.options = options or {}
        if turned is not None:
            stream.set_display_rotation(turned)
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
