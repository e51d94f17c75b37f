"""Which degrees are legal, which are chosen, and how rows are padded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import ConfigError
from planner.parallel import check_ring_model, choose_degrees, legal_ulysses_degrees, padded_length
from planner.types import ModelSpec, ParallelDegrees
from tests.planner.plans import QWEN_7B

DATA = Path(__file__).parent.parent / "data"
HEADS = json.loads((DATA / "k03_heads_table.json").read_text())["rows"]
LENGTHS = json.loads((DATA / "k03_len_table.json").read_text())["rows"]


def model(heads: int, kv_heads: int, sliding_window: int | None = None) -> ModelSpec:
    return replace(
        QWEN_7B, num_attention_heads=heads, num_kv_heads=kv_heads, sliding_window=sliding_window, name="test"
    )


@pytest.mark.parametrize("row", HEADS, ids=lambda row: f"{row['q']}-{row['kv']}-{row['gpus']}-{row['sp']}")
def test_verdicts_of_the_heads_table(row: dict[str, Any]) -> None:
    spec, gpus, degree = model(row["q"], row["kv"]), row["gpus"], row["sp"]
    if row["verdict"].startswith("ok"):
        degrees = choose_degrees(spec, gpus, ulysses=degree, gpus_per_node=gpus)
        assert (degrees.ulysses, degrees.ring, degrees.data) == (degree, 1, gpus // degree)
        return
    with pytest.raises(ConfigError) as refused:
        choose_degrees(spec, gpus, ulysses=degree, gpus_per_node=gpus)
    for key, legal in row.items():
        if key.startswith("allowed_on_"):
            assert ", ".join(map(str, legal)) in refused.value.fix
            assert [n for n in legal_ulysses_degrees(spec, gpus) if gpus % n == 0] == legal


def test_one_gpu_is_told_about_fake_parallel() -> None:
    with pytest.raises(ConfigError, match="fake_parallel: 2"):
        choose_degrees(model(32, 8), 1, sequence_parallel=2, gpus_per_node=1)


@pytest.mark.parametrize("row", LENGTHS, ids=lambda row: f"{row['len']}-{row['scheme']}-{row['sp']}")
def test_padded_lengths_of_the_table(row: dict[str, Any]) -> None:
    ring = row["scheme"] == "zigzag ring"
    degrees = ParallelDegrees(ring=row["sp"]) if ring else ParallelDegrees(ulysses=row["sp"])
    assert padded_length(row["len"], degrees) == row["padded"]


@pytest.mark.parametrize(
    ("sequence", "world", "gpus_per_node", "ulysses", "ring"),
    [
        (8, 8, 8, 4, 2),  # 28 heads: 8 does not divide them
        (2, 8, 8, 2, 1),
        (3, 6, 8, 1, 3),
        (4, 8, 2, 2, 2),  # two GPUs a node: Ulysses stays inside
        (1, 4, 4, 1, 1),
    ],
)
def test_sequence_parallel_takes_ulysses_within_a_node_and_ring_for_the_rest(
    sequence: int, world: int, gpus_per_node: int, ulysses: int, ring: int
) -> None:
    degrees = choose_degrees(model(28, 4), world, sequence_parallel=sequence, gpus_per_node=gpus_per_node)
    assert degrees == ParallelDegrees(data=world // sequence, ring=ring, ulysses=ulysses)


def test_groups_of_ulysses_do_not_reach_over_the_edge_of_a_node() -> None:
    degrees = choose_degrees(model(24, 24), 24, sequence_parallel=6, gpus_per_node=8)
    assert (degrees.ulysses, degrees.ring) == (2, 3)


def test_ulysses_and_ring_can_be_given_with_their_product() -> None:
    spec = model(32, 8)
    assert choose_degrees(spec, 8, ulysses=2, ring=4, gpus_per_node=8) == ParallelDegrees(ulysses=2, ring=4)
    assert choose_degrees(spec, 8, sequence_parallel=8, ring=4, gpus_per_node=8) == ParallelDegrees(ulysses=2, ring=4)
    with pytest.raises(ConfigError, match="ulysses 2 x ring 2"):
        choose_degrees(spec, 8, sequence_parallel=8, ulysses=2, ring=2, gpus_per_node=8)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sequence_parallel": 3}, "3 does not divide 8"),
        ({"sequence_parallel": 16}, "16 is larger than the 8 GPUs"),
        ({"ring": 0}, "ring is 0"),
        ({"ulysses": 7}, "7 does not divide the 32 query heads"),
    ],
)
def test_impossible_degrees_are_refused_with_the_numbers(asked: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_degrees(model(32, 8), 8, **asked, gpus_per_node=8)


def test_a_sliding_window_refuses_a_ring_but_not_ulysses() -> None:
    spec = model(28, 4, sliding_window=4096)
    with pytest.raises(ConfigError, match="4096"):
        choose_degrees(spec, 8, sequence_parallel=8, gpus_per_node=8)
    assert choose_degrees(spec, 8, sequence_parallel=4, gpus_per_node=8).ulysses == 4


def test_a_window_that_no_row_outgrows_is_no_obstacle_to_a_ring() -> None:
    spec = model(28, 4, sliding_window=262_144)
    assert choose_degrees(spec, 8, sequence_parallel=8, gpus_per_node=8).ring == 2
    assert check_ring_model(spec, 262_144) == ()
    assert [issue.code for issue in check_ring_model(spec, 262_145)] == ["ring-sliding-window"]
