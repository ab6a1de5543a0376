"""Draw anti-aliased discs, rings, lines and text.

Text is positioned at whole pixels, everything else with a precision of 1/16 pixel. All functions draw in
place on a uint8 RGB canvas [H, W, 3]. Points are (x, y) with pixel centers at integers.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from selfmark.images.decode import Pixels
from selfmark.points import FloatArray

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
SUBPIXEL_BITS = 4  # fractional bits in the fixed-point coordinates that cv2 draws with

_MAX_COORDINATE = 1e4  # coordinates are clipped to this range, so that fixed-point numbers cannot overflow
_FILLED = -1  # the line width for which cv2 fills a circle


def to_fixed_point(xy: FloatArray) -> npt.NDArray[np.int64]:
    """Convert coordinates in pixels to the fixed-point numbers that cv2 draws with."""
    clipped = np.clip(xy, -_MAX_COORDINATE, _MAX_COORDINATE)
    return np.asarray(np.round(clipped * 2**SUBPIXEL_BITS), dtype=np.int64)


def draw_disc(canvas: Pixels, center: FloatArray, radius: float, color: Sequence[int]) -> None:
    """Draw a filled circle."""
    draw_ring(canvas, center, radius, _FILLED, color)


def draw_ring(canvas: Pixels, center: FloatArray, radius: float, width: int, color: Sequence[int]) -> None:
    """Draw the outline of a circle with a line that is `width` pixels wide."""
    fixed_radius = int(radius * 2**SUBPIXEL_BITS)
    cv2.circle(
        canvas, to_fixed_point(center).tolist(), fixed_radius, color, width, cv2.LINE_AA, SUBPIXEL_BITS
    )


def draw_line(canvas: Pixels, start: FloatArray, end: FloatArray, width: int, color: Sequence[int]) -> None:
    """Draw a straight line, at least one pixel wide."""
    endpoints = to_fixed_point(np.stack([start, end])).tolist()
    cv2.line(canvas, endpoints[0], endpoints[1], color, max(width, 1), cv2.LINE_AA, SUBPIXEL_BITS)


def draw_text(canvas: Pixels, text: str, corner: tuple[int, int], scale: float, outline: int) -> None:
    """Draw white text with a black outline.

    Args:
        canvas: Picture to draw on.
        text: Text to draw.
        corner: Lower left corner of the text, in whole pixels.
        scale: Font size relative to the default of cv2.
        outline: Stroke width of the black text that is drawn below the white text, in pixels.
    """
    for color, width in ((BLACK, outline), (WHITE, 1)):
        cv2.putText(canvas, text, corner, cv2.FONT_HERSHEY_SIMPLEX, scale, color, width, cv2.LINE_AA)


def measure_label(text: str, height: int) -> tuple[int, int]:
    """Return the width of a label, and its height above the baseline, in pixels."""
    _, top, right, _ = _load_font(height).getbbox(text, anchor="ls", stroke_width=1)
    return math.ceil(right), math.ceil(-top)


def draw_label(canvas: Pixels, text: str, corner: tuple[int, int], height: int) -> None:
    """Draw a small white text with a thin black outline.

    Unlike `draw_text`, this function can draw characters that are not ASCII if matplotlib is installed.

    Args:
        canvas: Picture to draw on.
        text: Text to draw.
        corner: Left end of the baseline, in whole pixels.
        height: Font size in pixels.
    """
    width = measure_label(text, height)[0] + 2
    left, top = max(corner[0] - 2, 0), max(corner[1] - 2 * height, 0)
    window = canvas[top : corner[1] + height, left : corner[0] + width]
    if not window.size:
        return
    picture = Image.fromarray(np.ascontiguousarray(window))
    start = (corner[0] - left, corner[1] - top)
    ImageDraw.Draw(picture).text(
        start, text, WHITE, _load_font(height), anchor="ls", stroke_width=1, stroke_fill=BLACK
    )
    window[:] = np.asarray(picture)


@lru_cache(maxsize=16)
def _load_font(height: int) -> Any:
    """Load a font of matplotlib; without matplotlib, load the font of Pillow, which has only ASCII."""
    matplotlib = importlib.util.find_spec("matplotlib")
    if matplotlib is not None and matplotlib.origin is not None:
        file = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if file.exists():
            return ImageFont.truetype(str(file), height)
    return ImageFont.load_default(size=height)
