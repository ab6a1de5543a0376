"""Test the geometry of the generated animal against slower, independent computations."""

from __future__ import annotations

import numpy as np
import pytest

from selfmark.demo import render
from selfmark.demo.backdrop import Occluder, random_occluder
from selfmark.demo.scene import Subject, random_subject
from selfmark.demo.shape import (
    FLIP_IDX,
    NAMES,
    PAIRED,
    Body,
    Pose,
    Proportions,
    build_body,
    landmark_anchor,
    rotation,
)

SIZE = 96


def make_subject(seed: int, size: int = SIZE) -> Subject:
    return random_subject(np.random.default_rng([7, seed]), size)


def compute_implicit_values(body: Body, points: np.ndarray) -> np.ndarray:
    """Return |u|^2 - 1 for every pair of P parts and n points, [P, n].

    u is the position of the point relative to the center of the part, in units of the part's axes. The value
    is negative inside the part, zero on its surface and positive outside.
    """
    values = []
    for center, axes in zip(body.centers, body.axes, strict=True):
        unit = np.linalg.solve(axes, (points - center).T)
        values.append((unit**2).sum(axis=0) - 1.0)
    return np.array(values)


def test_names_are_unique_and_mirror_partners_swap_left_and_right() -> None:
    assert len(set(NAMES)) == len(NAMES) == 20
    assert [FLIP_IDX[partner] for partner in FLIP_IDX] == list(range(len(NAMES)))
    for name, partner in zip(NAMES, FLIP_IDX, strict=True):
        swapped = name.replace("left_", "?").replace("right_", "left_").replace("?", "right_")
        assert NAMES[partner] == swapped


def test_rotations_have_the_directions_of_their_names() -> None:
    nose = np.array([0.0, 0.0, -1.0])  # towards the viewer
    assert rotation(yaw=0.3) @ nose == pytest.approx([np.sin(0.3), 0.0, -np.cos(0.3)])
    assert rotation(pitch=0.3) @ nose == pytest.approx([0.0, np.sin(0.3), -np.cos(0.3)])
    assert rotation(roll=np.pi / 2) @ np.array([1.0, 0.0, 0.0]) == pytest.approx([0.0, 1.0, 0.0])
    matrix = rotation(0.4, -0.2, 0.9)
    assert matrix @ matrix.T == pytest.approx(np.eye(3))
    assert np.linalg.det(matrix) == pytest.approx(1.0)


def test_the_animals_left_is_on_the_right_of_a_frontal_view() -> None:
    rest = Pose(np.zeros(3), np.zeros(3), *(np.zeros((2, n)) for n in (2, 3, 2)), np.zeros(2))
    body = build_body(Proportions(np.ones(3), np.ones(3), 1.0, 1.0, 1.0, 1.0), rest, 9.0)
    xy, _ = render.project_landmarks(body, render.Camera(100.0, np.zeros(2)))
    points = dict(zip(NAMES, xy, strict=True))
    for name in PAIRED:
        assert points[f"left_{name}"][0] > 0 > points[f"right_{name}"][0]
    heights = [points[name][1] for name in ("forehead", "nose", "chest", "belly")]
    assert heights == sorted(heights)


@pytest.mark.parametrize("seed", range(6))
def test_landmarks_lie_on_the_surface_and_are_visible_if_nothing_is_in_front_of_them(seed: int) -> None:
    subject = make_subject(seed)
    rows, points = subject.body.landmarks()
    on_own_part = compute_implicit_values(subject.body, points)[rows, np.arange(len(NAMES))]
    assert on_own_part == pytest.approx(0.0, abs=1e-9)

    xy, visible = render.project_landmarks(subject.body, subject.camera)
    focal, (cx, cy) = subject.camera.focal, subject.camera.center
    by_hand = [(focal * x / z + cx, focal * y / z + cy) for x, y, z in points]
    np.testing.assert_allclose(xy, by_hand, rtol=1e-12)

    # Walk along the ray from the camera to each landmark in small steps, from 0.6 of the distance to just
    # before the landmark's own surface.
    steps = np.linspace(0.6, 0.9995, 3000)
    for point, is_visible in zip(points, visible, strict=True):
        clearance = compute_implicit_values(subject.body, steps[:, None] * point).min()
        if abs(clearance) > 5e-3:  # the steps are too coarse for smaller distances
            assert is_visible == (clearance > 0)


@pytest.mark.parametrize("seed", range(4))
def test_visibility_agrees_with_the_depth_buffer(seed: int) -> None:
    subject = make_subject(seed, 192)
    rows, points = subject.body.landmarks()
    xy, visible = render.project_landmarks(subject.body, subject.camera)
    hits = render.cast_rays(subject.body, subject.camera, render.pixel_grid(192, 1))
    num_compared = 0
    for (x, y), row, point, is_visible in zip(np.round(xy).astype(int), rows, points, visible, strict=True):
        parts_around = hits.part[y - 1 : y + 2, x - 1 : x + 2]
        if np.all(parts_around == parts_around[0, 0]):  # the landmark is away from outlines
            num_compared += 1
            assert is_visible == (hits.part[y, x] == row and abs(hits.depth[y, x] - point[2]) < 0.1)
            assert not is_visible or hits.depth[y, x] == pytest.approx(point[2], abs=0.1)
    assert num_compared > 10


@pytest.mark.parametrize("seed", range(3))
def test_cast_rays_hit_at_the_same_depth_as_ray_marching(seed: int) -> None:
    subject = make_subject(seed)
    grid = np.linspace(8.0, 88.0, 12)
    hits = render.cast_rays(subject.body, subject.camera, grid)
    depths = np.arange(6.0, 13.0, 0.004)
    for i, y in enumerate(grid):
        for j, x in enumerate(grid):
            direction = np.array([*((np.array([x, y]) - subject.camera.center) / subject.camera.focal), 1.0])
            inside = compute_implicit_values(subject.body, depths[:, None] * direction) < 0
            steps_inside = np.flatnonzero(inside.any(axis=0))
            if len(steps_inside) > 0:
                assert hits.depth[i, j] == pytest.approx(depths[steps_inside[0]], abs=0.0041)
            elif hits.part[i, j] >= 0:  # the ray is inside for less than a step; the hit is on a surface
                point = hits.depth[i, j] * direction[None]
                assert compute_implicit_values(subject.body, point).min() == pytest.approx(0.0, abs=1e-6)


def test_part_boxes_are_the_bounds_of_densely_sampled_surfaces() -> None:
    body = make_subject(0).body
    theta, phi = np.meshgrid(np.linspace(0, np.pi, 181), np.linspace(0, 2 * np.pi, 361))
    sphere = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1)
    sphere = sphere.reshape(-1, 3)
    boxes = render.compute_part_boxes(body)
    for center, axes, box in zip(body.centers, body.axes, boxes, strict=True):
        points = center + sphere @ axes.T
        projected = points[:, :2] / points[:, 2:]
        np.testing.assert_allclose(box, [*projected.min(axis=0), *projected.max(axis=0)], atol=2e-5)
        assert np.all(projected.min(axis=0) >= box[:2] - 1e-12)
        assert np.all(projected.max(axis=0) <= box[2:] + 1e-12)


@pytest.mark.parametrize("name", ["left_eye", "right_mouth", "belly", "left_foot", "right_ear_base"])
def test_a_mark_painted_at_an_anchor_is_rendered_at_the_landmark(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 256
    name_without_side = name.removeprefix("left_").removeprefix("right_")
    subject = random_subject(np.random.default_rng(3), size)
    parts, _ = subject.body.landmarks()

    def paint_marker(kind: str, xyz: np.ndarray, palette: np.ndarray) -> np.ndarray:
        if kind != subject.body.kinds[parts[NAMES.index(name)]]:
            return np.zeros_like(xyz)
        is_marked = np.linalg.norm(xyz - landmark_anchor(name_without_side)[:, None], axis=0) < 0.06
        return np.broadcast_to(is_marked, xyz.shape).astype(float)

    monkeypatch.setattr(render, "paint", paint_marker)
    lamp = render.Light(np.array([0.0, 0.0, -1.0]), ambient=1.0, gloss=0.0)
    color, _ = render.render(subject.body, subject.camera, lamp, subject.palette, size)
    xy, visible = render.project_landmarks(subject.body, subject.camera)
    assert visible[NAMES.index(name)]
    x, y = xy[NAMES.index(name)]
    # The mirror partner has the mark too, so look only around the landmark.
    left, top = round(x) - 9, round(y) - 9
    patch = color[top : top + 19, left : left + 19].sum(axis=2)
    rows, columns = np.mgrid[top : top + 19, left : left + 19]
    assert patch.max() > 0.5
    assert (columns * patch).sum() / patch.sum() == pytest.approx(x, abs=0.35)
    assert (rows * patch).sum() / patch.sum() == pytest.approx(y, abs=0.35)


@pytest.mark.parametrize("seed", range(4))
def test_the_mirrored_animal_is_the_flipped_picture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pose = Pose(
        rng.uniform(-0.6, 0.6, 3),
        rng.uniform(-0.2, 0.2, 3),
        rng.uniform(0.2, 0.8, (2, 2)),
        rng.uniform(0.1, 1.0, (2, 3)),
        rng.uniform(0.1, 0.5, (2, 2)),
        rng.uniform(-1.0, 1.0, 2),
    )
    proportions = Proportions(rng.uniform(0.9, 1.1, 3), rng.uniform(0.9, 1.1, 3), 1.1, 0.9, 1.0, 1.05)
    palette = rng.uniform(0, 1, (6, 3))
    lamp = np.array([0.6, -0.5, -0.62])
    light = render.Light(lamp / np.linalg.norm(lamp), 0.4, 0.2)
    camera = render.Camera(170.0, np.array([50.0, 49.0]))
    flipped_camera = render.Camera(170.0, np.array([SIZE - 1 - 50.0, 49.0]))
    body, mirrored = build_body(proportions, pose, 9.0), build_body(proportions, pose.mirrored(), 9.0)

    color, coverage = render.render(body, camera, light, palette, SIZE)
    flipped, flipped_coverage = render.render(mirrored, flipped_camera, light.mirrored(), palette, SIZE)
    np.testing.assert_allclose(flipped_coverage[:, ::-1], coverage, atol=1e-9)
    # Rounding decides on which side of a mark's border a ray falls, so a few pixels may differ.
    differs = np.abs(flipped[:, ::-1] - color).max(axis=2) > 1 / 255
    assert differs.mean() < 1e-3
    assert coverage.mean() > 0.2

    xy, visible = render.project_landmarks(body, camera)
    mirrored_xy, mirrored_visible = render.project_landmarks(mirrored, flipped_camera)
    partner = list(FLIP_IDX)
    np.testing.assert_allclose(mirrored_xy[partner] * [-1, 1] + [SIZE - 1, 0], xy, atol=1e-9)
    assert np.array_equal(mirrored_visible[partner], visible)
    # With the light from the other side, the pictures must differ; otherwise the test proves nothing.
    wrongly_lit, _ = render.render(mirrored, flipped_camera, light, palette, SIZE)
    assert (np.abs(wrongly_lit[:, ::-1] - color).max(axis=2) > 1 / 255).mean() > 0.1


def test_occluders_cover_the_positions_of_their_formula() -> None:
    bar = Occluder(np.array([10.0, 10.0]), np.diag([1 / 20.0, 1 / 2.0]), 8.0, 0.0, np.zeros((2, 3)))
    points = np.array([[10, 10], [28, 10], [31, 10], [10, 11.9], [10, 12.1], [-9, 9]], float)
    assert bar.covers(points).tolist() == [True, True, False, True, False, True]
    blob = Occluder(np.zeros(2), np.eye(2) / 10.0, 2.0, 0.2, np.zeros((2, 3)))
    # The blob has three lobes: at angle 0 its radius is 10 * 1.2, and at 60 degrees it is 10 * 0.8.
    at_60 = np.array([np.cos(np.pi / 3), np.sin(np.pi / 3)])
    points = np.array([[11.9, 0], [12.1, 0], 7.9 * at_60, 8.1 * at_60])
    assert blob.covers(points).tolist() == [True, False, True, False]


def test_random_occluders_hide_a_small_part_of_the_picture() -> None:
    xy = np.stack(np.meshgrid(np.arange(64.0), np.arange(64.0)), -1)
    middle = np.array([32.0, 32.0])
    fractions = [
        random_occluder(np.random.default_rng(seed), 64, middle).covers(xy).mean() for seed in range(30)
    ]
    assert 0.0 < np.median(fractions) < 0.2
    assert max(fractions) < 0.3
