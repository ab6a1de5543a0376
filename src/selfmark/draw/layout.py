"""Lay out labeled pictures: the picture itself, optionally a second picture on its left, and a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from selfmark.draw.frame_drawing import DrawingStyle, DrawnObject, draw_frame
from selfmark.draw.primitives import BLACK, WHITE, draw_disc, draw_label, draw_line, measure_label
from selfmark.images.decode import Pixels
from selfmark.model.card import ModelCard, untrusted_landmarks
from selfmark.model.colors import landmark_colors, to_rgb
from selfmark.points import FloatArray

LabelText = Literal["none", "numbers", "names"]
"""Text beside each landmark."""

_GAP = 6  # width of the white gap between two pictures, pixels
_MIN_ROW, _MAX_ROW = 14, 30  # limits of the height of a row of the legend, pixels
_BAR = 50  # length of a full bar in the legend, pixels
_BACKGROUND = 30  # gray level of the legend
_TITLE = 18  # font size of titles, pixels
_BAR_TRACK_COLOR = (150, 150, 150)  # thin line behind a bar, as long as a full bar


@dataclass(frozen=True)
class Layout:
    """What a labeled picture shows besides the landmarks.

    Attributes:
        text: Text beside each landmark.
        has_legend: Whether a list of all landmarks with their scores is on the right.
        has_before: Whether a second picture is on the left. It shows the landmarks before smoothing, or no
            landmarks if they are not smoothed.
    """

    text: LabelText = "none"
    has_legend: bool = False
    has_before: bool = False


@dataclass(frozen=True)
class PictureStyle:
    """Everything that the labeled pictures of one model have in common.

    Attributes:
        drawing: How landmarks are drawn.
        layout: What is shown besides the landmarks.
        names: Names of the visible landmarks.
        numbers: Number of each visible landmark among all landmarks, including hidden ones.
        titles: Titles of the left and the right picture.
    """

    drawing: DrawingStyle
    layout: Layout
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    titles: tuple[str, str]


def build_style(card: ModelCard, numbers: Sequence[int], smoothing: str, layout: Layout) -> PictureStyle:
    """Return the style of labeled pictures.

    Args:
        card: Model card with only the visible landmarks.
        numbers: Number of each visible landmark among all landmarks.
        smoothing: Name of the smoothing method; empty if landmarks are not smoothed.
        layout: What to show besides the landmarks.
    """
    texts = {
        "none": ("",) * len(card.names),
        "numbers": tuple(str(number) for number in numbers),
        "names": card.names,
    }
    colors = np.array([to_rgb(color) for color in landmark_colors(card)], np.uint8)
    hollow = frozenset(untrusted_landmarks(card))
    titles = ("predicted", f"smoothed ({smoothing})") if smoothing else ("image", "landmarks")
    drawing = DrawingStyle(colors, card.skeleton, hollow, texts[layout.text])
    return PictureStyle(drawing, layout, card.names, tuple(numbers), titles)


def compose_picture(
    frame: Pixels, objects: Sequence[DrawnObject], before: Sequence[DrawnObject], style: PictureStyle
) -> Pixels:
    """Draw one labeled picture.

    Args:
        frame: [H, W, 3] the picture without landmarks.
        objects: Objects to draw.
        before: Objects to draw on the left picture, if the layout has one.
        style: Style and layout.

    Returns:
        [H, W', 3]; wider than the frame if the layout has a legend or a picture on the left.
    """
    picture = draw_frame(frame, objects, style.drawing)
    if style.layout.has_before:
        left = draw_frame(frame, before, style.drawing)
        for canvas, title in zip((left, picture), style.titles, strict=True):
            draw_label(canvas, title, (6, 22), _TITLE)
        gap = np.full((len(frame), _GAP, 3), 255, np.uint8)
        picture = np.concatenate([left, gap, picture], axis=1)
    if style.layout.has_legend:
        picture = np.concatenate([picture, _draw_legend(len(frame), objects, style)], axis=1)
    return np.ascontiguousarray(picture)


def _draw_legend(height: int, objects: Sequence[DrawnObject], style: PictureStyle) -> Pixels:
    """Draw a list of the landmarks: color, number, name, and a bar for the score.

    The bar is full if the score is at least the typical score. For several objects, the bar shows the mean.
    """
    count = len(style.names)
    row_height = int(np.clip((height - 4) // max(count, 1), _MIN_ROW, _MAX_ROW))
    rows = max(1, (height - 4) // row_height)
    font_height, radius = round(row_height * 0.55), row_height * 0.28
    labels = [
        str(number) if name == str(number) else f"{number} {name}"
        for number, name in zip(style.numbers, style.names, strict=True)
    ]
    text_width = max(measure_label(label, font_height)[0] for label in labels)
    column_width = row_height + text_width + _BAR + 20
    columns = math.ceil(count / rows)
    canvas = np.full((height, columns * column_width, 3), _BACKGROUND, np.uint8)
    confidence = _compute_mean_confidence(objects, count)
    for index, label in enumerate(labels):
        left, top = index // rows * column_width, 2 + index % rows * row_height
        middle = top + row_height / 2
        center: FloatArray = np.array([left + row_height / 2, middle])
        draw_disc(canvas, center, radius + 1, BLACK)
        draw_disc(canvas, center, radius, style.drawing.colors[index].tolist())
        if index in style.drawing.hollow:
            draw_disc(canvas, center, radius * 0.55, (_BACKGROUND,) * 3)
        text_left = left + row_height
        draw_label(canvas, label, (text_left, round(middle + font_height * 0.36)), font_height)
        bar_start, bar_length = np.array([text_left + text_width + 10, middle]), np.array([_BAR, 0])
        draw_line(canvas, bar_start, bar_start + bar_length, 1, _BAR_TRACK_COLOR)
        if confidence[index] > 0:
            bar_end = bar_start + confidence[index] * bar_length
            draw_line(canvas, bar_start, bar_end, max(2, row_height // 5), WHITE)
    return canvas


def _compute_mean_confidence(objects: Sequence[DrawnObject], count: int) -> FloatArray:
    """Return the mean confidence [K] of each landmark over the objects in which its position is known."""
    total, seen = np.zeros(count), np.zeros(count)
    for instance in objects:
        known = np.isfinite(instance.xy).all(axis=1)
        total += np.where(known, instance.confidence, 0.0)
        seen += known
    return np.asarray(total / np.maximum(seen, 1), dtype=np.float64)
