"""Animals of a generated arena are found where they are, stay themselves, and are let go when they leave."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from selfmark.config import Tracking
from selfmark.errors import InputError
from selfmark.tracking.animals import AnimalTracks, build_square_refs, fill_gaps, smooth_track, track_animals
from tests.tracking.arena import BODY, SIZE, Floats, wander, write_arena_video

SETTINGS = Tracking(num_samples=30)


def errors(tracks: AnimalTracks, ways: Floats) -> Floats:
    """Distances [frames, animals] to the true places, for the one order of animals that fits best."""
    orders = permutations(range(ways.shape[1]))
    distances = [np.linalg.norm(tracks.center[:, list(order)] - ways, axis=2) for order in orders]
    return min(distances, key=lambda one: float(np.nansum(one)))


@pytest.mark.parametrize(("animals", "bright"), [(1, False), (2, True), (3, False)])
def test_animals_are_found_and_stay_themselves(animals: int, bright: bool, tmp_path: Path) -> None:
    ways = wander(160, animals, seed=animals)
    tracks = track_animals(write_arena_video(ways, tmp_path / "arena.mp4", bright), animals, SETTINGS)
    away = errors(tracks, ways)
    assert np.isfinite(away).all()
    assert np.median(away) < 1.5
    assert away.max() < BODY[1]
    assert 2 * BODY[0] < tracks.side < 4 * BODY[0], "the body and its margin, not the tail"


def test_identity_survives_a_short_touch(tmp_path: Path) -> None:
    """Two animals come together head on, touch for half a second, and go back the way they came."""
    time = np.linspace(-1, 1, 150)
    gap = 1.7 * BODY[0] + 60 * np.abs(time) ** 1.5
    middle = np.array(SIZE) / 2
    ways = np.stack(
        [
            np.stack([middle[0] - gap / 2, middle[1] + 25 * time], axis=1),
            np.stack([middle[0] + gap / 2, middle[1] + 25 * time], axis=1),
        ],
        axis=1,
    )
    assert (gap < 2 * BODY[0]).sum() > 12, "they do touch"
    away = errors(track_animals(write_arena_video(ways, tmp_path / "touch.mp4"), 2, SETTINGS), ways)
    assert np.isfinite(away).all()
    assert away.max() < BODY[0], "nobody jumped to the other's place"


def test_who_leaves_has_no_box_and_is_taken_up_again(tmp_path: Path) -> None:
    ways = wander(150, 1, seed=4)
    gone = ways.copy()
    gone[60:100] = np.nan
    gone[120:125] = np.nan  # a blink, shorter than the half second that is filled in
    path = write_arena_video(gone, tmp_path / "arena.mp4")
    tracks = track_animals(path, 1, SETTINGS)
    seen = np.isfinite(tracks.center[:, 0, 0])
    assert not seen[60:100].any()
    assert seen[[*range(60), *range(100, 150)]].all()
    assert np.linalg.norm(tracks.center[120:125, 0] - ways[120:125, 0], axis=1).max() < 4, "filled in"
    refs = build_square_refs(path, tracks, every=5)
    assert [ref.frame for ref in refs] == [*range(0, 60, 5), *range(100, 150, 5)]
    assert {ref.track for ref in refs} == {1}
    x, y, width, height = refs[3].box or (0, 0, 0, 0)
    assert width == height == tracks.side
    np.testing.assert_allclose([x + width / 2 - 0.5, y + height / 2 - 0.5], tracks.center[15, 0])


def test_nothing_that_moves_is_one_sentence(tmp_path: Path) -> None:
    still = np.repeat(np.array([[[100.0, 70.0]]]), 40, axis=0)  # part of the background
    with pytest.raises(InputError, match=r"no animals stand out .* --boxes$"):
        track_animals(write_arena_video(still, tmp_path / "still.mp4"), 1, SETTINGS)


def test_more_animals_than_there_are_share_what_there_is(tmp_path: Path) -> None:
    ways = wander(60, 1, seed=1)
    tracks = track_animals(write_arena_video(ways, tmp_path / "one.mp4"), 2, SETTINGS)
    assert np.nanmax(np.linalg.norm(tracks.center - ways, axis=2)) < 2 * BODY[0], "halves of the one animal"


def test_smoothing_takes_noise_away_and_keeps_gaps() -> None:
    rng = np.random.default_rng(0)
    way = np.stack([np.linspace(0, 50, 200), 20 * np.sin(np.linspace(0, 6, 200))], axis=1)
    noisy = way + rng.normal(0, 1, way.shape)
    noisy[80:100] = np.nan
    smooth = smooth_track(noisy, 2.0)
    assert np.isnan(smooth[80:100]).all()
    assert np.isfinite(np.delete(smooth, range(80, 100), axis=0)).all()
    assert np.nanstd(smooth - way) < 0.6 * np.nanstd(noisy - way)
    np.testing.assert_array_equal(smooth_track(noisy, 0.0), noisy)


def test_only_short_gaps_are_filled() -> None:
    places = np.array([[0.0, 0], [1, 1], [np.nan] * 2, [3, 3], *[[np.nan] * 2] * 3, [7, 7]])
    whole = fill_gaps(places, 2)
    np.testing.assert_allclose(whole[2], [2, 2])
    assert np.isnan(whole[4:7]).all()
    np.testing.assert_allclose(fill_gaps(places, 3)[:, 0], np.arange(8))
