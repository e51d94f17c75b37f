"""Padding, zigzag and attention blocks, checked against the mask they stand for. No process group is needed."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from core.data.row import IGNORE_INDEX, Row
from core.parallel.layout import sequence_layout, shard_row
from core.parallel.mesh import Mesh
from planner.types import ParallelDegrees

DATA = Path(__file__).parents[2] / "data"
CPU = torch.device("cpu")
DEGREES = [
    ParallelDegrees(ring=ring, ulysses=ulysses)
    for ring, ulysses in ((1, 1), (2, 1), (4, 1), (3, 1), (1, 4), (2, 2), (2, 3))
]


def row_of(lengths: list[int], labels: list[int] | None = None) -> Row:
    size = sum(lengths)
    return Row(
        input_ids=torch.arange(1, size + 1),
        labels=torch.arange(1000, 1000 + size) if labels is None else torch.tensor(labels),
        position_ids=torch.cat([torch.arange(length) for length in (0, *lengths)]),
        cu_seqlens=tuple(sum(lengths[:n]) for n in range(len(lengths) + 1)),
        sample_ids=tuple(range(len(lengths))),
        num_targets=size,
    )


def shards_of(row: Row, degrees: ParallelDegrees):
    return [shard_row(row, Mesh(degrees=degrees, rank=rank), CPU) for rank in range(degrees.sequence)]


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize("lengths", [[1], [3], [37], [5, 1, 30, 8]], ids=str)
def test_every_token_with_its_label_and_position_is_on_exactly_one_rank(degrees, lengths):
    row = row_of(lengths)
    shards = shards_of(row, degrees)
    assert {shard.input_ids.shape for shard in shards} == {(1, shards[0].layout.tokens_per_rank)}
    held = sorted(
        (token, label, position)
        for shard in shards
        for token, label, position in zip(*(x[0].tolist() for x in (shard.input_ids, shard.labels, shard.position_ids)))
        if token
    )
    assert held == list(zip(row.input_ids.tolist(), row.labels.tolist(), row.position_ids.tolist()))
    num_padding = shards[0].layout.padded_tokens - sum(lengths)
    padding = sorted(
        position
        for shard in shards
        for token, label, position in zip(*(x[0].tolist() for x in (shard.input_ids, shard.labels, shard.position_ids)))
        if not token and label == IGNORE_INDEX
    )
    assert padding == list(range(num_padding))


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
def test_blocks_are_the_causal_mask_of_the_pack(degrees):
    """Mark every (query, key) pair that a ring rank's blocks compute, and compare with the mask of the whole row."""
    chance = random.Random(7)
    for _ in range(30):
        lengths = [chance.randint(1, 25) for _ in range(chance.randint(1, 7))]
        cu_seqlens = tuple(sum(lengths[:n]) for n in range(len(lengths) + 1))
        layouts = [
            sequence_layout(
                cu_seqlens, ring_degree=degrees.ring, ring_rank=rank, ulysses_degree=degrees.ulysses, ulysses_rank=0
            )
            for rank in range(degrees.ring)
        ]
        size = layouts[0].padded_tokens
        pieces = torch.arange(size).chunk(2 * degrees.ring) if degrees.ring > 1 else [torch.arange(size)]
        held = [
            torch.cat((pieces[rank], pieces[-1 - rank])) if degrees.ring > 1 else pieces[0]
            for rank in range(degrees.ring)
        ]
        computed = torch.zeros(size, size, dtype=torch.int64)
        for rank, layout in enumerate(layouts):
            for start, end in pairwise(layout.local_cu_seqlens):
                causal = torch.ones(end - start, end - start, dtype=torch.int64).tril()
                computed[held[rank][start:end, None], held[rank][start:end]] += causal
            for source, block in enumerate(layout.remote_blocks):
                if block is not None:
                    computed[held[rank][block.queries, None], held[source][block.keys]] += 1
        segment = torch.bucketize(torch.arange(size), torch.tensor(layouts[0].cu_seqlens[1:]), right=True)
        mask = (segment[:, None] == segment).tril().long()
        assert torch.equal(computed, mask), (degrees, lengths)


def test_padded_lengths_are_those_of_the_table():
    for case in json.loads((DATA / "k03_len_table.json").read_text())["rows"]:
        ring = case["scheme"] == "zigzag ring"
        degrees = ParallelDegrees(ring=case["sp"]) if ring else ParallelDegrees(ulysses=case["sp"])
        shards = shards_of(row_of([case["len"]]), degrees)
        assert shards[0].layout.padded_tokens == case["padded"]
        assert sum(shard.target_index.numel() for shard in shards) == case["len"]


def test_targets_next_to_a_shard_edge_are_counted_where_their_predictor_is():
    case = json.loads((DATA / "k02_sp_uneven_labels.json").read_text())

    def targets_per_rank(labels: list[int]) -> list[int]:
        row = row_of([16], labels=[*labels[1:], IGNORE_INDEX])  # shifted on the whole row, as core/data does
        return [shard.target_index.numel() for shard in shards_of(row, ParallelDegrees(ulysses=2))]

    assert targets_per_rank(case["labels"]) == list(case["shifted_targets_per_rank"].values())
    assert targets_per_rank(case["edge"]["labels"]) == [1, 0]  # predicted from the last position of rank 0


def test_a_row_without_tokens_becomes_padding_without_targets():
    for lengths in ([0], []):
        for shard in shards_of(row_of(lengths), ParallelDegrees(ring=2)):
            assert shard.layout.num_tokens == 0
            assert shard.layout.cu_seqlens == (0, 4)
            assert shard.input_ids.shape == (1, 2)
            assert shard.target_index.numel() == 0


def test_zigzag_gives_every_rank_the_same_causal_work():
    layouts = [
        sequence_layout((0, 64), ring_degree=4, ring_rank=rank, ulysses_degree=1, ulysses_rank=0) for rank in range(4)
    ]
    for layout in layouts:
        sizes = {
            (block.queries.stop - block.queries.start) * (block.keys.stop - block.keys.start)
            for block in layout.remote_blocks
            if block is not None
        }
        assert sizes == {16 * 8}
