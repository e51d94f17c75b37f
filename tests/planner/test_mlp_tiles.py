"""Tiles of the MLP: the planner knows the largest without listing them, however long a row is."""

from __future__ import annotations

import pytest

from planner.layer_policy import tile_bounds, tile_rows


@pytest.mark.parametrize(("num_rows", "tiles"), [(1, 1), (7, 4), (255, 2), (8192, 1), (8193, 2), (100_000, 7)])
def test_the_largest_tile_is_the_first(num_rows: int, tiles: int) -> None:
    start, end = tile_bounds(num_rows, tiles)[0]
    assert tile_rows(num_rows, tiles) == end - start


def test_a_row_of_any_length_has_a_largest_tile() -> None:
    assert tile_rows(10**15, 10**11) == 10_048  # a list of 10**11 tiles would be the end of the machine
