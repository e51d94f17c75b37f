"""How a row is spread over the ranks that share it: padding, zigzag chunks, and what may attend to what.

The ring cuts the padded row into 2R equal chunks; ring rank r holds chunks r and 2R-1-r, so that under causal
attention every rank has the same work. Ulysses cuts what a ring rank holds into U contiguous parts. Ring 2:

    row           |  0  |  1  |  2  |  3  |          rank 0 holds 0 3          queries of rank 1 (chunks 1 2)
    samples       |--A--:-----B-----:--C--:pad       rank 1 holds 1 2          see of rank 0 only chunk 0

Samples cross chunk borders freely. Two different chunks have at most one sample in common (samples are contiguous), so
between two ranks there is one dense block: a tail of the keys' side against a head of the queries' side. A rank
against itself is causal attention inside each segment of its local sequence, because a sample that covers the end of
its first chunk and the start of its second is, seen from there, one stretch. Padding is a segment of its own.

``shard_row`` is called by the trainer for every micro-batch; the layout is read by core/attention and core/parallel.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from core.data.row import IGNORE_INDEX, Row
from core.parallel.mesh import Mesh
from planner.parallel import padded_length
from planner.types import ParallelDegrees


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBlock:
    """Local positions of the only queries and keys of two ranks that attend to each other, all to all."""

    queries: slice
    keys: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLayout:
    """The row as one rank sees it; everything here is known on the CPU."""

    num_tokens: int  # of the row, without padding
    padded_tokens: int
    cu_seqlens: tuple[int, ...]  # of the padded row
    ring_degree: int
    ring_rank: int
    ulysses_degree: int
    ulysses_rank: int
    local_cu_seqlens: tuple[int, ...]  # segments of what the ring rank holds (all parts of its Ulysses group)
    remote_blocks: tuple[RemoteBlock | None, ...]  # by ring rank of the keys; None: nothing to attend to, or itself

    @property
    def longest_segment(self) -> int:
        return max(end - start for start, end in pairwise(self.cu_seqlens))

    @property
    def num_segments(self) -> int:
        return len(self.cu_seqlens) - 1

    @property
    def tokens_per_rank(self) -> int:
        return self.padded_tokens // (self.ring_degree * self.ulysses_degree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a row. Tensors are (1, L) int64 on the device, L = layout.tokens_per_rank."""

    input_ids: Tensor
    labels: Tensor  # already shifted (core/data/row.py)
    position_ids: Tensor
    target_index: Tensor  # (n,) int64: where labels holds a target
    layout: SequenceLayout


def shard_row(row: Row, mesh: Mesh, device: torch.device) -> Shard:
    """The part of ``row`` that this rank of the mesh holds. A row without tokens becomes padding without targets."""
    layout = sequence_layout(
        row.cu_seqlens,
        ring_degree=mesh.degrees.ring,
        ring_rank=mesh.ring_rank,
        ulysses_degree=mesh.degrees.ulysses,
        ulysses_rank=mesh.ulysses_rank,
    )
    num_padding = layout.padded_tokens - layout.num_tokens
    chunks = _chunks(layout.padded_tokens, layout.ring_degree, layout.ring_rank)
    mine = slice(layout.ulysses_rank * layout.tokens_per_rank, (layout.ulysses_rank + 1) * layout.tokens_per_rank)

    def part(x: Tensor, padding: Tensor) -> Tensor:
        padded = torch.cat((x, padding)) if num_padding else x
        return torch.cat([padded[start:end] for start, end in chunks])[mine]

    labels = part(row.labels, torch.full((num_padding,), IGNORE_INDEX))
    tensors = (
        part(row.input_ids, torch.zeros(num_padding, dtype=torch.int64))[None],
        labels[None],
        part(row.position_ids, torch.arange(num_padding))[None],
        (labels != IGNORE_INDEX).nonzero()[:, 0],
    )
    input_ids, labels, position_ids, target_index = (x.to(device, non_blocking=True) for x in tensors)
    return Shard(
        input_ids=input_ids, labels=labels, position_ids=position_ids, target_index=target_index, layout=layout
    )


def sequence_layout(
    cu_seqlens: tuple[int, ...], *, ring_degree: int, ring_rank: int, ulysses_degree: int, ulysses_rank: int
) -> SequenceLayout:
    """The layout of a row whose samples end at ``cu_seqlens`` (starting with 0), padded as the planner counts it."""
    num_tokens = cu_seqlens[-1]
    cu_seqlens = tuple(dict.fromkeys(cu_seqlens))  # kernels take no empty segment
    padded_tokens = padded_length(max(num_tokens, 1), ParallelDegrees(ring=ring_degree, ulysses=ulysses_degree))
    if padded_tokens > num_tokens:
        cu_seqlens = (*cu_seqlens, padded_tokens)
    chunks = [_chunks(padded_tokens, ring_degree, rank) for rank in range(ring_degree)]
    return SequenceLayout(
        num_tokens=num_tokens,
        padded_tokens=padded_tokens,
        cu_seqlens=cu_seqlens,
        ring_degree=ring_degree,
        ring_rank=ring_rank,
        ulysses_degree=ulysses_degree,
        ulysses_rank=ulysses_rank,
        local_cu_seqlens=_local_cu_seqlens(cu_seqlens, chunks[ring_rank]),
        remote_blocks=tuple(
            None if rank == ring_rank else _remote_block(cu_seqlens, chunks[ring_rank], chunks[rank])
            for rank in range(ring_degree)
        ),
    )


Chunks = tuple[tuple[int, int], ...]


def _chunks(padded_tokens: int, ring_degree: int, ring_rank: int) -> Chunks:
    """[start, end) in the row of what a ring rank holds, in order."""
    if ring_degree == 1:
        return ((0, padded_tokens),)
    size = padded_tokens // (2 * ring_degree)
    return tuple((index * size, (index + 1) * size) for index in (ring_rank, 2 * ring_degree - 1 - ring_rank))


def _segment(cu_seqlens: tuple[int, ...], token: int) -> int:
    return bisect_right(cu_seqlens, token) - 1


def _local_cu_seqlens(cu_seqlens: tuple[int, ...], chunks: Chunks) -> tuple[int, ...]:
    bounds = [0]
    previous_end = None
    for start, end in chunks:
        offset = bounds[-1] - start
        if previous_end is not None and _segment(cu_seqlens, previous_end - 1) == _segment(cu_seqlens, start):
            bounds.pop()  # the same sample goes on: one stretch of the local sequence
        bounds += [bound + offset for bound in cu_seqlens if start < bound < end]
        bounds.append(end + offset)
        previous_end = end
    return tuple(bounds)


def _remote_block(cu_seqlens: tuple[int, ...], query_chunks: Chunks, key_chunks: Chunks) -> RemoteBlock | None:
    """Keys of ring rank s before queries of ring rank r: chunk s, and chunk 2R-1-s too when s > r.

    If s < r, both query chunks come after key chunk s and no other key chunk counts; if s > r, only the second query
    chunk counts and comes after both key chunks. Either way, what attends is the sample that holds the last key.
    """
    size = query_chunks[0][1] - query_chunks[0][0]
    if key_chunks[0] < query_chunks[0]:
        keys, queries, query_offset = key_chunks[:1], query_chunks, 0
    else:
        keys, queries, query_offset = key_chunks, query_chunks[1:], size
    segment = _segment(cu_seqlens, keys[-1][1] - 1)
    segment_start, segment_end = cu_seqlens[segment], cu_seqlens[segment + 1]
    num_keys = sum(max(end - max(start, segment_start), 0) for start, end in keys)
    num_queries = sum(max(min(end, segment_end) - start, 0) for start, end in queries)
    if num_queries == 0:
        return None
    last_key = size * len(keys)
    return RemoteBlock(
        queries=slice(query_offset, query_offset + num_queries), keys=slice(last_key - num_keys, last_key)
    )
