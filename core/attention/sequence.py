"""Attention over a whole row, whoever holds its parts: the seam that Ulysses, ring and fake-parallel are built on.

The function registered with transformers (core/attention/register.py) calls the SequenceAttention of the run.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from core.attention.kernel import AttentionKernel
from core.attention.segments import backward_segments, forward_segments
from core.parallel.layout import SequenceLayout


class SequenceAttention(Protocol):
    """Causal attention inside each segment of the row, differentiable in q, k and v.

    Collective when it spans ranks: every rank of its group calls it, in the same order, also with an empty shard.
    """

    num_calls: int  # forwards so far, recomputed ones included: the evidence of ``verify``

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
        """q (1, H, L, D), k and v (1, K, L, D), L tokens held here -> (1, H, L, D) in q's dtype."""
        ...


class LocalAttention:
    """The rank holds the whole row."""

    def __init__(self, kernel: AttentionKernel) -> None:
        self.kernel = kernel
        self.num_calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
        assert layout.ring_degree == 1, "a row spread over a ring needs RingAttention"
        self.num_calls += 1
        return _LocalAttention.apply(q, k, v, self.kernel, layout.local_cu_seqlens, scale)


class _LocalAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: AttentionKernel, cu_seqlens: tuple[int, ...], scale: float
    ) -> Tensor:
        out, lse = forward_segments(kernel, q, k, v, cu_seqlens, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.kernel, ctx.cu_seqlens, ctx.scale = kernel, cu_seqlens, scale
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        grads = backward_segments(ctx.kernel, dout, *ctx.saved_tensors, ctx.cu_seqlens, ctx.scale)
        return *grads, None, None, None
