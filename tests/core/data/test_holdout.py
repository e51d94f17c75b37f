"""The evaluation split shares no row with training and is the same every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.data.holdout import hold_out
from core.data.store import StoreWriter, TokenStore
from planner.errors import ConfigError


def whole(folder: Path, contents: list[int]) -> TokenStore:
    with StoreWriter(folder / "whole") as writer:
        for line, content in enumerate(contents, 1):
            writer.add(np.array([content, line]), np.array([False, True]), line=line)
        return writer.finish(["a.jsonl"])


def contents_of(store: TokenStore) -> list[int]:
    return [int(store.sample(at)[0][0]) for at in range(len(store))]


def test_equal_rows_and_pieces_of_one_row_stay_on_one_side(tmp_path: Path) -> None:
    contents = [at % 10 for at in range(40)]
    train, held_out, count = hold_out(whole(tmp_path, contents), np.array(contents, np.uint64), 0.2, 1, tmp_path)
    assert count == 2
    assert set(contents_of(train)) & set(contents_of(held_out)) == set()
    assert sorted(contents_of(train) + contents_of(held_out)) == sorted(contents)
    assert held_out.origin(0).startswith("a.jsonl:")


def test_the_choice_follows_content_and_seed_not_file_order(tmp_path: Path) -> None:
    def chosen(name: str, contents: list[int], seed: int) -> set[int]:
        folder = tmp_path / name
        store = whole(folder, contents)
        return set(contents_of(hold_out(store, np.array(contents, np.uint64), 0.3, seed, folder)[1]))

    forward = list(range(30))
    assert chosen("a", forward, 1) == chosen("b", forward[::-1], 1)
    assert chosen("c", forward, 2) != chosen("d", forward, 1)


def test_at_least_one_row_on_each_side_or_an_error(tmp_path: Path) -> None:
    train, held_out, count = hold_out(
        whole(tmp_path / "2", [1, 2]), np.array([1, 2], np.uint64), 0.01, 0, tmp_path / "2"
    )
    assert (len(train), len(held_out), count) == (1, 1, 1)
    with pytest.raises(ConfigError, match="cannot hold rows out of 1 distinct row"):
        hold_out(whole(tmp_path / "1", [1, 1]), np.array([1, 1], np.uint64), 0.5, 0, tmp_path / "1")
