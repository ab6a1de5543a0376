"""Test process groups: collective operations, shared work, groups of size one, and lost processes."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfmark.errors import InputError, TrainingError
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from tests.processes import run_in_processes


def _exchange(group: ProcessGroup) -> dict[str, Any]:
    """Call every collective operation with values that depend on the rank."""
    rank = group.rank
    rows = torch.arange(2 * (2 - rank), dtype=torch.int64).reshape(-1, 2) + 10 * rank  # 2, 1 or 0 rows
    vector = torch.tensor([float(rank), 1.0])
    summed = group.all_sum(vector)
    group.barrier()
    return {
        "rank": (rank, group.size, group.is_leader),
        "sum": summed.tolist(),
        "in place": summed is vector,
        "max": group.all_max(torch.tensor([rank, -rank])).tolist(),
        "broadcast": group.broadcast(torch.tensor([rank + 5])).tolist(),
        "broadcast from 2": group.broadcast(torch.tensor([rank + 5]), source=2).tolist(),
        "gathered": group.gather_rows(rows).tolist(),
        "gathered flat": group.gather_rows(torch.full((rank,), rank)).tolist(),
        "counts": group.gather_counts(3 * rank),
        "shard": group.shard(10),
    }


def test_collective_operations_combine_the_values_of_three_processes() -> None:
    results = run_in_processes(3, _exchange)
    assert [result.pop("rank") for result in results] == [(0, 3, True), (1, 3, False), (2, 3, False)]
    assert [result.pop("shard") for result in results] == [slice(0, 3), slice(3, 6), slice(6, 10)]
    assert (
        results[0]
        == results[1]
        == results[2]
        == {
            "sum": [3.0, 3.0],
            "in place": True,
            "max": [2, 0],
            "broadcast": [5],
            "broadcast from 2": [7],
            "gathered": [[0, 1], [2, 3], [10, 11]],
            "gathered flat": [1, 2, 2],
            "counts": [0, 3, 6],
        }
    )


def test_a_group_of_one_returns_its_arguments() -> None:
    tensor = torch.randn(4, 2)
    for operation in (
        SINGLE_PROCESS.all_sum,
        SINGLE_PROCESS.all_max,
        SINGLE_PROCESS.broadcast,
        SINGLE_PROCESS.gather_rows,
    ):
        assert operation(tensor) is tensor
    SINGLE_PROCESS.barrier()
    SINGLE_PROCESS.close()
    assert SINGLE_PROCESS.is_leader
    assert SINGLE_PROCESS.gather_counts(7) == [7]
    assert SINGLE_PROCESS.compute_shared(4, 3, lambda rows: [tensor[rows]])[0].equal(tensor)
    assert SINGLE_PROCESS.run_on_all(lambda: "result") == "result"


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert ProcessGroup.from_environment(torch.device("cpu")) == SINGLE_PROCESS


@given(st.integers(0, 1000), st.integers(1, 40))
def test_shards_cover_everything_once_and_evenly(count: int, size: int) -> None:
    items = list(range(count))
    shards = [items[ProcessGroup(rank, size).shard(count)] for rank in range(size)]
    assert [item for shard in shards for item in shard] == items
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@given(st.integers(0, 300), st.integers(1, 12), st.integers(1, 50))
def test_parts_consist_of_the_passes_of_a_single_process(count: int, size: int, pass_size: int) -> None:
    def split(part: slice) -> list[tuple[int, int]]:
        starts = range(part.start, part.stop, pass_size)
        return [(start, min(start + pass_size, part.stop)) for start in starts]

    parts = [split(ProcessGroup(rank, size).shard(count, pass_size)) for rank in range(size)]
    assert [passes for part in parts for passes in part] == split(slice(0, count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def _compute_rows(rows: slice) -> list[torch.Tensor]:
    """Return rows of several types: one or two for each item, and one for each pass of three items."""
    index = torch.arange(rows.start, rows.stop)
    return [
        index.repeat_interleave(1 + index % 2),
        torch.stack([index.half(), -index.half()], dim=1),
        index % 3 == 0,
        index[::3].double(),
    ]


def _compute_for_counts(group: ProcessGroup, counts: list[int], pass_size: int) -> list[list[torch.Tensor]]:
    return [list(group.compute_shared(count, pass_size, _compute_rows)) for count in counts]


def test_shared_results_equal_those_of_one_process() -> None:
    counts = [0, 1, 4, 8, 20]  # If there are fewer than three passes, some processes have no items.
    expected = _compute_for_counts(SINGLE_PROCESS, counts, 3)
    for results in run_in_processes(3, _compute_for_counts, counts, 3):
        for result, tensors in zip(results, expected, strict=True):
            for tensor, other in zip(result, tensors, strict=True):
                assert tensor.dtype == other.dtype
                assert torch.equal(tensor, other)


def _compute_with_own_pass_size(group: ProcessGroup) -> list[int]:
    return group.compute_shared(20, 6 - group.rank, lambda rows: _compute_rows(rows)[:1])[0].tolist()


def test_processes_with_different_pass_sizes_compute_every_item_once() -> None:
    (expected, *_) = _compute_rows(slice(0, 20))
    assert run_in_processes(3, _compute_with_own_pass_size) == [expected.tolist()] * 3


def _fail_on(group: ProcessGroup, ranks: set[int]) -> Any:
    """Share work that fails on some ranks; return the exit code or the error message."""

    def fail(rows: slice) -> list[torch.Tensor]:
        if group.rank in ranks:
            raise InputError(f"rank {group.rank} failed")
        return _compute_rows(rows)

    try:
        group.compute_shared(20, 3, fail)
    except InputError as error:
        return str(error)
    except SystemExit as end:
        return end.code
    finally:
        group.barrier()  # This would wait forever if the group did not work any more.
    return None


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [({2}, [2, 2, "rank 2 failed"]), ({0, 1, 2}, ["rank 0 failed", 2, 2]), (set(), [None, None, None])],
)
def test_one_process_reports_the_error_of_shared_work(ranks: set[int], expected: list[Any]) -> None:
    assert run_in_processes(3, _fail_on, ranks) == expected


def _kill_rank_1(group: ProcessGroup) -> list[float]:
    if group.rank == 1:
        os._exit(1)  # The process ends at once, as if it were killed.
    return group.all_sum(torch.ones(3)).tolist()


def test_a_lost_peer_is_reported() -> None:
    survivor, lost = run_in_processes(2, _kill_rank_1)
    assert lost is None
    assert isinstance(survivor, TrainingError)
    assert "another process of this job has ended" in str(survivor)
    assert "--resume" in str(survivor)


def test_more_processes_than_gpus_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="must be at most 2, the number of GPUs"):
        ProcessGroup.from_environment(torch.device("cuda"))
