"""Sliding-window attention made of causal attention: exact, in linear memory, with any kernel.

A token of a layer with window W attends to itself and the W - 1 tokens before it in its segment. Segments are cut into
chunks of W. Inside its chunk a token sees what causal attention sees. Of the chunk before, the token at place a sees
the places b > a; with both chunks in reverse order that is causal attention again:

    queries of a chunk, from the last but one to the first     |  W-2   ...    1     0
    keys of the chunk before, from its last to its second one  |  W-1   ...    2     1       place a sees b > a

So two calls of a kernel over many small segments do it, joined by their log-sum-exps; the work is that of the pairs in
the window, and the backward of a block from the whole row's output and log-sum-exp is exact (core/attention/kernel.py).
The second call goes over the row in batches of chunks, so that its reversed copies stay small. Called by
core/attention/sequence.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from core.attention.kernel import AttentionKernel
from core.attention.segments import backward_segments, forward_segments

BATCH_TOKENS = 16_384  # of the second call: reversed copies of so many tokens exist at a time
_NO_WEIGHT = 1e30  # log-sum-exp of a row that attends to nothing: exp(score - this) is 0, without an infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Some pairs of a chunk and the one before it, W - 1 queries and keys each. Indices are int64 on the device."""

    queries: Tensor  # (pairs * (W - 1),) positions in the row; beyond the end of a segment its last token stands in
    keys: Tensor  # likewise
    bounds: tuple[int, ...]
    rows: Tensor  # positions in the row of the real queries
    real: Tensor | None  # places of ``queries`` that are not stand-ins; None: all of them
    stand_ins: Tensor | None  # the others

    def taken(self, x: Tensor) -> Tensor:
        """(1, H, pairs * (W - 1), ...) -> (1, H, real queries, ...)"""
        return x if self.real is None else x.index_select(2, self.real)


class WindowedSegments:
    """Attention of each segment within a window. Keeps the indices of the row at hand, which all layers share."""

    def __init__(self) -> None:
        self._key: tuple[tuple[int, ...], int, torch.device] | None = None
        self._chunks: tuple[int, ...] = ()
        self._batches: list[_Batch] = []

    def forward(
        self, kernel: AttentionKernel, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: tuple[int, ...], scale: float,
        window: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """As forward_segments (core/attention/segments.py): (out, lse)."""
        chunks, batches = self._cut(cu_seqlens, window, q.device)
        out, lse = forward_segments(kernel, q, k, v, chunks, scale)
        for batch in batches:
            before, before_lse = _before(kernel, q, k, v, batch, scale)
            own_lse = lse.index_select(2, batch.rows)
            both = torch.logaddexp(own_lse, before_lse)
            joined = before * _share(before_lse, both)  # in lse's dtype, as the sum
            del before  # what a batch holds stays near what its call has held
            joined.addcmul_(out.index_select(2, batch.rows), _share(own_lse, both))
            out.index_copy_(2, batch.rows, joined.to(out.dtype))
            del joined
            lse.index_copy_(2, batch.rows, both)
        return out, lse

    def backward(
        self, kernel: AttentionKernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
        cu_seqlens: tuple[int, ...], scale: float, window: int,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """As backward_segments: (dq, dk, dv)."""
        chunks, batches = self._cut(cu_seqlens, window, q.device)
        dq, dk, dv = backward_segments(kernel, dout, q, k, v, out, lse, chunks, scale)
        for batch in batches:
            dout_part, q_part, out_part = (_taken(x, batch.queries) for x in (dout, q, out))
            lse_part = lse.index_select(2, batch.queries)
            if batch.stand_ins is not None:
                dout_part.index_fill_(2, batch.stand_ins, 0.0)
                lse_part.index_fill_(2, batch.stand_ins, _NO_WEIGHT)
            of_keys = [_taken(x, batch.keys) for x in (k, v)]
            parts = backward_segments(kernel, dout_part, q_part, *of_keys, out_part, lse_part, batch.bounds, scale)
            dq.index_add_(2, batch.rows, batch.taken(parts[0]))
            dk.index_add_(2, batch.keys, parts[1])
            dv.index_add_(2, batch.keys, parts[2])
        return dq, dk, dv

    def _cut(
        self, cu_seqlens: tuple[int, ...], window: int, device: torch.device
    ) -> tuple[tuple[int, ...], list[_Batch]]:
        """(bounds of all chunks, the pairs of chunks)"""
        if self._key != (cu_seqlens, window, device):
            self._chunks = tuple(
                start for first, end in pairwise(cu_seqlens) for start in range(first, end, window)
            ) + cu_seqlens[-1:]  # fmt: skip
            self._batches = _batches(cu_seqlens, window, device)
            self._key = cu_seqlens, window, device
        return self._chunks, self._batches


def _batches(cu_seqlens: tuple[int, ...], window: int, device: torch.device) -> list[_Batch]:
    size = window - 1
    pairs = [(start, end) for first, end in pairwise(cu_seqlens) for start in range(first + window, end, window)]
    if size == 0 or not pairs:
        return []
    places = torch.arange(size)
    batches = []
    for part in torch.tensor(pairs).split(max(1, BATCH_TOKENS // window)):
        starts, ends = part[:, :1], part[:, 1:]
        queries, keys = starts + (size - 1) - places, (starts - 1) - places
        is_real = (queries < ends).flatten()
        queries = torch.minimum(queries, ends - 1).flatten()
        all_real = bool(is_real.all())
        batches.append(
            _Batch(
                queries=queries.to(device), keys=keys.flatten().to(device), rows=queries[is_real].to(device),
                bounds=tuple(range(0, len(part) * size + 1, size)),
                real=None if all_real else is_real.nonzero()[:, 0].to(device),
                stand_ins=None if all_real else (~is_real).nonzero()[:, 0].to(device),
            )
        )  # fmt: skip
    return batches


def _taken(x: Tensor, tokens: Tensor) -> Tensor:
    """(1, H, T, D) -> (1, H, n, D), token by token in memory: torch's flash kernel would copy any other order."""
    return x.transpose(1, 2).index_select(1, tokens).transpose(1, 2)


def _before(
    kernel: AttentionKernel, q: Tensor, k: Tensor, v: Tensor, batch: _Batch, scale: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, lse) of the real queries of a batch over the chunks before theirs."""
    copies = _taken(q, batch.queries), *(_taken(x, batch.keys) for x in (k, v))
    out, lse = forward_segments(kernel, *copies, batch.bounds, scale)
    del copies  # before what is taken of the result is one more
    return batch.taken(out), batch.taken(lse)


def _share(lse: Tensor, both: Tensor) -> Tensor:
    """Of one of two blocks in their joined output: (1, H, L) -> (1, H, L, 1)."""
    return (lse - both).exp_()[..., None]
