"""Casting rays at the animal: what each pixel sees, how it is lit, and which landmarks are hidden."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.demo.paint import paint
from selfmark.demo.shape import FLIP, MIDDLE, Array, Body

OVERSAMPLE = 2  # rays per pixel and axis; their mean is the pixel, which smooths outlines and marks


@dataclass(frozen=True)
class Camera:
    """A pinhole at the origin: a point (x, y, z) is seen at pixel focal * (x, y) / z + center."""

    focal: float
    center: Array  # [2]

    def project(self, points: Array) -> Array:
        """[..., 3] camera frame to [..., 2] pixels."""
        projected: Array = self.focal * points[..., :2] / points[..., 2:] + self.center
        return projected

    def rays(self, xy: Array) -> Array:
        """[..., 2] pixels to [..., 3] directions with z = 1, so that a ray's parameter is depth."""
        return np.concatenate([(xy - self.center) / self.focal, np.ones_like(xy[..., :1])], axis=-1)


@dataclass(frozen=True)
class Light:
    """One distant lamp and an even glow from above.

    direction: [3] unit vector from the surface to the lamp
    ambient:   share of the light that comes from everywhere
    gloss:     strength of the highlights
    """

    direction: Array
    ambient: float
    gloss: float

    def mirrored(self) -> Light:
        return Light(self.direction * FLIP, self.ambient, self.gloss)


def part_boxes(body: Body) -> Array:
    """Each part's bounding box [P, 4] as x0, y0, x1, y1, exact, for a camera of focal length 1 centered at 0.

    A line l (the places with l @ (x, y, 1) = 0) touches the picture of an ellipsoid where
    l' (axes axes' - center center') l = 0. For an upright line, l = (1, 0, -x), this is a quadratic equation
    in x; likewise for a level one.
    """
    dual = body.axes @ body.axes.transpose(0, 2, 1) - body.centers[:, :, None] * body.centers[:, None, :]
    half = dual[:, :2, 2] / dual[:, 2:, 2]
    root = np.sqrt(half**2 - np.diagonal(dual, axis1=1, axis2=2)[:, :2] / dual[:, 2:, 2])
    return np.concatenate([half - root, half + root], axis=1)


def depth_along(rays: Array, center: Array, axes: Array) -> Array:
    """Depth [...] at which rays [..., 3] from the camera first meet an ellipsoid; infinite for a miss."""
    inverse = np.linalg.inv(axes)
    start = -inverse @ center
    step = rays @ inverse.T
    a = np.einsum("...i,...i->...", step, step)
    b = step @ start
    inside = b * b - a * (start @ start - 1.0)
    depth: Array = np.where(inside > 0.0, (-b - np.sqrt(np.maximum(inside, 0.0))) / a, np.inf)
    return depth


@dataclass(frozen=True)
class Hits:
    """What each pixel of a grid sees first.

    part:  [H, W] row of the body, -1 for none
    depth: [H, W] camera z, infinite for none
    """

    part: npt.NDArray[np.int8]
    depth: Array


def pixel_grid(size: int, oversample: int) -> Array:
    """Places [size * oversample] along one axis where rays are cast, evenly within each pixel."""
    places: Array = (np.arange(size * oversample) + 0.5) / oversample - 0.5
    return places


def cast_rays(body: Body, camera: Camera, grid: Array) -> Hits:
    """Cast a ray through every (x, y) of grid x grid; each part is tried only inside its bounding box."""
    part = np.full((len(grid), len(grid)), -1, np.int8)
    depth = np.full((len(grid), len(grid)), np.inf)
    boxes = camera.focal * part_boxes(body) + np.tile(camera.center, 2)
    low = np.searchsorted(grid, boxes[:, :2])
    high = np.searchsorted(grid, boxes[:, 2:])
    for row in range(len(body.kinds)):
        across, down = slice(low[row, 0], high[row, 0]), slice(low[row, 1], high[row, 1])
        xy = np.stack(np.meshgrid(grid[across], grid[down]), axis=-1)
        here = depth_along(camera.rays(xy), body.centers[row], body.axes[row])
        nearer = here < depth[down, across]
        depth[down, across][nearer] = here[nearer]
        part[down, across][nearer] = row
    return Hits(part, depth)


def _creases(depth: Array, radius: float) -> Array:
    """How far each place [H, W] lies behind its surroundings, 0..1: little light reaches a crease."""
    solid = np.isfinite(depth)
    filled = np.where(solid, depth, depth[solid].max()).astype(np.float32)
    around = cv2.GaussianBlur(filled, (0, 0), radius)
    behind: Array = np.clip((filled - around) / 0.35, 0.0, 1.0).astype(np.float64)
    return behind


def render(body: Body, camera: Camera, light: Light, palette: Array, size: int) -> tuple[Array, Array]:
    """Draw the animal on black.

    Returns:
        Color [size, size, 3] in 0..1, already multiplied by coverage, and coverage [size, size] in 0..1.
    """
    grid = pixel_grid(size, OVERSAMPLE)
    hits = cast_rays(body, camera, grid)
    light_left = 1.0 - 0.55 * _creases(hits.depth, 0.03 * len(grid))
    color = np.zeros((*hits.part.shape, 3))
    for row, kind in enumerate(body.kinds):
        down, across = np.divmod(np.flatnonzero(hits.part == row), len(grid))
        rays = camera.rays(np.stack([grid[across], grid[down]], axis=-1)).T
        inverse = np.linalg.inv(body.axes[row])
        sphere = inverse @ (rays * hits.depth[down, across] - body.centers[row][:, None])
        albedo = paint(kind, _as_left(sphere, body.sides[row]), palette)
        lit = _lit(albedo, _unit(inverse.T @ sphere), _unit(rays), light)
        color[down, across] = np.clip(lit * light_left[down, across], 0.0, 1.0).T
    return average_rays(color, size), average_rays((hits.part >= 0).astype(float), size)


def average_rays(grid_values: Array, size: int) -> Array:
    """The mean over the rays of each pixel, [size * OVERSAMPLE, ...] to [size, ...]."""
    return cv2.resize(grid_values, (size, size), interpolation=cv2.INTER_AREA).astype(np.float64)


# From here on vectors are columns, [3, n]: numpy is several times faster along the long axis.


def _as_left(sphere: Array, side: int) -> Array:
    """Fold the animal onto its left half, which is all that `paint` knows: hence its mirror symmetry."""
    x, y, z = sphere
    return np.stack([np.abs(x) if side == MIDDLE else side * x, y, z])


def _unit(vectors: Array) -> Array:
    x, y, z = vectors
    unit: Array = vectors / np.sqrt(x * x + y * y + z * z)
    return unit


def _lit(albedo: Array, normal: Array, sight: Array, light: Light) -> Array:
    """Color under the light: soft diffuse (the terminator lies behind the limb), sky glow, a highlight."""
    diffuse = np.clip((light.direction @ normal + 0.35) / 1.35, 0.0, 1.0)
    glow = 0.75 - 0.25 * normal[1]
    halfway = _unit(light.direction[:, None] - sight)
    highlight = light.gloss * np.clip((normal * halfway).sum(axis=0), 0.0, 1.0) ** 40
    result: Array = albedo * (light.ambient * glow + (1.15 - light.ambient) * diffuse) + highlight
    return result


def landmarks(body: Body, camera: Camera) -> tuple[Array, npt.NDArray[np.bool_]]:
    """The landmarks in exact pixels [L, 2], and whether the animal itself leaves each in sight [L]."""
    _, places = body.landmarks()
    xy = camera.project(places)
    rays = camera.rays(xy)
    parts = zip(body.centers, body.axes, strict=True)
    first = np.min([depth_along(rays, center, axes) for center, axes in parts], axis=0)
    # The landmark lies on a surface: anything first met clearly before it hides it, its own part included.
    return xy, places[:, 2] <= first + 1e-6
