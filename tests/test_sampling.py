"""Test evenly spaced rows: their number, that both ends are included, and how positions are rounded."""

from __future__ import annotations

import pytest

from selfmark.sampling import evenly_spaced


@pytest.mark.parametrize(
    ("count", "max_items", "rows"),
    [(1, 5, [0]), (100, 3, [0, 49, 99]), (3, 3, [0, 1, 2]), (0, 4, []), (4, 0, []), (9, 1, [0])],
)
def test_rows_are_evenly_spaced(count: int, max_items: int, rows: list[int]) -> None:
    assert evenly_spaced(count, max_items).tolist() == rows


def test_positions_are_rounded_down_or_to_the_nearest_row() -> None:
    assert evenly_spaced(12, 4).tolist() == [0, 3, 7, 11]
    assert evenly_spaced(12, 4, nearest=True).tolist() == [0, 4, 7, 11]
