"""Test tracking in generated videos; compare boxes, gaps and smoothing with values computed by hand."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from selfmark.config import Tracking
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.decode import Pixels
from selfmark.images.video import read_frames
from selfmark.tracking import animals as animals_module
from selfmark.tracking.animals import (
    AnimalTracks,
    build_square_refs,
    explain_implausible_tracks,
    fill_gaps,
    smooth_centers,
    track_animals,
)
from selfmark.tracking.regions import Regions, locate_objects
from tests.tracking.arena import BODY, SIZE, Floats, wander, write_arena_video

SETTINGS = Tracking(num_samples=30)
NAN = [np.nan, np.nan]


def measure_errors(tracks: AnimalTracks, paths: Floats) -> Floats:
    """Return distances [frames, animals] to the true positions, for the best assignment of animals."""
    orders = permutations(range(paths.shape[1]))
    distances = [np.linalg.norm(tracks.center[:, list(order)] - paths, axis=2) for order in orders]
    return min(distances, key=lambda distance: float(np.nansum(distance)))


@pytest.mark.parametrize(("animals", "bright"), [(1, False), (2, True), (3, False)])
def test_animals_are_found_and_keep_their_identity(animals: int, bright: bool, tmp_path: Path) -> None:
    paths = wander(160, animals, seed=animals)
    tracks = track_animals(write_arena_video(paths, tmp_path / "arena.mp4", bright), animals, SETTINGS)
    error = measure_errors(tracks, paths)
    assert np.isfinite(error).all()
    assert np.median(error) < 1.5
    assert error.max() < BODY[1]
    assert 2 * BODY[0] < tracks.side < 4 * BODY[0], "the body and its margin, not the tail"
    assert explain_implausible_tracks(tracks, SETTINGS) == ""


def test_tracks_are_reported_as_implausible_if_other_things_move_or_the_animal_is_missing(
    tmp_path: Path,
) -> None:
    video = write_arena_video(wander(60, 3, seed=3), tmp_path / "arena.mp4")
    tracks = track_animals(video, 1, SETTINGS)
    assert tracks.outside == pytest.approx(2 / 3, abs=0.1)  # Two of three animals are not tracked.
    assert "of the moving pixels are outside the squares" in explain_implausible_tracks(tracks, SETTINGS)
    center = np.zeros((10, 1, 2))
    center[:4] = np.nan
    assert explain_implausible_tracks(AnimalTracks(center, 9.0), SETTINGS) == (
        "an animal is not found in 40% of the frames"
    )


def test_identity_is_kept_during_a_short_contact(tmp_path: Path) -> None:
    """Two animals approach each other and touch for half a second. Then each returns to its own side."""
    time = np.linspace(-1, 1, 150)
    center_distance = 1.7 * BODY[0] + 60 * np.abs(time) ** 1.5
    middle = np.array(SIZE) / 2
    paths = np.stack(
        [
            np.stack([middle[0] - center_distance / 2, middle[1] + 25 * time], axis=1),
            np.stack([middle[0] + center_distance / 2, middle[1] + 25 * time], axis=1),
        ],
        axis=1,
    )
    assert (center_distance < 2 * BODY[0]).sum() > 12, "the animals touch"
    error = measure_errors(
        track_animals(write_arena_video(paths, tmp_path / "touch.mp4"), 2, SETTINGS), paths
    )
    assert np.isfinite(error).all()
    assert error.max() < BODY[0], "no animal jumps to the other's position"


def test_an_animal_that_leaves_has_no_box_until_it_returns(tmp_path: Path) -> None:
    paths = wander(150, 1, seed=4)
    visible = paths.copy()
    visible[60:100] = np.nan
    visible[120:125] = np.nan  # This gap is shorter than the maximum, half a second.
    path = write_arena_video(visible, tmp_path / "arena.mp4")
    tracks = track_animals(path, 1, SETTINGS)
    has_position = np.isfinite(tracks.center[:, 0, 0])
    assert not has_position[60:100].any()
    assert has_position[[*range(60), *range(100, 150)]].all()
    assert np.linalg.norm(tracks.center[120:125, 0] - paths[120:125, 0], axis=1).max() < 4, "filled in"
    refs = build_square_refs(path, tracks, every=5)
    assert [ref.frame for ref in refs] == [*range(0, 60, 5), *range(100, 150, 5)]
    assert {ref.track for ref in refs} == {1}
    x, y, width, height = refs[3].box or (0, 0, 0, 0)
    assert width == height == tracks.side
    np.testing.assert_allclose([x + width / 2 - 0.5, y + height / 2 - 0.5], tracks.center[15, 0])


def test_frames_without_an_animal_are_counted_apart_from_unreadable_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unreadable frames in short gaps get positions, so they do not lower the number of empty frames."""
    paths = wander(150, 1, seed=4)
    paths[60:100] = np.nan
    unreadable = (20, 30, 40, 80)

    def read_all_but_some(path: Path, numbers: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
        return ((number, frame) for number, frame in read_frames(path, numbers) if number not in unreadable)

    monkeypatch.setattr(animals_module, "read_frames", read_all_but_some)
    notes: list[str] = []
    path = write_arena_video(paths, tmp_path / "arena.mp4")
    settings = Tracking(num_samples=30, max_missing=1)
    locate_objects([path], regions=Regions(animals=1), settings=settings, on_note=notes.append)
    assert notes == [
        f"4 of 150 frames of {path} could not be read",
        f"no animal was found in 39 of 150 frames of {path}",
    ]


def test_a_video_without_motion_is_rejected(tmp_path: Path) -> None:
    # An animal that never moves counts as background.
    still_path = np.repeat(np.array([[[100.0, 70.0]]]), 40, axis=0)
    with pytest.raises(InputError, match=r"no animals were found\. .* --boxes$"):
        track_animals(write_arena_video(still_path, tmp_path / "still.mp4"), 1, SETTINGS)


def test_two_tracks_share_a_single_animal(tmp_path: Path) -> None:
    paths = wander(60, 1, seed=1)
    tracks = track_animals(write_arena_video(paths, tmp_path / "one.mp4"), 2, SETTINGS)
    error = np.nanmax(np.linalg.norm(tracks.center - paths, axis=2))
    assert error < 2 * BODY[0], "each track follows one half of the animal"


def test_progress_counts_the_frames(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    path = write_arena_video(wander(40, 1, seed=1), tmp_path / "arena.mp4")
    tracks = track_animals(path, 1, SETTINGS, lambda done, total: calls.append((done, total)))
    assert calls == [(number, 40) for number in range(1, 41)]
    assert tracks.unread == 0


# --- squares ---------------------------------------------------------------------------------------


def test_squares_match_a_hand_computed_case() -> None:
    """A square of side 10 around the center of pixel (20, 30) has its corner at (20.5 - 5, 30.5 - 5)."""
    center = np.array([[[20, 30], [50, 60]], [[21, 31], NAN], [NAN, [52, 62]]], dtype=np.float64)
    path = Path("arena.mp4")
    assert build_square_refs(path, AnimalTracks(center, 10.0), every=1) == [
        ImageRef(path, 0, (15.5, 25.5, 10.0, 10.0), 1),
        ImageRef(path, 0, (45.5, 55.5, 10.0, 10.0), 2),
        ImageRef(path, 1, (16.5, 26.5, 10.0, 10.0), 1),
        ImageRef(path, 2, (47.5, 57.5, 10.0, 10.0), 2),
    ]
    every_second = build_square_refs(path, AnimalTracks(center, 10.0), every=2)
    assert [(ref.frame, ref.track) for ref in every_second] == [(0, 1), (0, 2), (2, 2)]


# --- gaps ------------------------------------------------------------------------------------------


def test_only_short_gaps_are_filled() -> None:
    positions = np.array([[0.0, 0], [1, 1], NAN, [3, 3], NAN, NAN, NAN, [7, 7]])
    filled = fill_gaps(positions, 2)
    np.testing.assert_allclose(filled[2], [2, 2])
    assert np.isnan(filled[4:7]).all()
    np.testing.assert_allclose(fill_gaps(positions, 3)[:, 0], np.arange(8))


def test_gaps_at_the_ends_are_not_filled() -> None:
    positions = np.array([NAN, [4, 8], NAN, [6, 4], NAN])
    np.testing.assert_array_equal(fill_gaps(positions, 10), [NAN, [4, 8], [5, 6], [6, 4], NAN])
    np.testing.assert_array_equal(fill_gaps(positions, 0), positions)
    assert np.isnan(positions[2]).all(), "the argument is not changed"


def test_a_track_without_positions_stays_empty() -> None:
    empty = np.full((5, 2), np.nan)
    np.testing.assert_array_equal(fill_gaps(empty, 3), empty)
    np.testing.assert_array_equal(smooth_centers(empty, 2.0), empty)


# --- smoothing -------------------------------------------------------------------------------------


def test_smoothing_reduces_noise_and_keeps_gaps() -> None:
    rng = np.random.default_rng(0)
    path = np.stack([np.linspace(0, 50, 200), 20 * np.sin(np.linspace(0, 6, 200))], axis=1)
    noisy = path + rng.normal(0, 1, path.shape)
    noisy[80:100] = np.nan
    smooth_path = smooth_centers(noisy, 2.0)
    assert np.isnan(smooth_path[80:100]).all()
    assert np.isfinite(np.delete(smooth_path, range(80, 100), axis=0)).all()
    assert np.nanstd(smooth_path - path) < 0.6 * np.nanstd(noisy - path)
    np.testing.assert_array_equal(smooth_centers(noisy, 0.0), noisy)


def test_smoothing_weights_are_gaussian() -> None:
    impulse = np.zeros((41, 2))
    impulse[20] = [1, 10]
    weights = np.exp(-0.5 * (np.arange(-20, 21) / 2.0) ** 2)
    weights /= weights.sum()
    np.testing.assert_allclose(smooth_centers(impulse, 2.0), weights[:, None] * [1, 10], atol=1e-4)


def test_smoothing_does_not_mix_the_two_sides_of_a_gap() -> None:
    positions = np.array([[0.0, 5]] * 6 + [NAN] + [[100.0, 5]] * 6)
    np.testing.assert_allclose(smooth_centers(positions, 3.0), positions)


@pytest.mark.parametrize("name", ["animals", "regions"])
def test_examples_in_docstrings_are_correct(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"selfmark.tracking.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
