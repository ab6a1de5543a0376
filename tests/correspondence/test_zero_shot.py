"""Test landmarks from pretrained features, on feature maps with planted parts and a known background."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from selfmark.config import Features
from selfmark.correspondence.zero_shot import (
    _sample_cells,
    find_foreground,
    find_part_centroids,
    place_parts,
)
from selfmark.errors import NotEnoughData
from selfmark.features.encoder import CELL
from selfmark.model.feature_network import ZeroShotPsi
from selfmark.model.heatmaps import heat_centroids
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from tests.features.random_images import random_images
from tests.features.tiny_encoder import TinyEncoder
from tests.processes import run_in_processes

DIMENSIONS, GRID = 24, 16
SETTINGS = Features(foreground_clusters=16, restarts=4)


def _make_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _draw_unit_vectors(count: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(count, DIMENSIONS, generator=_make_generator(seed)), dim=1)


def _to_cells(vectors: Tensor) -> Tensor:
    """Turn vectors [N, h, w, D] into noisy features [N, D, h, w]."""
    noise = torch.randn(vectors.shape, generator=_make_generator(9)) * 0.02
    return F.normalize(vectors + noise, dim=-1).permute(0, 3, 1, 2).contiguous()


class Planted(NamedTuple):
    """Features with planted parts.

    cells:     [N, D, h, w]
    is_object: [N, h, w] cells of the object
    rows:      [N, K] rows of the parts' centers
    columns:   [N, K]
    """

    cells: Tensor
    is_object: Tensor
    rows: Tensor
    columns: Tensor


def _plant(num_images: int = 24, radius: int = 1) -> Planted:
    """Place five square parts in a cross at varying positions; four kinds of cells form the background.

    Args:
        num_images: number of images.
        radius: the side of a part is 2 radius + 1 cells.
    """
    parts, background = _draw_unit_vectors(5, 1), _draw_unit_vectors(4, 2)
    generator = _make_generator(3)
    kinds = torch.randint(4, (num_images, GRID, GRID), generator=generator)
    vectors, is_object = background[kinds], torch.zeros(num_images, GRID, GRID, dtype=torch.bool)
    center = torch.randint(6, GRID - 6, (num_images, 2), generator=generator)
    rows = center[:, :1] + torch.tensor([0, -3, 3, 0, 0])
    columns = center[:, 1:] + torch.tensor([0, 0, 0, -3, 3])
    for image in range(num_images):
        for part in range(5):
            row, column = int(rows[image, part]), int(columns[image, part])
            square = (
                image,
                slice(row - radius, row + radius + 1),
                slice(column - radius, column + radius + 1),
            )
            vectors[square] = parts[part]
            is_object[square] = True
    return Planted(_to_cells(vectors), is_object, rows, columns)


def _find_foreground(
    cells: Tensor, settings: Features = SETTINGS, group: ProcessGroup = SINGLE_PROCESS
) -> Tensor:
    """Find the foreground from features alone: all cells have the same color."""
    colors = torch.zeros(len(cells), 6, *cells.shape[2:])
    colorless = replace(settings, max_color_border_ratio=1_000)
    return find_foreground(cells, colors, colorless, _make_generator(), group)


def _draw_discs(num_images: int, radius: float) -> Tensor:
    """Return a mask [N, h, w] of discs whose centers differ between the images."""
    center = 5 + torch.randint(GRID - 10, (num_images, 2), generator=_make_generator(4))
    line = torch.arange(GRID)
    row, column = line[:, None] - center[:, 0, None, None], line - center[:, 1, None, None]
    return row**2 + column**2 <= radius**2


def _add_background(is_object: Tensor) -> Tensor:
    """Return features [N, D, h, w]: the object has three kinds of cells, the background four other kinds."""
    kinds = torch.randint(12, is_object.shape, generator=_make_generator(5))
    labels = torch.where(is_object, kinds % 3, 3 + kinds % 4)
    return _to_cells(_draw_unit_vectors(7, 6)[labels])


# --- foreground ------------------------------------------------------------------------------------


def test_a_disc_in_front_of_a_background_is_found() -> None:
    is_object = _draw_discs(20, radius=3)
    foreground = _find_foreground(_add_background(is_object))
    assert torch.equal(foreground, is_object)


def test_an_object_that_sometimes_touches_the_border_is_found() -> None:
    is_object = _draw_discs(40, radius=4)
    is_object[:2, 8:, :] = True  # the first two objects extend to three sides of the image
    foreground = _find_foreground(_add_background(is_object))
    assert torch.equal(foreground, is_object)


def test_all_cells_are_used_if_every_kind_is_as_frequent_at_the_border() -> None:
    kinds = torch.randint(7, (10, GRID, GRID), generator=_make_generator(7))
    foreground = _find_foreground(_to_cells(_draw_unit_vectors(7, 6)[kinds]))
    assert foreground.shape == (10, GRID, GRID)
    assert foreground.all()


@pytest.mark.parametrize(("min_foreground", "is_everything"), [(0.05, True), (0.0, False)])
def test_all_cells_are_used_if_the_object_is_too_small(min_foreground: float, is_everything: bool) -> None:
    is_object = _draw_discs(20, radius=1)  # 5 of 256 cells
    settings = Features(foreground_clusters=16, restarts=4, min_foreground=min_foreground)
    foreground = _find_foreground(_add_background(is_object), settings)
    assert torch.equal(foreground, torch.ones_like(is_object) if is_everything else is_object)


def test_all_cells_are_used_if_images_are_nothing_but_border() -> None:
    cells = _add_background(_draw_discs(8, radius=3))
    assert _find_foreground(cells, Features(border=GRID, foreground_clusters=4)).all()


def test_fewer_cells_than_clusters_cause_no_error() -> None:
    cells = _add_background(_draw_discs(1, radius=2))[:, :, 4:11, 4:11]
    foreground = _find_foreground(cells, Features(foreground_clusters=200))
    assert foreground.shape == (1, 7, 7)


def test_colors_remove_the_surroundings_that_the_features_mistake_for_the_object() -> None:
    """Features of cells around the object differ from the background, but their colors do not."""
    is_object = _draw_discs(20, radius=3)
    is_near = F.max_pool2d(is_object[:, None].float(), 3, stride=1, padding=1)[:, 0] > 0
    cells = _add_background(is_near)
    colors = torch.where(is_object, 0.8, 0.2)[:, None].expand(20, 6, GRID, GRID)
    noise = 0.01 * torch.randn(colors.shape, generator=_make_generator(8))
    assert torch.equal(_find_foreground(cells), is_near)
    assert torch.equal(find_foreground(cells, colors + noise, SETTINGS, _make_generator()), is_object)


def test_colors_that_leave_almost_nothing_are_ignored() -> None:
    is_object = _draw_discs(20, radius=3)
    cells = _add_background(is_object)
    colors = torch.rand(20, 6, GRID, GRID, generator=_make_generator(8))
    strict_settings = replace(SETTINGS, max_color_border_ratio=1e-6)
    assert torch.equal(find_foreground(cells, colors, strict_settings, _make_generator()), is_object)


def test_colors_are_used_only_if_they_separate_the_object_in_most_images() -> None:
    """Every second object has the color of the background."""
    is_object = _draw_discs(20, radius=3)
    cells = _add_background(is_object)
    is_like_border = (torch.arange(20) % 2 == 0)[:, None, None]
    colors = torch.where(is_object & ~is_like_border, 0.8, 0.2)[:, None].expand(20, 6, GRID, GRID)
    colors = colors + 0.01 * torch.randn(colors.shape, generator=_make_generator(8))
    assert torch.equal(find_foreground(cells, colors, SETTINGS, _make_generator()), is_object)
    lenient = replace(SETTINGS, min_color_images=0.4)
    assert torch.equal(
        find_foreground(cells, colors, lenient, _make_generator()), is_object & ~is_like_border
    )


# --- parts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_planted_parts_are_found_and_placed(dtype: torch.dtype) -> None:
    planted = _plant()
    cells = planted.cells.to(dtype)
    foreground = _find_foreground(cells)
    assert torch.equal(foreground, planted.is_object)
    centroids = find_part_centroids(cells, foreground, 5, SETTINGS, _make_generator())
    placed = place_parts(cells, centroids, SETTINGS.sharpness)
    similarity = centroids @ _draw_unit_vectors(5, 1).T
    assert (similarity.amax(dim=1) > 0.99).all()
    part = similarity.argmax(dim=1)  # the planted part of each landmark
    assert sorted(part.tolist()) == [0, 1, 2, 3, 4]
    part_cells = torch.stack([planted.columns, planted.rows], dim=2)[:, part].float()
    expected = (part_cells + 0.5) * CELL - 0.5
    assert (placed.xy - expected).abs().max() < CELL / 2
    assert (placed.xy - expected).norm(dim=2).mean() < 1
    assert ((placed.score > 0.9) & (placed.score <= 1.001)).all()


def test_parts_are_placed_in_each_image_on_its_own() -> None:
    """Images that are processed in several blocks get the same positions as each image alone."""
    cells, centroids = _plant(num_images=70).cells[:, :, :6, :6], _draw_unit_vectors(3, 11)
    together = place_parts(cells, centroids, 30.0)
    assert together.xy.shape == (70, 3, 2)
    for image in (0, 63, 64, 69):
        placed_alone = place_parts(cells[image : image + 1], centroids, 30.0)
        torch.testing.assert_close(together.xy[image], placed_alone.xy[0])
        torch.testing.assert_close(together.score[image], placed_alone.score[0])


def test_positions_move_with_the_features() -> None:
    cells, centroids = _plant(radius=0).cells, _draw_unit_vectors(5, 1)
    before, after = (place_parts(maps, centroids, 60.0).xy for maps in (cells, cells.roll((1, -2), (2, 3))))
    torch.testing.assert_close(after - before, torch.tensor([-16.0, 8.0]).expand_as(before), atol=0.1, rtol=0)


def test_a_low_sharpness_gives_the_mean_of_all_cells() -> None:
    placed = place_parts(_plant().cells.abs(), _draw_unit_vectors(5, 1).abs(), 1e-6)
    torch.testing.assert_close(
        placed.xy, torch.full_like(placed.xy, GRID * CELL / 2 - 0.5), atol=1e-2, rtol=0
    )


@pytest.mark.parametrize("orientation", ["upright", "any"])
def test_positions_match_those_of_the_detector(orientation: Any) -> None:
    images, encoder = random_images(3, 64), TinyEncoder(DIMENSIONS)
    centroids = _draw_unit_vectors(4, 12)
    psi = ZeroShotPsi(encoder, centroids, Features(orientation=orientation, rotations=4, sharpness=20.0))
    with torch.no_grad():
        peaks = heat_centroids(psi(images))
        placed = place_parts(psi.compute_features_and_heatmaps(images)[0], centroids, 20.0)
        if orientation == "upright":
            torch.testing.assert_close(place_parts(encoder.describe(images), centroids, 20.0), placed)
    torch.testing.assert_close(placed.xy, 4 * (peaks.cells + 0.5) - 0.5)
    torch.testing.assert_close(placed.score, peaks.score)


def test_too_few_cells_of_the_object_are_an_error() -> None:
    planted = _plant(num_images=8)
    foreground = torch.zeros_like(planted.is_object)
    foreground[0, 3, 3:6] = True
    with pytest.raises(NotEnoughData, match="3 cells of the object cannot form 4 landmarks: lower K"):
        find_part_centroids(planted.cells, foreground, 4, SETTINGS, _make_generator())


# --- samples ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_all_marked_cells_are_taken_if_there_are_few(dtype: torch.dtype) -> None:
    cells = torch.randn(5, 6, 4, 7, generator=_make_generator(8)).to(dtype)
    mask = torch.rand(5, 4, 7, generator=_make_generator(13)) < 0.3
    naive = [
        cells[image, :, row, column]
        for image in range(5)
        for row in range(4)
        for column in range(7)
        if mask[image, row, column]
    ]
    sample = _sample_cells(cells, mask, Features(sample=1_000), _make_generator(), SINGLE_PROCESS)
    assert torch.equal(sample, torch.stack(naive).float())


def test_samples_are_different_marked_cells() -> None:
    cells = torch.arange(5 * 4 * 7, dtype=torch.float32).view(5, 1, 4, 7)
    mask = torch.rand(5, 4, 7, generator=_make_generator(13)) < 0.6
    marked = set(cells[:, 0][mask].tolist())
    sample = _sample_cells(cells, mask, Features(sample=20), _make_generator(), SINGLE_PROCESS)[:, 0].tolist()
    assert len(set(sample)) == len(sample) == 20
    assert set(sample) < marked


# --- several processes -----------------------------------------------------------------------------


def _find_in_shard(group: ProcessGroup) -> tuple[Tensor, Tensor]:
    cells = _plant().cells[group.shard(24)]
    foreground = _find_foreground(cells, group=group)
    return foreground, find_part_centroids(cells, foreground, 5, SETTINGS, _make_generator(), group)


def test_several_processes_find_the_same_parts_as_one() -> None:
    foreground, centroids = _find_in_shard(SINGLE_PROCESS)
    shards = run_in_processes(2, _find_in_shard)
    assert torch.equal(torch.cat([shard for shard, _ in shards]), foreground)
    for _, own in shards:
        torch.testing.assert_close(own, centroids, atol=1e-5, rtol=0)
