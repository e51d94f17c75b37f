from __future__ import annotations

import pytest

from planner.types import ParallelDegrees
from tests.distributed.failing_program import fail_on_rank
from tests.distributed.rank_programs import build_mesh_for
from tests.distributed.ranks import RankPool


def test_ulysses_ranks_are_neighbours_and_rings_step_over_them(run_ranks):
    answers = run_ranks(build_mesh_for, 4, ParallelDegrees(ring=2, ulysses=2))
    assert [answer["ranks"] for answer in answers] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert [answer["groups"]["ulysses"] for answer in answers] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [answer["groups"]["ring"] for answer in answers] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert all(answer["groups"]["sequence"] == [0, 1, 2, 3] for answer in answers)
    assert all(answer["groups"]["data"] is None for answer in answers)


def test_data_groups_join_the_same_part_of_different_rows(run_ranks):
    answers = run_ranks(build_mesh_for, 4, ParallelDegrees(data=2, ring=2))
    assert [answer["groups"]["data"] for answer in answers] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [answer["groups"]["sequence"] for answer in answers] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert all(answer["groups"]["ulysses"] is None for answer in answers)


def test_a_failing_rank_is_named_and_the_next_test_gets_a_fresh_pool():
    pool = RankPool(1)
    try:
        with pytest.raises(AssertionError, match="rank 0 was told to fail"):
            pool.run(fail_on_rank, 1, 0)
        assert pool.run(fail_on_rank, 1, 1) == [0]
    finally:
        pool.close()
