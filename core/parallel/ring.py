"""Ring attention: each rank keeps its queries, K and V travel around, one block a step. `ring` puts it into the run.

    step            0        1        2        3          R = 4, K and V of rank:
    rank 0 attends  0        3        2        1          while step t computes, K and V of step t+1 are on their way;
    rank 1 attends  1        0        3        2          in backward dK and dV travel one step behind their K and V
    ...                                                   and come home with the last of R hops

Blocks of one step: core/parallel/layout.py (zigzag, at most one dense block a step). Partial outputs are merged by
their log-sum-exp, and dK and dV summed, in ``wide_dtype``. Source of the merge: Ring Attention (arXiv 2310.01889),
blockwise form; the backward with the global log-sum-exp: FlashAttention-2 (arXiv 2307.08691), section 3.1.2.

    H query heads   K KV heads   L tokens held here   D head dim
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from core.attention.kept import KeptOutput
from core.attention.kernel import AttentionKernel, wide_dtype
from core.attention.segments import backward_segments, forward_segments
from core.parallel.layout import SequenceLayout


class RingAttention:
    """A SequenceAttention over the ranks of ``group``. Collective in forward and backward, with empty shards too."""

    def __init__(self, kernel: AttentionKernel, group: dist.ProcessGroup) -> None:
        self.kernel = kernel
        self.group = group
        self.num_calls = 0

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float, kept: KeptOutput | None = None,
        window: int | None = None,
    ) -> Tensor:  # fmt: skip
        """q (1, H, L, D), k and v (1, K, L, D), L = the two chunks of this ring rank -> (1, H, L, D).

        Raises:
            RuntimeError: a sample of the row is longer than the window (planner/parallel.py refuses such a run).
        """
        if window is not None and layout.longest_segment > window:
            raise RuntimeError(
                f"a ring visits whole blocks, and a sample of {layout.longest_segment} tokens attends to {window} only"
            )
        self.num_calls += 1
        known = None if kept is None else kept.read()
        out, lse = _RingAttention.apply(q, k, v, self.kernel, self.group, layout, scale, known)
        if kept is not None and known is None:
            kept.fill(out, lse)
        return out

    def known(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return out, lse


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kernel: AttentionKernel,
        group: dist.ProcessGroup,
        layout: SequenceLayout,
        scale: float,
        known: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        out, lse = known or _around(q, k, v, kernel, group, layout, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # no zeros for the gradient of lse
        ctx.kernel, ctx.group, ctx.layout, ctx.scale = kernel, group, layout, scale
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        kernel, group, layout, scale = ctx.kernel, ctx.group, ctx.layout, ctx.scale
        wide = wide_dtype(q.dtype)
        kv = torch.stack((k, v))
        kv_hop = _Hop(group, kv)
        dq, dk, dv = backward_segments(kernel, dout, q, k, v, out, lse, layout.local_cu_seqlens, scale)
        dq = dq.to(wide)
        dkv_hop = _Hop(group, torch.stack((dk, dv)).to(wide))
        for source in _sources(layout):
            kv = kv_hop.wait()
            if source != _last_source(layout):
                kv_hop = _Hop(group, kv)
            block = layout.remote_blocks[source]
            grads = None
            if block is not None:
                rows = block.queries
                grads = kernel.backward(
                    dout[:, :, rows], q[:, :, rows], *kv[:, :, :, block.keys], out[:, :, rows], lse[:, :, rows],
                    causal=False, scale=scale,
                )  # fmt: skip
            dkv = dkv_hop.wait()  # what the ranks before us found for the K and V that we hold now
            if grads is not None:
                dq[:, :, block.queries] += grads[0]
                dkv[0][:, :, block.keys] += grads[1]
                dkv[1][:, :, block.keys] += grads[2]
            dkv_hop = _Hop(group, dkv)
        dk, dv = dkv_hop.wait()
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None, None


def _around(
    q: Tensor, k: Tensor, v: Tensor, kernel: AttentionKernel, group: dist.ProcessGroup, layout: SequenceLayout,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, lse) over all keys of the row, which pass by."""
    kv = torch.stack((k, v))  # one contiguous message
    hop = _Hop(group, kv)
    out, lse = forward_segments(kernel, q, k, v, layout.local_cu_seqlens, scale)
    out = out.to(wide_dtype(out.dtype))
    for source in _sources(layout):
        kv = hop.wait()
        if source != _last_source(layout):
            hop = _Hop(group, kv)
        block = layout.remote_blocks[source]
        if block is not None:
            block_out, block_lse = kernel.forward(
                q[:, :, block.queries], *kv[:, :, :, block.keys], causal=False, scale=scale
            )
            _merge(out[:, :, block.queries], lse[:, :, block.queries], block_out, block_lse)
    return out.to(q.dtype), lse


def _sources(layout: SequenceLayout) -> list[int]:
    """Whose K and V this rank holds after hop 1, 2, ..., R-1."""
    return [(layout.ring_rank - hop) % layout.ring_degree for hop in range(1, layout.ring_degree)]


def _last_source(layout: SequenceLayout) -> int:
    return (layout.ring_rank + 1) % layout.ring_degree


def _merge(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """In place: softmax over the union of two key sets. out (1, H, L, D) and lse (1, H, L) in ``wide_dtype``."""
    merged_lse = torch.logaddexp(lse, block_lse)
    out.mul_((lse - merged_lse).exp_()[..., None])
    out.addcmul_(block_out.to(out.dtype), (block_lse - merged_lse).exp_()[..., None])
    lse.copy_(merged_lse)


class _Hop:
    """One tensor to the next rank of the ring and one from the previous, under way while the caller computes."""

    def __init__(self, group: dist.ProcessGroup, outgoing: Tensor) -> None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self._outgoing = outgoing.contiguous()  # must live until it is sent
        self._incoming = torch.empty_like(self._outgoing)
        to_rank = dist.get_global_rank(group, (rank + 1) % size)
        from_rank = dist.get_global_rank(group, (rank - 1) % size)
        self._works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self._outgoing, to_rank, group),
                dist.P2POp(dist.irecv, self._incoming, from_rank, group),
            ]
        )

    def wait(self) -> Tensor:
        for work in self._works:
            work.wait()
        return self._incoming
