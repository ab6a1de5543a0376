"""Render the animal by ray casting, and find out which landmarks are hidden."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.demo.paint import paint
from selfmark.demo.shape import FLIP, MIDDLE, Array, Body

OVERSAMPLE = 2  # rays per pixel along each axis; a pixel is the mean of its rays, so that edges are smooth


@dataclass(frozen=True)
class Camera:
    """A pinhole camera at the origin: (x, y, z) is projected to focal * (x, y) / z + center."""

    focal: float  # in pixels
    center: Array  # [2], in pixels

    def project(self, points: Array) -> Array:
        """Project points [..., 3] of the camera frame to pixels [..., 2]."""
        projected: Array = self.focal * points[..., :2] / points[..., 2:] + self.center
        return projected

    def rays(self, xy: Array) -> Array:
        """Return the rays [..., 3] of pixels [..., 2]; z is 1, so `d * ray` is the point at the depth d."""
        return np.concatenate([(xy - self.center) / self.focal, np.ones_like(xy[..., :1])], axis=-1)


@dataclass(frozen=True)
class Light:
    """A distant lamp and ambient light from above.

    Attributes:
        direction: [3] unit vector from the surface to the lamp.
        ambient: Strength of the ambient light; the strength of the lamp is 1.15 - `ambient`.
        gloss: Strength of the highlights.
    """

    direction: Array
    ambient: float
    gloss: float

    def mirrored(self) -> Light:
        """Return the light of the mirrored scene."""
        return Light(self.direction * FLIP, self.ambient, self.gloss)


def compute_part_boxes(body: Body) -> Array:
    """Compute the exact bounding box of each part, for a camera with focal length 1 and center 0.

    The sides of a box are tangents. A line with coefficients l, whose points satisfy l @ (x, y, 1) = 0, is
    tangent to the image of an ellipsoid if l^T D l = 0. Here D = axes axes^T - center center^T is the dual
    conic of the image. For a vertical line, l = (1, 0, -x), this is a quadratic equation in x. Horizontal
    lines are analogous.

    Returns:
        [P, 4] box x0, y0, x1, y1 of each of the P parts.
    """
    dual_conic = (
        body.axes @ body.axes.transpose(0, 2, 1) - body.centers[:, :, None] * body.centers[:, None, :]
    )
    middle = dual_conic[:, :2, 2] / dual_conic[:, 2:, 2]
    root = np.sqrt(middle**2 - np.diagonal(dual_conic, axis1=1, axis2=2)[:, :2] / dual_conic[:, 2:, 2])
    return np.concatenate([middle - root, middle + root], axis=1)


def intersect_ellipsoid(rays: Array, center: Array, axes: Array) -> Array:
    """Compute the depth [...] at which rays [..., 3] first hit an ellipsoid; infinite if they miss it."""
    # Map the ellipsoid to the unit sphere. A ray is then start + depth * step, and its squared norm is 1 at
    # the surface: a quadratic equation in depth.
    inverse = np.linalg.inv(axes)
    start = -inverse @ center
    step = rays @ inverse.T
    a = np.einsum("...i,...i->...", step, step)
    b = step @ start
    discriminant = b * b - a * (start @ start - 1.0)
    root = np.sqrt(np.maximum(discriminant, 0.0))
    depth: Array = np.where(discriminant > 0.0, (-b - root) / a, np.inf)
    return depth


@dataclass(frozen=True)
class Hits:
    """The first surface that each ray of a grid hits.

    Attributes:
        part: [H, W] index of the part, -1 for none.
        depth: [H, W] z in the camera frame, infinite for none.
    """

    part: npt.NDArray[np.int8]
    depth: Array


def pixel_grid(size: int, oversample: int) -> Array:
    """Return the positions [size * oversample] of rays along one axis, evenly spaced within each pixel."""
    positions: Array = (np.arange(size * oversample) + 0.5) / oversample - 0.5
    return positions


def cast_rays(body: Body, camera: Camera, grid: Array) -> Hits:
    """Cast a ray through every (x, y) of grid x grid; test a part only for rays inside its bounding box."""
    part = np.full((len(grid), len(grid)), -1, np.int8)
    depth = np.full((len(grid), len(grid)), np.inf)
    boxes = camera.focal * compute_part_boxes(body) + np.tile(camera.center, 2)
    low = np.searchsorted(grid, boxes[:, :2])
    high = np.searchsorted(grid, boxes[:, 2:])
    for index in range(len(body.kinds)):
        columns, rows = slice(low[index, 0], high[index, 0]), slice(low[index, 1], high[index, 1])
        xy = np.stack(np.meshgrid(grid[columns], grid[rows]), axis=-1)
        part_depth = intersect_ellipsoid(camera.rays(xy), body.centers[index], body.axes[index])
        is_nearer = part_depth < depth[rows, columns]
        depth[rows, columns][is_nearer] = part_depth[is_nearer]
        part[rows, columns][is_nearer] = index
    return Hits(part, depth)


def _measure_creases(depth: Array, radius: float) -> Array:
    """Compute how far the surface at each ray is behind its surroundings, [H, W]; creases get less light.

    The result is 0 in front of the surroundings, and 1 from a distance of 0.35 units behind them.

    Args:
        depth: [H, W] depth at which each ray hits the animal, infinite if it misses.
        radius: standard deviation of the Gaussian that averages the surroundings, in rays.
    """
    is_hit = np.isfinite(depth)
    filled = np.where(is_hit, depth, depth[is_hit].max()).astype(np.float32)
    surroundings = cv2.GaussianBlur(filled, (0, 0), radius)
    crease: Array = np.clip((filled - surroundings) / 0.35, 0.0, 1.0).astype(np.float64)
    return crease


def render(body: Body, camera: Camera, light: Light, palette: Array, size: int) -> tuple[Array, Array]:
    """Render the animal on a black background.

    Args:
        body: The animal.
        camera: The camera.
        light: The light.
        palette: [6, 3] colors, RGB in 0..1.
        size: Side of the picture in pixels.

    Returns:
        The color [size, size, 3] in 0..1, already multiplied by the coverage, and the coverage [size, size],
        which is the fraction of each pixel that the animal covers.
    """
    grid = pixel_grid(size, OVERSAMPLE)
    hits = cast_rays(body, camera, grid)
    occlusion = 1.0 - 0.55 * _measure_creases(hits.depth, 0.03 * len(grid))
    color = np.zeros((*hits.part.shape, 3))
    for index, kind in enumerate(body.kinds):
        rows, columns = np.divmod(np.flatnonzero(hits.part == index), len(grid))
        rays = camera.rays(np.stack([grid[columns], grid[rows]], axis=-1)).T
        inverse = np.linalg.inv(body.axes[index])
        # Map the points that the rays hit to the unit sphere of the part.
        sphere = inverse @ (rays * hits.depth[rows, columns] - body.centers[index][:, None])
        albedo = paint(kind, _fold_to_left(sphere, body.sides[index]), palette)
        lit = _shade(albedo, _normalize(inverse.T @ sphere), _normalize(rays), light)
        color[rows, columns] = np.clip(lit * occlusion[rows, columns], 0.0, 1.0).T
    return average_rays(color, size), average_rays((hits.part >= 0).astype(float), size)


def average_rays(grid_values: Array, size: int) -> Array:
    """Average over the rays of each pixel: [size * OVERSAMPLE, size * OVERSAMPLE] to [size, size]."""
    return cv2.resize(grid_values, (size, size), interpolation=cv2.INTER_AREA).astype(np.float64)


# In the next three functions, vectors are columns, [3, n], because numpy is much faster along a long axis.


def _fold_to_left(sphere: Array, side: int) -> Array:
    """Mirror points of the right side to the left side, because `paint` covers only the left side."""
    x, y, z = sphere
    return np.stack([np.abs(x) if side == MIDDLE else side * x, y, z])


def _normalize(vectors: Array) -> Array:
    """Scale vectors [3, n] to length 1."""
    x, y, z = vectors
    unit: Array = vectors / np.sqrt(x * x + y * y + z * z)
    return unit


def _shade(albedo: Array, normal: Array, view: Array, light: Light) -> Array:
    """Compute the shaded color [3, n] from soft light of the lamp, light from above, and a highlight.

    Args:
        albedo: [3, n] colors of the surface.
        normal: [3, n] unit normals.
        view: [3, n] unit vectors from the camera to the surface.
        light: The light.
    """
    diffuse = np.clip((light.direction @ normal + 0.35) / 1.35, 0.0, 1.0)
    from_above = 0.75 - 0.25 * normal[1]
    halfway = _normalize(light.direction[:, None] - view)
    highlight = light.gloss * np.clip((normal * halfway).sum(axis=0), 0.0, 1.0) ** 40
    result: Array = albedo * (light.ambient * from_above + (1.15 - light.ambient) * diffuse) + highlight
    return result


def project_landmarks(body: Body, camera: Camera) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Project the landmarks, and find out which of them the animal itself hides.

    Returns:
        Positions [L, 2] in pixels, and whether each landmark is visible [L].
    """
    _, points = body.landmarks()
    xy = camera.project(points)
    rays = camera.rays(xy)
    parts = zip(body.centers, body.axes, strict=True)
    first_hit = np.min([intersect_ellipsoid(rays, center, axes) for center, axes in parts], axis=0)
    # A landmark is on a surface. It is hidden if its ray hits another surface before this one.
    return xy, points[:, 2] <= first_hit + 1e-6
