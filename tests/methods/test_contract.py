"""Test random changes of a batch: every process takes its part of the same color changes."""

from __future__ import annotations

import torch

from selfmark.config import Config
from selfmark.methods.contract import RandomChanges
from selfmark.train.batch_plan import BatchSlice


def test_processes_take_their_part_of_the_same_colors() -> None:
    images = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def change_colors(part: BatchSlice) -> torch.Tensor:
        changes = RandomChanges(Config(), part, torch.Generator().manual_seed(1))
        return changes.change_colors(images[part.start : part.stop])

    all_changes = change_colors(BatchSlice(0, 6, 6))
    assert not torch.allclose(all_changes, images, atol=0.01)
    torch.testing.assert_close(change_colors(BatchSlice(3, 6, 6)), all_changes[3:])
    assert float(all_changes.min()) >= 0
    assert float(all_changes.max()) <= 1
