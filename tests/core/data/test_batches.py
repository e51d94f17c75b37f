"""Micro-batches: every token once, targets inside their sample, equal counts on every rank, resumable."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data.batches import BatchPlan, build_row
from core.data.row import IGNORE_INDEX
from core.data.store import StoreWriter, TokenStore

DATA = Path(__file__).parents[2] / "data"


def make_store(path: Path, samples: list[list[int]], targets: list[list[bool]] | None = None) -> TokenStore:
    with StoreWriter(path) as writer:
        for index, tokens in enumerate(samples):
            flags = np.ones(len(tokens), bool) if targets is None else np.array(targets[index])
            writer.add(np.array(tokens), flags, line=index + 1)
        return writer.finish()


@pytest.fixture
def pretokenised(tmp_path: Path) -> TokenStore:
    return make_store(tmp_path / "k01", json.loads((DATA / "k01_pretok_pack.json").read_text())["samples"])


def test_pretokenised_pack_keeps_28_tokens_and_21_targets(pretokenised: TokenStore) -> None:
    """Bug case B01e."""
    plan = BatchPlan(pretokenised, packing=True, capacity=8)
    rows = [plan.row(0, index) for index in range(plan.num_micro_batches(0))]
    assert sum(len(row.input_ids) for row in rows) == 28
    assert sum(row.num_targets for row in rows) == 21
    assert sum(int((row.labels != IGNORE_INDEX).sum()) for row in rows) == 21
    assert sorted(sample for row in rows for sample in row.sample_ids) == list(range(7))
    for row in rows:
        for begin, end in zip(row.cu_seqlens, row.cu_seqlens[1:]):
            assert row.position_ids[begin:end].tolist() == list(range(end - begin))
            assert row.labels[begin : end - 1].tolist() == row.input_ids[begin + 1 : end].tolist()
            assert row.labels[end - 1] == IGNORE_INDEX


def test_packs_on_two_ranks_end_together_and_train_nothing_twice(pretokenised: TokenStore) -> None:
    """Bug case B06f, the data side: 7 samples of one row each on 2 ranks."""
    plans = [BatchPlan(pretokenised, data_rank=rank, data_world=2) for rank in range(2)]
    assert [plan.num_micro_batches(0) for plan in plans] == [4, 4]
    rows = [plan.row(0, index) for plan in plans for index in range(4)]
    assert sorted(sample for row in rows for sample in row.sample_ids) == list(range(7))
    (empty,) = [row for row in rows if not row.sample_ids]
    assert empty.num_targets == 0
    assert empty.cu_seqlens == (0, 1)
    assert empty.labels.tolist() == [IGNORE_INDEX]


def test_labels_are_shifted_on_the_whole_row(tmp_path: Path) -> None:
    """Bug case B02d: the only target sits right behind the edge of a shard of 8."""
    case = json.loads((DATA / "k02_sp_uneven_labels.json").read_text())
    for labels, expected in ((case["labels"], case["shifted_targets_per_rank"]), (case["edge"]["labels"], None)):
        store = make_store(
            tmp_path / str(len(list(tmp_path.iterdir()))), [case["input_ids"]], [[x != -100 for x in labels]]
        )
        row = build_row(store, (0,))
        per_rank = [int((row.labels[at : at + 8] != IGNORE_INDEX).sum()) for at in (0, 8)]
        if expected is None:
            assert per_rank == [1, 0]
            assert row.labels[7] == 108
        else:
            assert per_rank == [expected["rank0"], expected["rank1"]]


def test_ten_rows_with_accumulation_four_make_three_windows_an_epoch(tmp_path: Path) -> None:
    """Bug case B02b: the trainer cuts windows of 4 from 10 micro-batches: 4 + 4 + 2, so 6 steps in 2 epochs."""
    store = make_store(tmp_path / "s", [[1, 2, 3]] * 10)
    plan = BatchPlan(store)
    assert sum(-(-plan.num_micro_batches(epoch) // 4) for epoch in range(2)) == 6
    for epoch in range(2):
        ids = [plan.sample_ids(epoch, index) for index in range(plan.num_micro_batches(epoch))]
        assert sorted(ids) == [(i,) for i in range(10)]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 16), min_size=1, max_size=40),
    world=st.integers(1, 5),
    units=st.integers(1, 3),
    packing=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_each_sample_once_an_epoch_over_all_ranks(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], world: int, units: int, packing: bool, epoch: int
) -> None:
    store = make_store(tmp_path_factory.mktemp("p") / "s", [list(range(n)) for n in lengths])
    plans = [
        BatchPlan(store, units_per_batch=units, packing=packing, capacity=16, data_rank=r, data_world=world, seed=3)
        for r in range(world)
    ]
    counts = {plan.num_micro_batches(epoch) for plan in plans} | {plan.num_micro_batches(epoch + 1) for plan in plans}
    assert len(counts) == 1
    rows = [plan.row(epoch, index) for plan in plans for index in range(plan.num_micro_batches(epoch))]
    assert sorted(sample for row in rows for sample in row.sample_ids) == list(range(len(lengths)))
    assert sum(row.num_targets for row in rows) == store.num_targets
    if packing:
        assert all(len(row.input_ids) <= 16 * units for row in rows)


def test_epochs_differ_and_any_index_can_be_asked_first(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", [[i, i] for i in range(20)])
    plan = BatchPlan(store, seed=1)
    orders = [[plan.sample_ids(epoch, index) for index in range(20)] for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2]
    resumed = BatchPlan(store, seed=1)
    assert [resumed.sample_ids(1, index) for index in range(7, 20)] == orders[1][7:]
    assert [BatchPlan(store, seed=2).sample_ids(0, index) for index in range(20)] != orders[0]


def test_evaluation_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", [[i, i] for i in range(5)])
    plan = BatchPlan(store, units_per_batch=2, shuffle=False)
    assert [plan.sample_ids(0, index) for index in range(3)] == [(0, 1), (2, 3), (4,)]


def test_the_longest_row_can_be_found_for_a_preflight_step(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", [[1] * n for n in (3, 9, 4)])
    plan = BatchPlan(store)
    assert plan.sample_ids(0, plan.longest(0)) == (1,)


def test_an_index_outside_the_epoch_is_an_error(tmp_path: Path) -> None:
    plan = BatchPlan(make_store(tmp_path / "s", [[1, 2]]))
    with pytest.raises(IndexError, match="micro-batch 1 of 1"):
        plan.row(0, 1)
