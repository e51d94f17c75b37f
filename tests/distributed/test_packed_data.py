"""Bug case B01a on two processes: a packed row of the real data path, shared by two ranks, is its samples alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.data.batches import BatchPlan
from core.data.store import StoreWriter, TokenStore
from planner.types import ParallelDegrees
from tests.core.model.tiny_models import (
    VOCABULARY,
    assert_same_gradients,
    plain_loss_and_gradients,
    setting,
    tiny_model,
)
from tests.distributed.rank_programs import train_step

SHAPE = {"heads": 8, "kv_heads": 4}


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    chance = np.random.default_rng(3)
    with StoreWriter(tmp_path / "store") as writer:
        for length in (37, 5, 23, 1, 17):
            targets = np.arange(length) >= length // 2
            writer.add(chance.integers(2, VOCABULARY, length), targets)
        return writer.finish()


@pytest.mark.parametrize("axis", ["ring", "ulysses"])
def test_two_ranks_share_a_pack(run_ranks, store: TokenStore, axis: str) -> None:
    row = BatchPlan(store, packing=True, capacity=83).row(0, 0)
    assert len(row.sample_ids) == 5
    want_loss, want = plain_loss_and_gradients(tiny_model("llama", attention="sdpa", **SHAPE), row)
    degrees = ParallelDegrees(**{axis: 2})
    answers = run_ranks(train_step, 2, degrees, "llama", SHAPE, [row], (setting(axis, degree=2),))
    assert abs(answers[0]["loss"] - want_loss) < 1e-9
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)


def test_the_short_rank_of_a_last_batch_changes_nothing(run_ranks, store: TokenStore) -> None:
    """Five units on two ranks: the last micro-batch of rank 1 is an empty row."""
    plans = [BatchPlan(store, data_rank=rank, data_world=2, shuffle=False) for rank in range(2)]
    rows = [plan.row(0, 2) for plan in plans]
    assert [row.sample_ids for row in rows] == [(4,), ()]
    want_loss, want = plain_loss_and_gradients(tiny_model("llama", attention="sdpa", **SHAPE), rows[0])
    answers = run_ranks(train_step, 2, ParallelDegrees(data=2), "llama", SHAPE, rows, ())
    assert abs(answers[0]["loss"] - want_loss) < 1e-9
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)
