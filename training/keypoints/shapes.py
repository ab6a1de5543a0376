"""Draw shapes with exactly known points: corners, junctions, tips and small blobs.

Shapes never touch each other, because crossing outlines would create further points that are not known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from training.keypoints.drawing import (
    Array,
    Image,
    choose_tone,
    draw_ellipse,
    draw_gaussian,
    draw_polygons,
    draw_strokes,
    make_closed_curve,
    make_clouds,
    make_rotation,
    make_smooth_surface,
    make_texture,
)

NO_POINTS = np.zeros((0, 2))
CLEARANCE = 7  # minimum distance between shapes, pixels
CLEARANCE_KERNEL = np.ones((2 * CLEARANCE + 1, 2 * CLEARANCE + 1), np.uint8)
MIN_ANGLE, MAX_ANGLE = np.radians(20), np.radians(145)  # range of angles that count as a corner


@dataclass(frozen=True)
class Shape:
    """Layers of a shape, drawn in order, and its points.

    Attributes:
        layers: Coverage [S, S] and tone of each layer.
        points: Points [P, 2] in pixels.
    """

    layers: list[tuple[Image, float]]
    points: Array


# Function that draws a shape. Its arguments are a random generator, the side of the image, the center and the
# radius of the shape (all in pixels), and the gray value of the background.
Maker = Callable[[np.random.Generator, int, Array, float, float], Shape]


def draw_polygon(rng: np.random.Generator, side: int, center: Array, radius: float, ground: float) -> Shape:
    """Draw a polygon with three to seven corners that are neither too sharp nor too blunt."""
    for _ in range(30):
        count = int(rng.integers(3, 8))
        angle = np.sort(rng.uniform(0, 2 * np.pi, count))
        distance = radius * rng.uniform(0.5, 1, count)
        corners = center + distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        if _are_corners(corners, min_edge=max(8.0, 0.3 * radius)):
            break
    else:
        turn = make_rotation(rng.uniform(0, np.pi))
        corners = center + radius * 0.7 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) @ turn.T
    return Shape([(draw_polygons(side, [corners]), choose_tone(rng, ground))], corners)


def _are_corners(corners: Array, min_edge: float) -> bool:
    """Return True if all corners of a polygon are clearly visible.

    Triangles and quadrilaterals must also be convex.

    Args:
        corners: Corners [n, 2] in order.
        min_edge: Minimum length of an edge in pixels.
    """
    to_previous, to_next = np.roll(corners, 1, axis=0) - corners, np.roll(corners, -1, axis=0) - corners
    lengths = np.linalg.norm(to_next, axis=1)
    cosine = (to_previous * to_next).sum(axis=1) / np.maximum(
        1e-9, np.linalg.norm(to_previous, axis=1) * lengths
    )
    angle = np.arccos(np.clip(cosine, -1, 1))
    turn = to_next[:, 0] * to_previous[:, 1] - to_next[:, 1] * to_previous[:, 0]
    is_convex = bool((turn > 0).all() or (turn < 0).all())
    are_angles_clear = bool(((angle > MIN_ANGLE) & (angle < MAX_ANGLE)).all())
    are_edges_long = bool(lengths.min() > min_edge)
    return (is_convex or len(corners) > 4) and are_angles_clear and are_edges_long


def draw_star(rng: np.random.Generator, side: int, center: Array, radius: float, ground: float) -> Shape:
    """Draw rays from a center. The center and the ends are points."""
    count = int(rng.integers(3, 7))
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False) + rng.uniform(0, 2 * np.pi)
    angle += rng.uniform(-0.3, 0.3, count)
    ends = center + (radius * rng.uniform(0.5, 1, count))[:, None] * np.stack(
        [np.cos(angle), np.sin(angle)], 1
    )
    mask = draw_strokes(side, [(center, end) for end in ends], rng.uniform(1.5, 4))
    return Shape([(mask, choose_tone(rng, ground))], np.concatenate([center[None], ends]))


def draw_lines(rng: np.random.Generator, side: int, center: Array, radius: float, ground: float) -> Shape:
    """Draw a few strokes. Their ends and crossings are points."""
    segments: list[tuple[Array, Array]] = []
    for _ in range(int(rng.integers(2, 6))):
        angle, middle = rng.uniform(0, np.pi), center + rng.uniform(-0.3, 0.3, 2) * radius
        half = radius * rng.uniform(0.4, 0.7) * np.array([np.cos(angle), np.sin(angle)])
        segments.append((middle - half, middle + half))
    points = [end for segment in segments for end in segment]
    for (a, b), (c, d) in itertools.combinations(segments, 2):
        first, second = b - a, d - c
        cross = first[0] * second[1] - first[1] * second[0]
        if abs(cross) < 0.35 * np.linalg.norm(first) * np.linalg.norm(second):
            # The intersection of nearly parallel segments is ill-defined, so draw another shape instead.
            if _are_segments_near(a, b, c, d):
                return draw_polygon(rng, side, center, radius, ground)
            continue
        # The lines meet at a + s * first and at c + t * second.
        s = ((c - a)[0] * second[1] - (c - a)[1] * second[0]) / cross
        t = ((c - a)[0] * first[1] - (c - a)[1] * first[0]) / cross
        if 0 <= s <= 1 and 0 <= t <= 1:
            points.append(a + s * first)
    return Shape(
        [(draw_strokes(side, segments, rng.uniform(1, 3.5)), choose_tone(rng, ground))], np.array(points)
    )


def _are_segments_near(a: Array, b: Array, c: Array, d: Array) -> bool:
    """Return True if the segments ab and cd come closer than 10 pixels."""
    steps = np.linspace(0, 1, 12)[:, None]
    gaps = np.linalg.norm((a + steps * (b - a))[:, None] - (c + steps * (d - c))[None], axis=-1)
    return bool(gaps.min() < 10)


def _make_grid(rng: np.random.Generator, center: Array, radius: float, rows: int, columns: int) -> Array:
    """Return the corners [rows + 1, columns + 1, 2] of the cells of a random grid in perspective."""
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * 0.72 * radius
    corners = corners * np.array([1.0, rng.uniform(0.6, 1.0)]) + rng.uniform(-0.15, 0.15, (4, 2)) * radius
    corners = center + corners @ make_rotation(rng.uniform(0, 2 * np.pi)).T
    unit = np.array([[0, 0], [columns, 0], [columns, rows], [0, rows]], np.float32)
    matrix = cv2.getPerspectiveTransform(unit, corners.astype(np.float32))
    y, x = np.mgrid[: rows + 1, : columns + 1].astype(np.float64)
    nodes = cv2.perspectiveTransform(np.stack([x, y], axis=-1).reshape(-1, 1, 2), matrix)
    return np.asarray(nodes, np.float64).reshape(rows + 1, columns + 1, 2)


def _get_cell(nodes: Array, row: int, column: int) -> Array:
    return np.array(
        [nodes[row, column], nodes[row, column + 1], nodes[row + 1, column + 1], nodes[row + 1, column]]
    )


def draw_checkerboard(
    rng: np.random.Generator, side: int, center: Array, radius: float, ground: float
) -> Shape:
    """Draw dark and light cells. Every corner of a cell is a point."""
    max_cells = max(2, min(8, int(radius / 9)))
    rows, columns = int(rng.integers(2, max_cells + 1)), int(rng.integers(2, max_cells + 1))
    nodes = _make_grid(rng, center, radius, rows, columns)
    light = choose_tone(rng, ground)
    dark = choose_tone(rng, ground, light)
    board = np.concatenate([nodes[0], nodes[1:, -1], nodes[-1, -2::-1], nodes[-2:0:-1, 0]])
    cells = [_get_cell(nodes, r, c) for r in range(rows) for c in range(columns) if (r + c) % 2]
    return Shape(
        [(draw_polygons(side, [board]), light), (draw_polygons(side, cells), dark)], nodes.reshape(-1, 2)
    )


def draw_stripes(rng: np.random.Generator, side: int, center: Array, radius: float, ground: float) -> Shape:
    """Draw parallel bars. Their corners are points."""
    columns = 2 * int(rng.integers(1, max(2, min(5, int(radius / 14))) + 1)) + 1
    nodes = _make_grid(rng, center, radius, 1, columns)
    bars = [_get_cell(nodes, 0, column) for column in range(0, columns, 2)]
    return Shape([(draw_polygons(side, bars), choose_tone(rng, ground))], np.concatenate(bars))


def draw_cube(rng: np.random.Generator, side: int, center: Array, radius: float, ground: float) -> Shape:
    """Draw a box seen from a corner. Its seven visible corners are points."""
    yaw, pitch = rng.uniform(0.35, 1.2), rng.uniform(0.3, 0.8)
    size = rng.uniform(0.6, 1.0, 3)
    corners = np.array(list(itertools.product((-1, 1), repeat=3))) * size
    x = corners[:, 0] * np.cos(yaw) - corners[:, 2] * np.sin(yaw)
    z = corners[:, 0] * np.sin(yaw) + corners[:, 2] * np.cos(yaw)
    y = corners[:, 1] * np.cos(pitch) - z * np.sin(pitch)
    flat = np.stack([x, y], axis=1) * radius * 0.55
    seen = center + flat @ make_rotation(rng.uniform(0, 2 * np.pi)).T
    depth = corners[:, 1] * np.sin(pitch) + z * np.cos(pitch)
    nearest_corner = int(depth.argmin())
    layers: list[tuple[Image, float]] = []
    tones: list[float] = []
    for axis in range(3):
        face = [i for i in range(8) if corners[i, axis] == corners[nearest_corner, axis]]
        ring = np.array([face[0], face[1], face[3], face[2]])
        tones.append(choose_tone(rng, ground, *tones))
        layers.append((draw_polygons(side, [seen[ring]]), tones[-1]))
    hidden_corner = int(depth.argmax())
    return Shape(layers, np.delete(seen, hidden_corner, axis=0))


def draw_oval(rng: np.random.Generator, side: int, center: Array, radius: float, ground: float) -> Shape:
    """Draw a large ellipse or smooth blob without points."""
    radius = max(radius, 22.0)
    if rng.random() < 0.5:
        mask = draw_ellipse(side, center, (radius, radius * rng.uniform(0.6, 1)), rng.uniform(0, np.pi))
    else:
        mask = draw_polygons(side, [make_closed_curve(rng, center, 0.8 * radius, 0.12)])
    return Shape([(mask, choose_tone(rng, ground))], NO_POINTS)


def draw_dots(rng: np.random.Generator, side: int, center: Array, radius: float, ground: float) -> Shape:
    """Draw small discs, rings and soft blobs. Their centers are points."""
    centers: list[Array] = []
    mask = np.zeros((side, side), np.float32)
    for _ in range(int(rng.integers(1, 7))):
        size = rng.uniform(1.8, 9.0)
        place = center + rng.uniform(-0.8, 0.8, 2) * radius
        if any(np.linalg.norm(place - other) < 28 for other in centers):
            continue
        centers.append(place)
        radii, turn = (size, size * rng.uniform(0.6, 1.0)), rng.uniform(0, np.pi)
        kind = rng.integers(3)
        if kind == 0:
            spot = draw_gaussian(side, place, (0.6 * radii[0], 0.6 * radii[1]), turn)
        else:
            spot = draw_ellipse(side, place, radii, turn)
            if kind == 2 and size > 4:
                spot = spot - draw_ellipse(side, place, (0.5 * radii[0], 0.5 * radii[1]), turn)
        mask = np.maximum(mask, spot)
    return Shape([(mask, choose_tone(rng, ground))], np.array(centers))


def draw_almond(rng: np.random.Generator, side: int, center: Array, radius: float, ground: float) -> Shape:
    """Draw two arcs that meet in two cusps, like eyelids or lips, sometimes with an iris.

    The cusps and the center of the iris are points.
    """
    half_width, turn = radius * rng.uniform(0.6, 0.95), make_rotation(rng.uniform(0, 2 * np.pi))
    heights = half_width * rng.uniform(0.2, 0.75, 2)
    position = np.linspace(-1, 1, 25)
    upper_arc = np.stack([half_width * position, -heights[0] * (1 - position**2)], axis=1)
    lower_arc = np.stack([half_width * position, heights[1] * (1 - position**2)], axis=1)[::-1]
    outline = center + np.concatenate([upper_arc, lower_arc[1:-1]]) @ turn.T
    white = choose_tone(rng, ground)
    layers = [(draw_polygons(side, [outline]), white)]
    points = [center + turn @ np.array([-half_width, 0]), center + turn @ np.array([half_width, 0])]
    if rng.random() < 0.6:
        middle = center + turn @ np.array(
            [half_width * rng.uniform(-0.3, 0.3), (heights[1] - heights[0]) / 2]
        )
        iris = min(8.0, 0.33 * float(heights.sum()))
        layers.append((draw_ellipse(side, middle, (iris, iris), 0.0), choose_tone(rng, white)))
        points.append(middle)
    return Shape(layers, np.array(points))


def draw_horn(rng: np.random.Generator, side: int, center: Array, radius: float, ground: float) -> Shape:
    """Draw a bent taper with a round base, like a beak, tail or ear. Its tip is a point."""
    turn, bend = make_rotation(rng.uniform(0, 2 * np.pi)), rng.uniform(-0.5, 0.5)
    base_radius = max(5.0, radius * rng.uniform(0.18, 0.4))
    position = np.linspace(0, 1, 25)
    spine = np.stack(
        [(2 * position - 1) * 0.9 * radius, bend * radius * (1 - (2 * position - 1) ** 2)], axis=1
    )
    normal = np.gradient(spine, axis=0)
    normal = np.stack([-normal[:, 1], normal[:, 0]], axis=1) / np.linalg.norm(normal, axis=1, keepdims=True)
    width = (base_radius * (1 - position))[:, None]
    outline = center + np.concatenate([spine + width * normal, (spine - width * normal)[::-1]]) @ turn.T
    foot = draw_ellipse(side, center + turn @ spine[0], (base_radius, base_radius), 0.0)
    mask = np.maximum(draw_polygons(side, [outline]), foot)
    return Shape([(mask, choose_tone(rng, ground))], (center + turn @ spine[-1])[None])


MAKERS: tuple[Maker, ...] = (  # a maker that occurs twice is drawn twice as often
    draw_polygon,
    draw_polygon,
    draw_star,
    draw_lines,
    draw_checkerboard,
    draw_stripes,
    draw_cube,
    draw_oval,
    draw_dots,
    draw_dots,
    draw_almond,
    draw_almond,
    draw_horn,
)


def draw(rng: np.random.Generator, side: int) -> tuple[Image, Array]:
    """Draw an image [side, side] in 0..1 and return it with its points [P, 2]."""
    ground = float(rng.uniform(0.05, 0.95))
    surfaces = [make_texture(rng, side) for _ in range(3)]
    canvas = np.float32(ground) + np.float32(rng.uniform(0, 0.05)) * surfaces[0]
    taken = np.zeros((side, side), bool)
    points = [NO_POINTS]
    scale = side / 256  # radii are given for images of 256 pixels
    # 4 % of the images have no shape, 8 % one large shape, and the others up to 29 small shapes.
    crowd = rng.random()
    is_single = 0.04 <= crowd < 0.12
    attempts = int(30 * crowd) if crowd >= 0.12 else int(is_single)
    for _ in range(attempts):
        if is_single:
            radius, center = scale * rng.uniform(60, 115), np.full(2, side / 2)
        else:
            radius, center = scale * rng.uniform(14, 48), rng.uniform(0.03, 0.97, 2) * side
            if taken[tuple(np.round(center[::-1]).astype(int))]:
                continue
        shape = MAKERS[rng.integers(len(MAKERS))](rng, side, center, radius, ground)
        footprint = np.maximum.reduce([mask for mask, _ in shape.layers])
        is_claimed = cv2.dilate((footprint > 0.05).astype(np.uint8), CLEARANCE_KERNEL).astype(bool)
        if (taken & is_claimed).any():
            continue
        taken |= is_claimed
        for mask, value in shape.layers:
            strength = np.float32(rng.choice([0.0, 0.03, 0.06]))
            canvas += mask * (value + strength * surfaces[rng.integers(3)] - canvas)
        points.append(shape.points)
    canvas *= 1 + np.float32(rng.uniform(0, 0.25)) * make_smooth_surface(rng, side, 3)
    canvas += np.float32(rng.uniform(0, 0.03)) * make_clouds(rng, side, 0.9)
    # Scale instead of clipping, because clipping could make a white dot on bright ground invisible.
    canvas = np.maximum(canvas, 0)
    return canvas / max(np.float32(1), canvas.max()), np.concatenate(points)
