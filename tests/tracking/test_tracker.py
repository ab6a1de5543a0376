"""Test the tracker on masks of squares, whose centers, radii and steps are computed by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfmark.config import Tracking
from selfmark.tracking.tracker import AnimalState, AnimalTracker, divide_pixels

Floats = npt.NDArray[np.float64]
SETTINGS = Tracking(min_area=0.25, max_step=2.0)
SIDE = 9  # side of an animal, pixels
AREA = float(SIDE**2)


def draw_mask(*centers: tuple[int, int], side: int = SIDE) -> npt.NDArray[np.uint8]:
    """Draw squares with an odd side around these centers (x, y)."""
    mask = np.zeros((100, 160), np.uint8)
    half_side = side // 2
    for x, y in centers:
        mask[y - half_side : y + half_side + 1, x - half_side : x + half_side + 1] = 1
    return mask


def list_square_pixels(x: float, y: float, side: int = SIDE) -> Floats:
    """Return the pixels [side * side, 2] of a square around a center."""
    offsets = np.arange(side) - side // 2
    return np.stack(np.meshgrid(x + offsets, y + offsets), axis=-1).reshape(-1, 2).astype(np.float64)


def make_state(x: float, y: float, step: tuple[float, float] = (0.0, 0.0), unseen: int = 0) -> AnimalState:
    """Return the state of a square animal."""
    # This is the variance of SIDE pixels in a row. The tracker adds 1 to keep the covariance invertible.
    variance = (SIDE**2 - 1) / 12 + 1
    return AnimalState(np.array([x, y]), variance * np.eye(2), 5.0, np.array(step), unseen)


# --- one animal ------------------------------------------------------------------------------------


def test_center_and_radius_match_a_hand_computed_case() -> None:
    """The radius is the 97th percentile of the distances of the pixels from the center.

    Four of the 9 pixels are corners, all at the largest distance, sqrt(2). So the percentile is sqrt(2), too.
    """
    positions = AnimalTracker(1, 9.0, SETTINGS).update(draw_mask((40, 30), side=3))
    np.testing.assert_allclose(positions.center, [[40, 30]])
    np.testing.assert_allclose(positions.radius, [2**0.5])


def test_blobs_that_are_too_small_are_ignored() -> None:
    """The lower limit is a quarter of 81 pixels: 5 x 5 pixels are enough, 3 x 3 pixels are not."""
    small_animal = AnimalTracker(1, AREA, SETTINGS).update(draw_mask((40, 30), side=3))
    assert np.isnan(small_animal.center).all()
    assert np.isnan(small_animal.radius).all()
    large_animal = AnimalTracker(1, AREA, SETTINGS).update(draw_mask((40, 30), side=5))
    np.testing.assert_allclose(large_animal.center, [[40, 30]])


def test_the_largest_blob_is_the_animal_at_the_start() -> None:
    mask = draw_mask((20, 20), side=5) | draw_mask((60, 60))
    np.testing.assert_allclose(AnimalTracker(1, AREA, SETTINGS).update(mask).center, [[60, 60]])


def test_an_animal_moves_at_most_two_lengths_per_frame() -> None:
    """An animal's length is the square root of its area, 9 pixels. Each frame out of sight adds 18 pixels."""
    for distance, is_found in ((18, True), (19, False)):
        tracker = AnimalTracker(1, AREA, SETTINGS)
        tracker.update(draw_mask((40, 30)))
        center = tracker.update(draw_mask((40 + distance, 30))).center
        assert np.isfinite(center).all() == is_found
    for distance, is_found in ((54, True), (55, False)):
        tracker = AnimalTracker(1, AREA, SETTINGS)
        tracker.update(draw_mask((40, 30)))
        for _ in range(2):
            assert np.isnan(tracker.update(draw_mask()).center).all()
        center = tracker.update(draw_mask((40 + distance, 30))).center
        assert np.isfinite(center).all() == is_found


def test_the_expected_position_follows_the_motion() -> None:
    """Each expected step is the mean of the previous one and the observed step of 8 pixels: 4, 6 and 7."""
    tracker = AnimalTracker(1, AREA, SETTINGS)
    steps = []
    for number in range(4):
        tracker.update(draw_mask((30 + 8 * number, 30)))
        (animal,) = tracker._animals
        assert animal is not None
        steps.append(animal.step.tolist())
    assert steps == [[0, 0], [4, 0], [6, 0], [7, 0]]
    assert animal.expected.tolist() == [30 + 24 + 7, 30]


def test_a_hidden_animal_is_expected_at_its_last_position() -> None:
    assert make_state(40, 30, step=(3, 1)).expected.tolist() == [43, 31]
    assert make_state(40, 30, step=(3, 1), unseen=1).expected.tolist() == [40, 30]


# --- several animals -------------------------------------------------------------------------------


def test_identities_are_kept_while_the_sizes_change() -> None:
    """At the start, animals are ordered by size; afterwards, positions decide."""
    tracker = AnimalTracker(2, AREA, SETTINGS)
    first = tracker.update(draw_mask((30, 30)) | draw_mask((90, 60), side=7))
    np.testing.assert_allclose(first.center, [[30, 30], [90, 60]])
    second = tracker.update(draw_mask((34, 31), side=7) | draw_mask((86, 58)))
    np.testing.assert_allclose(second.center, [[34, 31], [86, 58]])


def test_the_total_distance_is_minimal() -> None:
    """The blob nearest to the left animal goes to the right animal, because the total is then smaller."""
    tracker = AnimalTracker(2, AREA, SETTINGS)
    start = tracker.update(draw_mask((30, 30), (50, 30)))
    order = np.argsort(start.center[:, 0])
    moved = tracker.update(draw_mask((20, 30), (38, 30)))
    np.testing.assert_allclose(moved.center[order], [[20, 30], [38, 30]])


def test_one_animal_is_lost_while_the_other_is_tracked() -> None:
    tracker = AnimalTracker(2, AREA, SETTINGS)
    order = np.argsort(tracker.update(draw_mask((30, 30), (90, 60))).center[:, 0])
    center_alone = tracker.update(draw_mask((32, 30))).center[order]
    np.testing.assert_allclose(center_alone[0], [32, 30])
    assert np.isnan(center_alone[1]).all()
    centers_of_both = tracker.update(draw_mask((34, 30), (88, 60))).center[order]
    np.testing.assert_allclose(centers_of_both, [[34, 30], [88, 60]])


def test_touching_animals_share_a_blob() -> None:
    """Two squares side by side form one blob of twice the area, which is divided in the middle."""
    touching = draw_mask((40, 30), (40 + SIDE, 30))
    at_start = AnimalTracker(2, AREA, SETTINGS).update(touching)
    np.testing.assert_allclose(sorted(at_start.center.tolist()), [[40, 30], [49, 30]])
    tracker = AnimalTracker(2, AREA, SETTINGS)
    before = tracker.update(draw_mask((38, 30), (51, 30)))
    np.testing.assert_allclose(np.abs(tracker.update(touching).center - before.center), [[2, 0], [2, 0]])


def test_animals_that_cover_each_other_continue_at_half_their_speed() -> None:
    """Both animals move by 6 pixels. Then they form one blob, in which each is expected to move by 3."""
    tracker = AnimalTracker(2, AREA, SETTINGS)
    order = np.argsort(tracker.update(draw_mask((20, 30), (44, 30))).center[:, 0])
    tracker.update(draw_mask((26, 30), (38, 30)))
    covered = tracker.update(draw_mask((32, 30)))
    np.testing.assert_allclose(covered.center[order], [[29, 30], [35, 30]])
    assert np.isnan(covered.radius).all()


# --- division of a blob ----------------------------------------------------------------------------


def test_each_animal_gets_its_own_square() -> None:
    left, right = list_square_pixels(20, 30), list_square_pixels(20 + SIDE, 30)
    pixels = np.concatenate([left, right])
    for first, second in ((0, 1), (1, 0)):
        animals: list[AnimalState | None] = [make_state(19, 30), make_state(30, 30)]
        parts = divide_pixels(pixels, [animals[first], animals[second]])
        np.testing.assert_array_equal(parts[first], left)
        np.testing.assert_array_equal(parts[second], right)


def test_expected_steps_tell_animals_apart() -> None:
    """Both animals were at the same position, but move in opposite directions."""
    left, right = list_square_pixels(20, 30), list_square_pixels(20 + SIDE, 30)
    parts = divide_pixels(
        np.concatenate([left, right]), [make_state(24.5, 30, step=(5, 0)), make_state(24.5, 30, step=(-5, 0))]
    )
    np.testing.assert_array_equal(parts[0], right)
    np.testing.assert_array_equal(parts[1], left)


def test_animals_not_seen_before_are_placed_along_the_long_axis_of_the_blob() -> None:
    squares = [list_square_pixels(30, 20 + SIDE * number) for number in range(3)]
    parts = divide_pixels(np.concatenate(squares), [None, None, None])
    middles = sorted(part.mean(axis=0).tolist() for part in parts)
    np.testing.assert_allclose(sorted(middle[1] for middle in middles), [20, 29, 38], atol=1.5)
    np.testing.assert_allclose([middle[0] for middle in middles], 30)


@given(
    pixels=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=60, unique=True),
    known=st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_every_pixel_goes_to_exactly_one_animal(pixels: list[tuple[int, int]], known: list[bool]) -> None:
    blob = np.array(pixels, dtype=np.float64)
    animals = [make_state(20.0 * number, 30.0) if seen else None for number, seen in enumerate(known)]
    parts = divide_pixels(blob, animals)
    assert len(parts) == len(animals)
    divided = [tuple(pixel) for part in parts for pixel in part.tolist()]
    assert sorted(divided) == sorted(tuple(pixel) for pixel in blob.tolist())


def test_a_single_animal_gets_all_pixels() -> None:
    blob = list_square_pixels(20, 30)
    (part,) = divide_pixels(blob, [make_state(100, 80)])
    np.testing.assert_array_equal(part, blob)


@pytest.mark.parametrize("count", [1, 2])
def test_degenerate_blobs_can_be_divided(count: int) -> None:
    """A single pixel and a line have no area, but the covariance stays invertible."""
    line = np.stack([np.arange(6.0), np.zeros(6)], axis=1)
    for blob in (line[:1], line):
        assert sum(len(part) for part in divide_pixels(blob, [None] * count)) == len(blob)
