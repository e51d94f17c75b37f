"""Rows of a rehearsal: as long as rows get, and one at the end as a packed one may be."""

from __future__ import annotations

import pytest

from core.data.row import IGNORE_INDEX
from core.parallel.mesh import build_mesh
from core.rehearse.rows import LongestRows
from planner.types import ParallelDegrees


def rows(packed_epoch: int | None = None, samples: int = 1) -> LongestRows:
    mesh = build_mesh(ParallelDegrees(), rank=0, world=1)
    return LongestRows(
        max_length=7, samples_per_row=samples, rows_per_epoch=2, vocab_size=50, mesh=mesh, packed_epoch=packed_epoch
    )


@pytest.mark.parametrize("samples", [1, 2])
def test_a_row_is_whole_samples_of_the_longest_length(samples):
    row = rows(samples=samples).row(0, 1)
    assert row.cu_seqlens == tuple(range(0, 7 * samples + 1, 7))
    assert row.position_ids.tolist() == list(range(7)) * samples
    assert row.num_targets == 6 * samples == int((row.labels != IGNORE_INDEX).sum())
    assert row.labels[:6].tolist() == row.input_ids[1:7].tolist()


def test_the_last_row_of_the_packed_epoch_holds_two_samples_in_place_of_each():
    plan, whole = rows(packed_epoch=2), rows()
    packed = plan.row(2, 1)
    assert packed.cu_seqlens == (0, 4, 7)
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert packed.labels.tolist() == [*packed.input_ids[1:4].tolist(), -100, *packed.input_ids[5:].tolist(), -100]
    assert (packed.sample_ids, packed.num_targets) == ((0, 1), 5)
    assert packed.input_ids.equal(whole.row(2, 1).input_ids)
    assert [plan.row(epoch, index).cu_seqlens for epoch, index in ((2, 0), (1, 1))] == [(0, 7), (0, 7)]
