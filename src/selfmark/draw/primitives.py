"""Anti-aliased discs, rings, lines and text.

Text is positioned to whole pixels, everything else to a sixteenth of a pixel. All functions draw in place on
a uint8 RGB canvas [H, W, 3]. Points are (x, y) with pixel centers at integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.images.decode import Pixels
from selfmark.points import FloatArray

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
SUBPIXEL_BITS = 4  # fractional bits in the fixed-point coordinates that cv2 draws with

_MAX_COORDINATE = 1e4  # coordinates are clipped to this range, so that fixed-point numbers cannot overflow
_FILLED = -1


def to_fixed_point(xy: FloatArray) -> npt.NDArray[np.int64]:
    """Convert coordinates in pixels to the fixed-point numbers that cv2 draws with."""
    clipped = np.clip(xy, -_MAX_COORDINATE, _MAX_COORDINATE)
    return np.asarray(np.round(clipped * 2**SUBPIXEL_BITS), dtype=np.int64)


def draw_disc(canvas: Pixels, center: FloatArray, radius: float, color: Sequence[int]) -> None:
    """Draw a filled circle."""
    draw_ring(canvas, center, radius, _FILLED, color)


def draw_ring(canvas: Pixels, center: FloatArray, radius: float, width: int, color: Sequence[int]) -> None:
    """Draw the outline of a circle, `width` pixels wide."""
    fixed_radius = int(radius * 2**SUBPIXEL_BITS)
    cv2.circle(
        canvas, to_fixed_point(center).tolist(), fixed_radius, color, width, cv2.LINE_AA, SUBPIXEL_BITS
    )


def draw_line(canvas: Pixels, start: FloatArray, end: FloatArray, width: int, color: Sequence[int]) -> None:
    """Draw a straight line, at least one pixel wide."""
    ends = to_fixed_point(np.stack([start, end])).tolist()
    cv2.line(canvas, ends[0], ends[1], color, max(width, 1), cv2.LINE_AA, SUBPIXEL_BITS)


def draw_text(canvas: Pixels, text: str, corner: tuple[int, int], scale: float, outline: int) -> None:
    """Draw white text with a black outline.

    Args:
        canvas: Picture to draw on.
        text: Text to draw.
        corner: Lower left corner of the text, in whole pixels.
        scale: Font size relative to the default.
        outline: Stroke width of the black copy drawn behind the white text, in pixels.
    """
    for color, width in ((BLACK, outline), (WHITE, 1)):
        cv2.putText(canvas, text, corner, cv2.FONT_HERSHEY_SIMPLEX, scale, color, width, cv2.LINE_AA)
