"""Test the features of all cells, those of mirror images, and the file that holds them if memory is short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from selfmark.config import override, preset
from selfmark.features.cells import describe_cells, describe_colors, normalize_features, remove_stored_cells
from selfmark.features.orientation import average_rotations
from selfmark.images.feed import PixelFeed
from tests.features.random_images import random_images
from tests.features.tiny_encoder import TinyEncoder

PIXELS = (random_images(7, 64) * 255).byte()
IN_FILE = {"runtime.store_gigabytes": 0.0}


def _describe(
    folder: Path, rows: slice = slice(0, 7), encoder: TinyEncoder | None = None, **options: Any
) -> torch.Tensor:
    changes = {"runtime.predict_batch": 3, "runtime.precision": "fp32"} | options.pop("settings", {})
    feed = PixelFeed(PIXELS, torch.device("cpu"))
    config = override(preset("tiny"), changes)
    return describe_cells(encoder or TinyEncoder(), feed, rows, config, folder, **options)


@torch.no_grad()
def _compute_expected(rotations: int = 1) -> torch.Tensor:
    """Compute the features of all images at once, averaged over rotations."""
    return average_rotations(TinyEncoder().describe, PIXELS.float() / 255, rotations).half()


@pytest.mark.parametrize("settings", [{}, IN_FILE])
def test_cells_have_the_features_of_the_encoder(settings: dict[str, Any], tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    cells = _describe(tmp_path, settings=settings, on_progress=lambda *counts: done.append(counts))
    assert (cells.shape, cells.dtype) == ((7, 8, 8, 8), torch.float16)
    torch.testing.assert_close(cells, _compute_expected(), atol=1e-3, rtol=0)
    assert done == [(3, 7), (6, 7), (7, 7)]


def test_cells_can_be_described_in_bf16(tmp_path: Path) -> None:
    exact, rounded = (
        _describe(tmp_path, settings={"runtime.precision": name}).float() for name in ("fp32", "bf16")
    )
    distance = float((rounded - exact).norm(dim=1).mean())  # features are unit vectors
    assert 1e-3 < distance < 0.05


def test_only_the_given_rows_are_described(tmp_path: Path) -> None:
    torch.testing.assert_close(_describe(tmp_path, slice(2, 6)), _compute_expected()[2:6], atol=1e-3, rtol=0)


@pytest.mark.parametrize(("orientation", "rotations"), [("upright", 1), ("auto", 1), ("any", 4)])
def test_features_are_averaged_if_objects_face_any_direction(
    orientation: str, rotations: int, tmp_path: Path
) -> None:
    settings = {"features.orientation": orientation, "features.rotations": 4}
    cells = _describe(tmp_path, settings=settings)
    torch.testing.assert_close(cells, _compute_expected(rotations), atol=1e-3, rtol=0)


def test_places_are_appended_if_used_and_are_mirrored_in_mirror_images(tmp_path: Path) -> None:
    settings = {"features.places": "used", "features.place_weight": 0.25}
    cells, mirrored = (
        _describe(tmp_path, settings=settings, is_mirrored=is_mirrored) for is_mirrored in (False, True)
    )
    torch.testing.assert_close(cells[:, :8], _compute_expected(), atol=1e-3, rtol=0)
    for image, row, column in ((0, 0, 0), (3, 2, 5), (6, 7, 1)):
        # A place is the offset of the cell's center from the center of the image, in fifths of the image
        # side, times the square root of the weight 0.25.
        x, y = (((index + 0.5) / 8 - 0.5) * 5 * 0.5 for index in (column, row))
        assert cells[image, 8:, row, column].tolist() == pytest.approx([x, y], abs=1e-3)
        assert mirrored[image, 8:, row, column].tolist() == pytest.approx([-x, y], abs=1e-3)
    vectors = normalize_features(
        torch.tensor([[3.0, 4.0, 7.0, 8.0]]), override(preset("tiny"), settings).features
    )
    assert vectors.tolist() == [pytest.approx([0.6, 0.8, 7, 8])]


def test_colors_are_the_mean_and_the_standard_deviation_of_a_cell() -> None:
    colors = describe_colors(PixelFeed(PIXELS, torch.device("cpu")), slice(1, 6), 2)
    assert (colors.shape, colors.dtype) == ((5, 6, 8, 8), torch.float16)
    for image, row, column in ((0, 0, 0), (4, 3, 7)):
        cell = PIXELS[1 + image, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].double() / 255
        expected = [*cell.mean(dim=(1, 2)).tolist(), *cell.std(dim=(1, 2), correction=0).tolist()]
        assert colors[image, :, row, column].tolist() == pytest.approx(expected, abs=1e-3)


def test_cells_of_mirror_images_keep_their_positions(tmp_path: Path) -> None:
    mirrored = _describe(tmp_path, is_mirrored=True)
    encoder = TinyEncoder()
    for image in (0, 6):
        for row, column in ((0, 0), (2, 5), (7, 3)):
            cell = PIXELS[image : image + 1, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
            expected = encoder.describe(cell.flip(-1).float() / 255)[0, :, 0, 0].detach()
            torch.testing.assert_close(mirrored[image, :, row, column].float(), expected, atol=1e-3, rtol=0)
    assert (mirrored - _compute_expected()).abs().max() > 0.1, (
        "the features should change when the image is mirrored"
    )
    symmetric = TinyEncoder(is_symmetric=True)
    torch.testing.assert_close(
        _describe(tmp_path, encoder=symmetric, is_mirrored=True),
        _describe(tmp_path, encoder=symmetric),
        atol=1e-3,
        rtol=0,
    )


def test_features_that_fit_into_memory_need_no_file(tmp_path: Path) -> None:
    _describe(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_of_features_are_separate_and_can_be_removed(tmp_path: Path) -> None:
    """Several processes store features of images and of mirror images in this folder at the same time."""
    (tmp_path / "other.txt").write_text("stays")
    first = _describe(tmp_path, slice(0, 4), settings=IN_FILE)
    second = _describe(tmp_path, slice(4, 7), settings=IN_FILE)
    mirrored = _describe(tmp_path, slice(0, 4), settings=IN_FILE, is_mirrored=True)
    num_bytes = 2 * (4 + 3 + 4) * 8**3  # float16 for 8 features in 8 x 8 cells of each image
    assert sum(path.stat().st_size for path in tmp_path.glob("*.f16")) == num_bytes
    remove_stored_cells(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]
    torch.testing.assert_close(torch.cat([first, second]), _compute_expected(), atol=1e-3, rtol=0)
    assert (mirrored - first).abs().max() > 0.1
    remove_stored_cells(tmp_path)


def test_a_second_description_leaves_the_first_one_readable(tmp_path: Path) -> None:
    first = _describe(tmp_path, settings=IN_FILE)
    second = _describe(tmp_path, settings=IN_FILE, encoder=TinyEncoder(is_symmetric=True))
    torch.testing.assert_close(first, _compute_expected(), atol=1e-3, rtol=0)
    assert (first - second).abs().max() > 0.1
