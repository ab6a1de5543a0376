"""Choose the colors of landmarks: the colors that the user chose, or a default palette."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfmark.model.card import ModelCard


def palette(count: int) -> tuple[str, ...]:
    """Return `count` default colors, whose hues differ by the golden angle and whose brightness alternates.

    >>> palette(2)
    ('#ff3333', '#2856c7')
    """
    golden_ratio = 0.618034  # hue step, as a fraction of the color circle
    rgb = [
        colorsys.hsv_to_rgb(index * golden_ratio % 1.0, 0.8, 0.78 if index % 2 else 1.0)
        for index in range(count)
    ]
    return tuple("#" + "".join(f"{round(255 * channel):02x}" for channel in color) for color in rgb)


def landmark_colors(card: ModelCard) -> tuple[str, ...]:
    """Return the color "#rrggbb" of each landmark of a detector, including hidden ones."""
    defaults = palette(len(card.names))
    return tuple(chosen or default for chosen, default in zip(card.colors or defaults, defaults, strict=True))


def to_rgb(color: str) -> tuple[int, int, int]:
    """Return red, green and blue of "#rrggbb", each from 0 to 255.

    >>> to_rgb("#ff3300")
    (255, 51, 0)
    """
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return red, green, blue
