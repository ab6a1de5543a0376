"""Paint the parts of the animal: choose a palette color for each point of a part's surface.

Every part is an ellipsoid. Points on its surface are given as points of the unit sphere (see `shape`).
Every landmark has a sharp mark, painted at its anchor (see `shape`). Marks are at the same positions on all
animals; only the palette differs. Functions paint only the left side: left limbs, and x >= 0 on middle parts.
The renderer mirrors points of the right side before it calls `paint`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from selfmark.demo.shape import Array, landmark_anchor

Colors = npt.NDArray[np.int8]  # [n] row of the palette for each point
Mask = npt.NDArray[np.bool_]

# Rows of the palette, an array [6, 3] of RGB colors in 0..1.
FUR, PALE, DARK, ACCENT, WHITE, BLACK = range(6)


def _coat(xyz: Array, color: int) -> Colors:
    """Return the same color for all points [3, n]."""
    return np.full(xyz.shape[1], color, np.int8)


def _disc(xyz: Array, center: Array, radius: float) -> Mask:
    """Return whether each of the points [3, n] is within `radius` of `center` [3]."""
    x, y, z = xyz - center[:, None]
    inside: Mask = x * x + y * y + z * z < radius * radius
    return inside


def _paint_head(xyz: Array) -> Colors:
    x, y, z = xyz
    coat = _coat(xyz, FUR)
    eye, blaze, cheek = landmark_anchor("eye"), landmark_anchor("forehead"), landmark_anchor("cheek")
    coat[(np.hypot((x - 0.36) / 1.05, y - 0.12) < 0.62) & (z < -0.3)] = PALE  # mask around the eyes
    for middle in (0.34, 0.62):  # stripes on the crown
        coat[(np.abs(x - middle - 0.12 * (y + 0.9)) < 0.065) & (y < -0.52) & (z < 0.55)] = DARK
    diamond = 1.4 * x + 0.8 * np.abs(y - blaze[1])
    coat[(diamond < 0.25) & (z < 0)] = PALE
    coat[(diamond < 0.14) & (z < 0)] = DARK
    for radius, color in ((0.285, BLACK), (0.235, WHITE), (0.150, BLACK)):
        coat[_disc(xyz, eye, radius)] = color
    coat[_disc(xyz, eye + np.array([0.05, -0.06, 0.0]), 0.055)] = WHITE
    for radius, color in ((0.24, WHITE), (0.15, ACCENT)):
        coat[_disc(xyz, cheek, radius)] = color
    return coat


def _paint_muzzle(xyz: Array) -> Colors:
    x, y, z = xyz
    coat = _coat(xyz, WHITE)
    corner = landmark_anchor("mouth")
    smile = corner[1] + 0.25 * (1.0 - (x / corner[0]) ** 2)
    coat[(x < 0.05) & (y < smile) & (z < 0)] = BLACK  # groove below the nose
    coat[(np.abs(y - smile) < 0.075) & (x < corner[0]) & (z < 0)] = BLACK
    coat[_disc(xyz, corner, 0.15)] = BLACK
    return coat


def _paint_nose(xyz: Array) -> Colors:
    coat = _coat(xyz, BLACK)
    coat[_disc(xyz, landmark_anchor("nose"), 0.22)] = PALE
    return coat


def _paint_ear(xyz: Array) -> Colors:
    x, y, z = xyz
    coat = _coat(xyz, FUR)
    coat[(np.hypot(x, 0.72 * (y - 0.12)) < 0.62) & (z < 0)] = ACCENT
    coat[_disc(xyz, landmark_anchor("ear_tip"), 0.52)] = DARK
    coat[_disc(xyz, landmark_anchor("ear_tip"), 0.17)] = WHITE
    coat[_disc(xyz, landmark_anchor("ear_base"), 0.27)] = WHITE
    return coat


def _paint_torso(xyz: Array) -> Colors:
    x, y, z = xyz
    coat = _coat(xyz, FUR)
    coat[(np.hypot(x, 0.75 * (y - 0.18)) < 0.60) & (z < 0)] = PALE
    down = y - landmark_anchor("chest")[1]  # heart: two round lobes above, a tip below
    heart = np.where(down < 0, np.hypot(x - 0.13, down) < 0.15, 0.75 * x + 0.62 * down < 0.20)
    coat[heart & (z < 0)] = ACCENT
    coat[_disc(xyz, landmark_anchor("belly"), 0.17)] = DARK
    coat[_disc(xyz, landmark_anchor("belly"), 0.075)] = WHITE
    for level in (-0.15, 0.25):  # stripes on the flanks
        coat[(np.abs(y - level - 0.2 * x) < 0.06) & (x > 0.75)] = DARK
    return coat


def _paint_upper_arm(xyz: Array) -> Colors:
    coat = _coat(xyz, FUR)
    coat[_disc(xyz, landmark_anchor("shoulder"), 0.48)] = WHITE
    coat[_disc(xyz, landmark_anchor("shoulder"), 0.28)] = DARK
    return coat


def _paint_forearm(xyz: Array) -> Colors:
    coat = _coat(xyz, FUR)
    coat[np.abs(xyz[1] + 0.05) < 0.16] = DARK
    return coat


def _paint_pads(xyz: Array, name: str) -> Colors:
    """Paint a pale sole with one large pad and three toes."""
    coat = _coat(xyz, PALE)
    coat[_disc(xyz, landmark_anchor(name), 0.40)] = DARK
    for x, y in ((-0.42, -0.42), (0.0, -0.58), (0.42, -0.42)):
        coat[_disc(xyz, np.array([x, y, -np.sqrt(1.0 - x * x - y * y)]), 0.17)] = DARK
    return coat


def _paint_tail(xyz: Array) -> Colors:
    coat = _coat(xyz, FUR)
    coat[np.sin(9.0 * xyz[2]) > 0] = DARK
    return coat


_PAINTERS: dict[str, Callable[[Array], Colors]] = {
    "head": _paint_head,
    "muzzle": _paint_muzzle,
    "nose": _paint_nose,
    "ear": _paint_ear,
    "torso": _paint_torso,
    "upper_arm": _paint_upper_arm,
    "forearm": _paint_forearm,
    "paw": lambda xyz: _paint_pads(xyz, "paw"),
    "thigh": lambda xyz: _coat(xyz, FUR),
    "foot": lambda xyz: _paint_pads(xyz, "foot"),
    "tail": _paint_tail,
    "tail_tip": _paint_tail,
}


def paint(kind: str, xyz: Array, palette: Array) -> Array:
    """Return the colors of points on a part, with slightly uneven fur.

    Args:
        kind: Name of the part.
        xyz: [3, n] points on the surface of the part, as points on the unit sphere.
        palette: [6, 3] colors, RGB in 0..1.

    Returns:
        Colors [3, n].
    """
    x, y, z = xyz
    fur = 1.0 + 0.05 * np.sin(9.0 * y + 28.0 * x * x) * np.cos(8.0 * z + 3.0 * y)
    color: Array = palette.T[:, _PAINTERS[kind](xyz)] * fur
    return color
