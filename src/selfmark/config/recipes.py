"""Recipes: named groups of settings for common kinds of images."""

from __future__ import annotations

from typing import Any

from selfmark.errors import InputError, suggest

AUTO_RECIPE = "auto"

RECIPES: dict[str, dict[str, Any]] = {
    # Upright objects seen from the front, such as faces: left and right parts are mirror partners.
    "upright": {"features.orientation": "upright", "flip.partner": "found"},
    # Objects that face any direction in the image, such as animals seen from above.
    "any-orientation": {"features.orientation": "not-upright", "augment.rotation": 180.0},
    # Upright objects that face left or right: the mirror image shows the same parts, not their partners.
    "side-view": {"features.orientation": "upright", "flip.partner": "itself"},
    # Objects whose parts differ in color between individuals.
    "many-colors": {
        "augment.color_fraction": 0.8,
        "augment.hue": 180.0,
        "augment.saturation": (0.2, 1.8),
        "augment.contrast": (0.6, 1.5),
        "augment.negative_fraction": 0.3,
    },
}


def recipe_settings(name: str) -> dict[str, Any]:
    """Return a mapping from dotted names to values of a recipe's settings.

    The mapping is empty for `auto`, so that the run decides.

    >>> recipe_settings("side-view")["flip.partner"]
    'itself'
    """
    if name == AUTO_RECIPE:
        return {}
    if name not in RECIPES:
        suggestion = suggest(name, RECIPES)
        raise InputError(
            f"unknown recipe '{name}'"
            + (f".{suggestion}" if suggestion else f"; choose auto or one of {', '.join(RECIPES)}")
        )
    return dict(RECIPES[name])
