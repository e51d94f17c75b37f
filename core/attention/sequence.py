"""Attention over a whole row, whoever holds its parts: the seam that Ulysses, ring and fake-parallel are built on.

The function registered with transformers (core/attention/register.py) calls the SequenceAttention of the run.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from core.attention.kept import KeptOutput
from core.attention.kernel import AttentionKernel
from core.attention.segments import backward_segments, forward_segments
from core.parallel.layout import SequenceLayout


class SequenceAttention(Protocol):
    """Causal attention inside each segment of the row, differentiable in q, k and v.

    Collective when it spans ranks: every rank of its group calls it, in the same order, also with an empty shard.
    """

    num_calls: int  # forwards so far, recomputed ones included: the evidence of ``verify``

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float, kept: KeptOutput | None = None
    ) -> Tensor:
        """q (1, H, L, D), k and v (1, K, L, D), L tokens held here -> (1, H, L, D) in q's dtype.

        ``kept``: empty, to be filled with what a recompute would need; or full, and then the output is that.
        """
        ...

    def known(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """What a KeptOutput of this attention holds, from the output that a call returned and the log-sum-exp that it
        kept. Collective where the call is."""
        ...


class LocalAttention:
    """The rank holds the whole row."""

    def __init__(self, kernel: AttentionKernel) -> None:
        self.kernel = kernel
        self.num_calls = 0

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float, kept: KeptOutput | None = None
    ) -> Tensor:
        assert layout.ring_degree == 1, "a row spread over a ring needs RingAttention"
        self.num_calls += 1
        known = None if kept is None else kept.read()
        out, lse = _LocalAttention.apply(q, k, v, self.kernel, layout.local_cu_seqlens, scale, known)
        if kept is not None and known is None:
            kept.fill(out, lse)
        return out

    def known(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return out, lse


class _LocalAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kernel: AttentionKernel,
        cu_seqlens: tuple[int, ...],
        scale: float,
        known: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        out, lse = known or forward_segments(kernel, q, k, v, cu_seqlens, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # no zeros for the gradient of lse
        ctx.kernel, ctx.cu_seqlens, ctx.scale = kernel, cu_seqlens, scale
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: None) -> tuple[Tensor | None, ...]:
        grads = backward_segments(ctx.kernel, dout, *ctx.saved_tensors, ctx.cu_seqlens, ctx.scale)
        return *grads, None, None, None, None
