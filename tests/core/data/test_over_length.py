"""Rows beyond max_length: exact at the edge, counted, and split without losing or repeating a target."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.data.over_length import fit_length


def row(length: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(length, dtype=np.int32), np.ones(length, dtype=np.bool_)


@pytest.mark.parametrize("policy", ["drop", "truncate_left", "truncate_right", "split"])
def test_exactly_max_length_is_kept_whole(policy: str) -> None:
    fate, pieces = fit_length(*row(8), max_length=8, policy=policy)
    assert fate == "kept"
    assert pieces[0][0].tolist() == list(range(8))


@pytest.mark.parametrize(
    ("policy", "fate", "expected"),
    [
        ("drop", "dropped", []),
        ("truncate_right", "truncated", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("truncate_left", "truncated", [[1, 2, 3, 4, 5, 6, 7, 8]]),
        ("split", "split", [[0, 1, 2, 3, 4, 5, 6, 7], [7, 8]]),
    ],
)
def test_one_token_more(policy: str, fate: str, expected: list[list[int]]) -> None:
    got, pieces = fit_length(*row(9), max_length=8, policy=policy)
    assert got == fate
    assert [tokens.tolist() for tokens, _ in pieces] == expected


def test_truncating_on_the_left_keeps_a_begin_token() -> None:
    _, [(tokens, _)] = fit_length(*row(9), max_length=4, policy="truncate_left", bos_id=0)
    assert tokens.tolist() == [0, 6, 7, 8]


@given(
    length=st.integers(1, 200),
    max_length=st.integers(2, 50),
    overlap=st.integers(1, 49),
    borders=st.sets(st.integers(1, 199)),
)
def test_split_predicts_every_token_once(length: int, max_length: int, overlap: int, borders: set[int]) -> None:
    cuts = np.array(sorted(borders), dtype=np.int64)
    _, pieces = fit_length(
        *row(length), max_length=max_length, policy="split", borders=cuts, overlap=min(overlap, max_length - 1)
    )
    assert all(len(tokens) <= max_length for tokens, _ in pieces)
    # the store never takes a first token as a target
    predicted = [token for tokens, targets in pieces for token in tokens[1:][targets[1:]].tolist()]
    assert predicted == list(range(1, length))


def test_split_cuts_at_the_last_border_that_fits() -> None:
    borders = np.array([3, 5, 11])
    _, pieces = fit_length(*row(14), max_length=6, policy="split", borders=borders, overlap=2)
    assert [tokens.tolist() for tokens, _ in pieces] == [
        [0, 1, 2, 3, 4],
        [3, 4, 5, 6, 7, 8],
        [7, 8, 9, 10],
        [9, 10, 11, 12, 13],
    ]
    assert [targets.tolist()[:2] for _, targets in pieces[1:]] == [[False, False]] * 3


def test_an_overlap_as_long_as_the_piece_is_refused() -> None:
    with pytest.raises(ValueError, match="an overlap of 6 tokens in pieces of 6"):
        fit_length(*row(14), max_length=6, policy="split", overlap=6)
