"""Test that the plan of a batch depends only on seed and iteration, and that processes split a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from selfmark.errors import InputError
from selfmark.run.processes import ProcessGroup
from selfmark.train.batch_plan import BatchSlice, NearbyFrames, plan_images, plan_pairs

USABLE = np.array([2, 3, 5, 7, 11])


def test_any_iteration_can_be_planned_directly() -> None:
    plan = plan_pairs(USABLE, 8, 0.5, None, seed=1)
    in_order = [plan(iteration) for iteration in range(20)]
    for iteration in (13, 4):
        direct = plan_pairs(USABLE, 8, 0.5, None, seed=1)(iteration)
        assert direct.images.tolist() == in_order[iteration].images.tolist()
    different_batches = {tuple(planned.images.tolist()) for planned in in_order}
    assert len(different_batches) == 20
    other_seed = plan_pairs(USABLE, 8, 0.5, None, seed=2)
    assert other_seed(0).images.tolist() != in_order[0].images.tolist()


def test_pairs_consist_of_usable_images_with_the_given_fraction_of_same_images() -> None:
    planned = plan_pairs(USABLE, 4000, 0.5, None, seed=1)(0)
    assert set(planned.images.tolist()) == set(USABLE.tolist())
    same_fraction = (planned.first == planned.second).mean()
    # By chance, one in five of the other pairs also consists of an image and itself.
    assert same_fraction == pytest.approx(0.5 + 0.5 / len(USABLE), abs=0.03)
    assert (planned.slot == -1).all()
    counts = np.bincount(planned.images, minlength=12)[USABLE]
    assert counts.min() > 0.9 * counts.mean()


def test_the_given_fraction_of_pairs_draws_nearby_frames() -> None:
    """The slot of a pair with a nearby frame is the column of that frame in `NearbyFrames.neighbor`."""
    neighbor = np.full((12, 2), -1)
    neighbor[USABLE, 0] = USABLE + 100
    neighbor[USABLE[:3], 1] = USABLE[:3] + 200
    nearby = NearbyFrames(neighbor, np.zeros(12, dtype=np.int64), fraction=0.5)
    planned = plan_pairs(USABLE, 4000, 0.25, nearby, seed=1)(7)
    is_nearby = planned.slot >= 0
    assert (planned.second[is_nearby] == neighbor[planned.first[is_nearby], planned.slot[is_nearby]]).all()
    assert (planned.second[is_nearby] >= 100).all()
    assert (planned.second[~is_nearby] < 100).all()
    # Half of the pairs draw one of two slots for a nearby frame. All images have a frame in slot 0, and three
    # of five images have a frame in slot 1.
    assert is_nearby.mean() == pytest.approx(0.5 * (1 + 3 / 5) / 2, abs=0.03)
    same_fraction = (planned.first == planned.second)[~is_nearby].mean()
    assert same_fraction == pytest.approx(0.25 + 0.75 / len(USABLE), abs=0.04), (
        "with only one video, an image can be paired with itself by chance"
    )


def test_pairs_without_nearby_frames_are_drawn_evenly_from_different_videos() -> None:
    """Images 2 and 7 are from one video, 3 and 5 from another, and 11 and 13 are not from videos."""
    usable = np.array([2, 3, 5, 7, 11, 13])
    video = np.full(14, -1)
    video[[2, 7]], video[[3, 5]] = 4, 9
    nearby = NearbyFrames(np.full((14, 1), -1), video, fraction=0.5)
    planned = plan_pairs(usable, 30_000, 0.0, nearby, seed=3)(0)
    partners = {2: (3, 5, 11, 13), 3: (2, 7, 11, 13), 11: (2, 3, 5, 7, 13), 13: (2, 3, 5, 7, 11)}
    partners |= {7: partners[2], 5: partners[3]}
    for first, allowed in partners.items():
        second = planned.second[planned.first == first]
        counts = np.array([(second == image).sum() for image in allowed])
        assert counts.sum() == len(second)
        np.testing.assert_allclose(counts / len(second), 1 / len(allowed), atol=0.03)


def test_stage2_batches_consist_of_usable_images() -> None:
    plan = plan_images(USABLE, 1000, seed=3)
    assert set(plan(0).tolist()) == set(USABLE.tolist())
    assert plan(0).tolist() == plan_images(USABLE, 1000, seed=3)(0).tolist() != plan(1).tolist()


def test_processes_split_a_batch() -> None:
    planned = plan_pairs(USABLE, 6, 0.5, None, seed=1)(0)
    values = torch.arange(12)  # The first images of six pairs come before the second images.
    parts = [BatchSlice.for_process(6, ProcessGroup(rank, 3), "runtime.batch") for rank in range(3)]
    assert np.concatenate([planned.take(part).first for part in parts]).tolist() == planned.first.tolist()
    assert [part.take(values).tolist() for part in parts] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert parts[0].count == 2
    with pytest.raises(InputError, match=r"runtime\.batch is 7, which 3 processes cannot share equally"):
        BatchSlice.for_process(7, ProcessGroup(0, 3), "runtime.batch")
