"""Packing keeps every sample once and whole, within capacity, repeatably."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data.pack import fill_ratio, pack_lengths

lengths_lists = st.lists(st.integers(1, 64), max_size=200)


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_lists, seed=st.integers(0, 5))
def test_each_sample_is_in_exactly_one_pack_and_no_pack_overflows(lengths: list[int], seed: int) -> None:
    packs = pack_lengths(lengths, 64, seed)
    assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in pack) <= 64 for pack in packs)


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_lists)
def test_the_number_of_packs_is_the_same_for_every_seed(lengths: list[int]) -> None:
    assert len({len(pack_lengths(lengths, 64, seed)) for seed in range(4)}) == 1


def test_same_seed_same_packs_other_seed_other_packs() -> None:
    lengths = [5, 5, 5, 5, 3, 3, 3, 3]
    assert list(pack_lengths(lengths, 8, 1)) == list(pack_lengths(lengths, 8, 1))
    assert any(list(pack_lengths(lengths, 8, 1)) != list(pack_lengths(lengths, 8, seed)) for seed in range(2, 6))


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=150), capacity=st.integers(40, 90))
def test_packs_are_as_full_as_best_fit_sample_by_sample(lengths: list[int], capacity: int) -> None:
    """The textbook: longest first, each into the pack with the least room that holds it."""
    totals: list[int] = []
    for length in sorted(lengths, reverse=True):
        fits = [at for at, total in enumerate(totals) if total + length <= capacity]
        if fits:
            totals[max(fits, key=totals.__getitem__)] += length
        else:
            totals.append(length)
    packs = pack_lengths(lengths, capacity)
    assert sorted(sum(lengths[index] for index in pack) for pack in packs) == sorted(totals)


def test_the_drawing_in_the_docstring() -> None:
    packs = pack_lengths([5, 3, 4, 2, 6, 1, 7], 8)
    assert sorted(sorted(pack) for pack in packs) == [[0, 1], [2], [3, 4], [5, 6]]
    assert fill_ratio(np.array([5, 3, 4, 2, 6, 1, 7]), len(packs), 8) == 28 / 32
    shorter = pack_lengths([5, 3, 4, 2, 6, 1, 7], 4, longest=8)
    assert sorted(sorted(pack) for pack in shorter) == [[0], [1, 5], [2], [3], [4], [6]]
    assert fill_ratio(np.array([5, 3, 4, 2, 6, 1, 7]), len(shorter), 4) == 28 / 30


def test_a_sample_of_exactly_capacity_gets_a_row_and_one_more_token_is_refused() -> None:
    assert sorted(pack_lengths([8, 8], 8)) == [(0,), (1,)]
    assert len(pack_lengths([], 8)) == 0
    with pytest.raises(ValueError, match="9 tokens into rows of 8"):
        pack_lengths([9], 8)


def test_a_hundred_thousand_lengths_pack_tightly_and_fast() -> None:
    lengths = np.random.default_rng(0).lognormal(6, 1, 100_000).astype(int).clip(1, 8192)
    start = time.process_time()
    packs = pack_lengths(lengths, 8192)
    assert time.process_time() - start < 5
    assert fill_ratio(lengths, len(packs), 8192) > 0.99


@given(st.lists(st.integers(1, 64), min_size=1, max_size=80), st.integers(0, 2))
def test_samples_longer_than_a_pack_stay_alone_and_the_others_pack_as_if_they_were_not_there(
    lengths: list[int], seed: int
) -> None:
    packs = list(pack_lengths(lengths, 16, seed, longest=64))
    assert sorted(sample for pack in packs for sample in pack) == list(range(len(lengths)))
    assert all(len(pack) == 1 or sum(lengths[sample] for sample in pack) <= 16 for pack in packs)
    short = [length for length in lengths if length <= 16]
    assert len(packs) == len(lengths) - len(short) + len(pack_lengths(short, 16))
    with pytest.raises(ValueError, match="65 tokens into rows of 64"):
        pack_lengths([*lengths, 65], 16, longest=64)
