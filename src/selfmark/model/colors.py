"""The color of every landmark: the user's, or the usual one of its number. The same wherever it is drawn."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfmark.model.card import ModelCard


def palette(count: int) -> tuple[str, ...]:
    """The usual colors: hues a golden angle apart, in two brightnesses by turns.

    >>> palette(2)
    ('#ff3333', '#2856c7')
    """
    golden = 0.618034
    rgb = [
        colorsys.hsv_to_rgb(index * golden % 1.0, 0.8, 0.78 if index % 2 else 1.0) for index in range(count)
    ]
    return tuple("#" + "".join(f"{round(255 * part):02x}" for part in color) for color in rgb)


def landmark_colors(card: ModelCard) -> tuple[str, ...]:
    """The color "#rrggbb" of each landmark of a detector, hidden ones too."""
    usual = palette(len(card.names))
    return tuple(own or other for own, other in zip(card.colors or usual, usual, strict=True))


def to_rgb(color: str) -> tuple[int, int, int]:
    """Red, green and blue, 0 to 255, the way pictures have them.

    >>> to_rgb("#ff3300")
    (255, 51, 0)
    """
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return red, green, blue
