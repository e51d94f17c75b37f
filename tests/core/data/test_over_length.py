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


@given(length=st.integers(1, 200), max_length=st.integers(2, 50))
def test_split_predicts_every_token_once(length: int, max_length: int) -> None:
    _, pieces = fit_length(*row(length), max_length=max_length, policy="split")
    assert all(len(tokens) <= max_length for tokens, _ in pieces)
    predicted = [token for tokens, _ in pieces for token in tokens[1:].tolist()]  # a first token is never a target
    assert predicted == list(range(1, length))
