"""Test identities after contacts, on descriptions computed by hand, random data and rendered crossings."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import cv2
import numpy as np
import pytest

from selfmark.config import Tracking
from selfmark.tracking.animals import track_animals
from selfmark.tracking.identity import assign_identities, describe_animal, restore_identities

SETTINGS = Tracking(max_appearance_ratio=0.5, appearance_seconds=1.0)


def test_a_description_has_the_colors_and_the_size() -> None:
    frame = np.zeros((10, 10, 3), np.uint8)
    frame[:5] = (255, 100, 0)
    pixels = np.stack(np.meshgrid(np.arange(10), np.arange(5)), axis=-1).reshape(-1, 2).astype(float)
    description = describe_animal(frame, pixels, 25.0).reshape(3, 16)
    np.testing.assert_allclose(description.sum(axis=1), 2.0)  # The 50 pixels are twice the usual area.
    assert description.argmax(axis=1).tolist() == [15, 6, 0]


def make_descriptions(rng: np.random.Generator, means: list[float], frames: int) -> np.ndarray:
    """Return noisy descriptions [frames, animals, 4] around the means."""
    return np.array(means)[None, :, None] + rng.normal(0, 0.1, (frames, len(means), 4))


def test_animals_that_differ_are_told_apart_in_any_order() -> None:
    rng = np.random.default_rng(0)
    before = make_descriptions(rng, [0.0, 1.0, 3.0], 60)
    before[10:20, 1] = np.nan
    for order in ([0, 1, 2], [1, 0, 2], [2, 0, 1], [1, 2, 0]):
        after = make_descriptions(rng, [[0.0, 1.0, 3.0][animal] for animal in order], 20)
        chosen = assign_identities(before, after, 0.5)
        assert [order[path] for path in chosen] == [0, 1, 2]
    same_descriptions = make_descriptions(rng, [0.0, 0.0, 0.0], 60)
    for _ in range(20):
        after = make_descriptions(rng, [0.0, 0.0, 0.0], 20)
        assert assign_identities(same_descriptions, after, 0.5).tolist() == [0, 1, 2], (
            "animals that look alike stay"
        )
    assert assign_identities(before, after[:3], 0.5).tolist() == [0, 1, 2], "too few frames to decide"


def test_identities_are_restored_after_each_contact() -> None:
    """Two animals exchange their paths in contacts at frames 40 and 80, but not at frame 120."""
    rng = np.random.default_rng(0)
    description = make_descriptions(rng, [0.0, 1.0], 160)
    description[40:80] = description[40:80, ::-1]
    for start in (40, 80, 120):
        description[start : start + 5] = np.nan
    order = restore_identities(description, 20.0, SETTINGS)
    assert (order[:45] == [0, 1]).all()
    assert (order[45:80] == [1, 0]).all()
    assert (order[85:] == [0, 1]).all()
    never = restore_identities(description, 20.0, Tracking(max_appearance_ratio=0.0))
    assert (never == [0, 1]).all()


def test_identities_of_several_animals_agree_with_their_appearance() -> None:
    """Three animals exchange their paths at random in many contacts, of two or of all three."""
    rng = np.random.default_rng(1)
    description, truth = make_descriptions(rng, [0.0, 1.0, 3.0], 1_000), np.tile([0, 1, 2], (1_000, 1))
    for start in range(50, 1_000, 50):
        involved = rng.choice(3, rng.integers(2, 4), replace=False)  # These paths meet.
        exchanged = np.arange(3)
        exchanged[involved] = rng.permutation(involved)
        description[start : start + 5, truth[start, involved]] = np.nan
        truth[start:] = truth[start:, exchanged]
    # truth[t, path] is the animal that is on this path in frame t.
    seen = np.take_along_axis(description, truth[..., None], axis=1)
    is_in_contact = np.isnan(seen).any(axis=(1, 2))
    order = restore_identities(seen.astype(np.float32), 20.0, SETTINGS)
    followed = np.take_along_axis(truth, order, axis=1)  # the animal that each identity follows
    assert (followed[~is_in_contact] == [0, 1, 2]).all()


def test_restoring_identities_copies_only_the_descriptions_that_are_compared() -> None:
    description = np.zeros((50_000, 2, 48), np.float32)
    description[::1000] = np.nan
    tracemalloc.start()
    restore_identities(description, 20.0, SETTINGS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < description.nbytes / 5


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_appearance_corrects_a_crossing_that_paths_get_wrong(ratio: float, tmp_path: Path) -> None:
    """Two animals meet and cover each other. Then each animal goes back to where it came from.

    While one animal is covered, tracking by paths alone continues both paths in their previous directions.
    So it exchanges the animals.
    """
    path = tmp_path / "crossing.avi"
    steps = np.concatenate([np.linspace(-60, 0, 31), np.zeros(4), np.linspace(0, -60, 31)])
    places = np.array([100, 75]) + np.stack([steps, -steps], axis=1)[..., None] * [1.0, 0.0]  # [T, 2, 2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 30, (200, 150))
    rng = np.random.default_rng(0)
    for positions in places:
        picture = np.full((150, 200), 190.0)
        for (x, y), shade in zip(positions, (90, 30), strict=True):
            rows, columns = np.mgrid[:150, :200]
            picture[((columns - x) / 16) ** 2 + ((rows - y) / 8) ** 2 <= 1] = shade
        noisy = (picture + rng.normal(0, 5, picture.shape)).clip(0, 255).astype(np.uint8)
        writer.write(np.repeat(noisy[..., None], 3, axis=2))
    writer.release()
    center = track_animals(path, 2, Tracking(max_appearance_ratio=ratio)).center
    animal_at_start = int(np.linalg.norm(center[5, 0] - places[5], axis=1).argmin())
    animal_at_end = int(np.linalg.norm(center[-5, 0] - places[-5], axis=1).argmin())
    uses_appearance = ratio > 0
    assert (animal_at_start == animal_at_end) == uses_appearance
