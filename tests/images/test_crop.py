"""Test crop regions computed by hand, coordinate round trips, and how pixels align with coordinates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfmark.config import Images
from selfmark.images.crop import (
    compute_crop_regions,
    extract_crop,
    keypoint_bounds,
    region_sides,
    to_network,
    to_original,
)
from selfmark.images.decode import Pixels

NO_BOX = [np.nan] * 4

# --- regions ---------------------------------------------------------------------------------------


def test_regions_match_those_computed_by_hand() -> None:
    sizes = [[640, 480], [300, 500], [640, 480], [640, 480]]
    boxes = [NO_BOX, NO_BOX, [100, 50, 40, 20], [-10, 0, 20, 60]]
    expected = [
        [0, -80, 640, 640],  # landscape: 80 rows above and below
        [-100, 0, 500, 500],  # portrait: 100 columns on either side
        [96, 36, 48, 48],  # center (120, 60), side 40 * 1.2
        [-36, -6, 72, 72],  # center (0, 30), side 60 * 1.2
    ]
    np.testing.assert_allclose(compute_crop_regions(sizes, boxes, Images(margin=0.1)), expected)


def test_the_body_rule_uses_the_height_of_the_box() -> None:
    images = Images(box_rule="body", body_scale=1.35)
    # The side is 1.35 times the height of 200, so 270, regardless of the width; the margin has no effect.
    regions = compute_crop_regions(
        [[640, 480]] * 3, [[100, 100, 50, 200], [100, 100, 500, 200], NO_BOX], images
    )
    np.testing.assert_allclose(regions, [[-10, 65, 270, 270], [215, 65, 270, 270], [0, -80, 640, 640]])


def test_stretched_regions_keep_the_shape_of_the_box() -> None:
    images = Images(aspect="stretched", margin=0.25)
    regions = compute_crop_regions([[640, 480]] * 2, [[np.nan] * 4, [100, 100, 40, 160]], images)
    assert regions.tolist() == [[0, 0, 640, 480], [90, 60, 60, 240]]
    assert region_sides(regions).tolist() == [np.sqrt(640 * 480), 120]
    body = Images(aspect="stretched", box_rule="body", body_scale=1.5)
    assert compute_crop_regions([[640, 480]], [[100, 100, 50, 200]], body).tolist() == [[-25, 50, 300, 300]]
    # The corners of the box with its margins are the corners of the network's image.
    corners = to_network([[89.5, 59.5], [149.5, 299.5]], regions[1], 256)
    assert corners.tolist() == [[-0.5, -0.5], [255.5, 255.5]]


def test_empty_arrays_are_allowed() -> None:
    assert compute_crop_regions(np.zeros((0, 2)), np.zeros((0, 4)), Images()).shape == (0, 4)
    assert keypoint_bounds(np.zeros((0, 2)), np.zeros((0, 4)), np.zeros((0, 4)), 64).shape == (0, 4)


# --- coordinates -----------------------------------------------------------------------------------


def test_corners_and_centers_of_pixels_are_mapped() -> None:
    region = [10.0, 20.0, 100.0, 100.0]  # ten original pixels per network pixel
    # The first network pixel covers original pixels 10..19, whose centers average to 14.5.
    np.testing.assert_allclose(to_original([0, 0], region, 10), [14.5, 24.5])
    np.testing.assert_allclose(to_original([9, 9], region, 10), [104.5, 114.5])
    np.testing.assert_allclose(to_network([14.5, 24.5], region, 10), [0, 0])
    np.testing.assert_allclose(to_network([9.5, 19.5], region, 10), [-0.5, -0.5])


def test_a_region_of_network_size_keeps_coordinates() -> None:
    points = np.array([[0.0, 0.0], [3.25, 100.0]])
    np.testing.assert_allclose(to_network(points, [0, 0, 128, 128], 128), points)


def test_each_image_can_have_its_own_region() -> None:
    points = np.random.default_rng(0).uniform(0, 64, (3, 5, 2))
    regions = np.array([[0.0, 0.0, 10.0, 10.0], [5.0, -3.0, 200.0, 200.0], [1.0, 2.0, 64.0, 64.0]])
    together = to_original(points, regions[:, None], 64)
    for image in range(3):
        for point in range(5):
            np.testing.assert_allclose(
                together[image, point], to_original(points[image, point], regions[image], 64)
            )


coordinates = st.floats(-1e4, 1e4)


@given(
    xy=st.tuples(coordinates, coordinates),
    corner=st.tuples(coordinates, coordinates),
    extent=st.tuples(st.floats(0.5, 1e4), st.floats(0.5, 1e4)),
    size=st.sampled_from([64, 128, 256]),
)
def test_to_original_inverts_to_network(
    xy: tuple[float, float], corner: tuple[float, float], extent: tuple[float, float], size: int
) -> None:
    region = (*corner, *extent)
    np.testing.assert_allclose(to_original(to_network(xy, region, size), region, size), xy, atol=1e-3)


# --- keypoint bounds -------------------------------------------------------------------------------


def test_bounds_match_those_computed_by_hand() -> None:
    sizes = [[640, 480], [640, 480], [640, 480]]
    boxes = [NO_BOX, [100, 50, 40, 20], [-20, 100, 40, 40]]
    regions = [[0, -80, 640, 640], [96, 36, 48, 48], [-24, 96, 48, 48]]
    expected = [
        [0, 8 - 0.5, 63, 56 - 0.5],  # rows 80 to 560 of the region's 640, divided by 10
        # The box begins (100 - 96) * 64 / 48 = 16 / 3 network pixels right of the crop's corner. Coordinates
        # start at the center of the first pixel, so they are smaller by 0.5.
        [16 / 3 - 0.5, 56 / 3 - 0.5, 176 / 3 - 0.5, 136 / 3 - 0.5],
        [32 - 0.5, 16 / 3 - 0.5, 176 / 3 - 0.5, 176 / 3 - 0.5],  # the box begins left of the image
    ]
    bounds = keypoint_bounds(sizes, boxes, regions, 64)
    assert bounds.dtype == np.float32
    np.testing.assert_allclose(bounds, expected, rtol=1e-6)


def test_bounds_contain_exactly_the_pixel_centers_inside() -> None:
    """Compare with a loop over all network pixels."""
    generator = np.random.default_rng(3)
    size = 32
    for _ in range(20):
        width, height = generator.integers(20, 200, 2)
        corner = generator.uniform(-10, (width - 5, height - 5))
        box = [*corner, *generator.uniform(8, 100, 2)]
        region = compute_crop_regions([[width, height]], [box], Images(margin=0.25))
        left, top, right, bottom = keypoint_bounds([[width, height]], [box], region, size)[0]
        for row in range(size):
            for column in range(size):
                # Position of the pixel center in the original, measured from pixel corners.
                x, y = to_original([column, row], region[0], size) + 0.5
                is_in_image = 0 <= x <= width and 0 <= y <= height
                is_in_box = box[0] <= x <= box[0] + box[2] and box[1] <= y <= box[1] + box[3]
                is_in_bounds = left <= column <= right and top <= row <= bottom
                assert is_in_bounds == (is_in_image and is_in_box)


# --- pixels ----------------------------------------------------------------------------------------


def draw_blob(width: int, height: int, x: float, y: float, sigma: float) -> Pixels:
    """Draw a Gaussian around a pixel position; each pixel is the average of 5 x 5 samples."""
    offsets = (np.arange(5) - 2) / 5
    across = np.exp(-0.5 * ((np.arange(width)[:, None] + offsets - x) / sigma) ** 2).mean(axis=1)
    down = np.exp(-0.5 * ((np.arange(height)[:, None] + offsets - y) / sigma) ** 2).mean(axis=1)
    return np.rint(250 * down[:, None] * across[None])[..., None].repeat(3, 2).astype(np.uint8)


def compute_centroid(image: Pixels) -> np.ndarray:
    weights = image.mean(axis=2, dtype=np.float64)
    weights[weights < 3] = 0  # ignore values that are mainly rounding errors
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    return np.array([(weights * columns).sum(), (weights * rows).sum()]) / weights.sum()


@pytest.mark.parametrize(
    "region",
    [
        (0.0, 0.0, 64.0, 64.0),  # one to one
        (100.0, 80.0, 64.0, 64.0),
        (100.3, 80.7, 64.0, 64.0),  # shifted by fractions of a pixel
        (101.37, 81.91, 66.5, 66.5),  # slightly reduced
        (90.2, 70.9, 97.3, 97.3),
        (40.0, 20.0, 192.0, 192.0),
        (-55.5, -81.25, 411.7, 411.7),  # extends beyond the image on all sides
        (-800.3, -700.1, 1931.0, 1931.0),  # reduced 30 times, mostly outside the image
        (-900.9, -1000.2, 3200.5, 3200.5),  # reduced 50 times
        (110.4, 95.2, 40.7, 40.7),  # enlarged
        (125.45, 109.15, 16.0, 16.0),
        (129.21, 112.93, 8.0, 8.0),  # enlarged 8 times
        (90.0, 100.0, 80.0, 40.0),  # not a square
    ],
)
@pytest.mark.parametrize("position", [(133.0, 117.0), (132.6, 116.8), (133.5, 116.45)])
def test_pixels_are_aligned_with_coordinates(
    region: tuple[float, float, float, float], position: tuple[float, float]
) -> None:
    size = 64
    if region[0] == 0.0:  # the region in the corner does not contain the positions, so move them into it
        position = (position[0] - 100, position[1] - 90)
    scale = max(region[2], region[3]) / size
    # Add a border so that the image contains the whole blob.
    border = int(12 * scale)
    image = draw_blob(
        301 + 2 * border, 243 + 2 * border, position[0] + border, position[1] + border, max(2 * scale, 0.7)
    )
    shifted = (region[0] + border, region[1] + border, region[2], region[3])
    actual = compute_centroid(extract_crop(image, shifted, size))
    expected = to_network(position, region, size)
    assert np.abs(actual - expected).max() < 0.05


@pytest.mark.parametrize("factor", [2, 3, 5, 16])
def test_reduction_by_a_whole_factor_averages_blocks(factor: int) -> None:
    size = 16
    side = size * factor
    image = np.random.default_rng(factor).integers(0, 256, (side + 7, side + 11, 3), np.uint8)
    block = image[4 : 4 + side, 9 : 9 + side].astype(float)
    expected = block.reshape(size, factor, size, factor, 3).mean(axis=(1, 3))
    result = extract_crop(image, (9, 4, side, side), size)
    assert np.abs(result - expected).max() <= 1


def test_a_crop_at_full_resolution_is_a_copy() -> None:
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    np.testing.assert_array_equal(extract_crop(image, (13, 7, 32, 32), 32), image[7:39, 13:45])


def test_enlargement_interpolates_linearly() -> None:
    ramp = (np.arange(40) * 6).astype(np.uint8)
    image = np.dstack([np.tile(ramp, (30, 1)), np.tile(ramp[:30, None], (1, 40)), np.full((30, 40), 77)])
    region = (8.3, 5.1, 12.0, 12.0)
    result = extract_crop(image.astype(np.uint8), region, 64)
    rows, columns = np.mgrid[:64, :64]
    original = to_original(np.dstack([columns, rows]), region, 64)
    assert np.abs(result[..., 0] - original[..., 0] * 6).max() <= 0.51
    assert np.abs(result[..., 1] - original[..., 1] * 6).max() <= 0.51
    assert (result[..., 2] == 77).all()


@pytest.mark.parametrize(("shrink", "tolerance"), [(0.5, 1), (1.0, 1), (3.0, 10)])
def test_border_pixels_are_repeated_outside_the_image(shrink: float, tolerance: int) -> None:
    """Padding the image beyond the region before cropping gives nearly the same result."""
    noise = np.random.default_rng(8).integers(0, 256, (20, 30, 3), np.uint8)
    ramps = np.add.outer(np.arange(20) * 5, np.arange(30) * 4)[..., None].repeat(3, 2).astype(np.uint8)
    # When an image is reduced, border pixels are averaged before they are repeated. This case is tested with
    # a smooth image.
    image = noise if shrink <= 1 else ramps
    side = 32 * shrink
    region = np.array([-side / 3, -side / 4, side, side])
    pad = 120
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="edge")
    expected = extract_crop(padded, region + np.array([pad, pad, 0, 0]), 32)
    result = extract_crop(image, region, 32)
    assert np.abs(result.astype(int) - expected).max() <= tolerance
    # Network columns and rows that lie left of and above the image are all equal.
    is_left, is_above = (to_original(np.arange(32)[:, None].repeat(2, 1), region, 32) < -0.5).T
    assert (result[is_above] == result[is_above][:1]).all()
    assert (result[:, is_left] == result[:, is_left][:, :1]).all()


@pytest.mark.parametrize(
    "region", [(500, 500, 10, 10), (-90, 5, 20, 20), (-1e9, -1e9, 2e9, 2e9), (3.2, 3.2, 1e-3, 1e-3)]
)
def test_extreme_regions_give_a_valid_crop(region: tuple[float, ...]) -> None:
    image = np.full((12, 17, 3), 91, np.uint8)
    result = extract_crop(image, region, 16)
    assert result.shape == (16, 16, 3)
    assert (result == 91).all()


def test_reduction_does_not_alias() -> None:
    """Stripes of one pixel must become gray, not wider stripes, at any scale."""
    stripes = np.zeros((400, 400, 3), np.uint8)
    stripes[:, ::2] = 255
    for scale in (2.0, 2.7, 3.1, 5.9):
        result = extract_crop(stripes, (10, 10, 64 * scale, 64 * scale), 64)
        assert result[..., 0].std() < 255 / (2 * scale)
        assert abs(float(result.mean()) - 127.5) < 3
