"""Attention over a whole row, whoever holds its parts: the seam that Ulysses, ring and fake-parallel are built on.

The function registered with transformers (core/attention/register.py) calls the SequenceAttention of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from core.attention.kept import KeptOutput
from core.attention.kernel import AttentionKernel
from core.attention.segments import backward_segments, forward_segments
from core.attention.windows import WindowedSegments
from core.parallel.layout import SequenceLayout


class SequenceAttention(Protocol):
    """Causal attention inside each segment of the row, differentiable in q, k and v.

    Collective when it spans ranks: every rank of its group calls it, in the same order, also with an empty shard.
    """

    num_calls: int  # forwards so far, recomputed ones included: the evidence of ``verify``

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float, kept: KeptOutput | None = None,
        window: int | None = None,
    ) -> Tensor:  # fmt: skip
        """q (1, H, L, D), k and v (1, K, L, D), L tokens held here -> (1, H, L, D) in q's dtype.

        ``kept``: empty, to be filled with what a recompute would need; or full, and then the output is that.
        ``window``: a token attends to the last so many tokens of its segment, itself included; None: to all of them.
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
        self._windowed = WindowedSegments()

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float, kept: KeptOutput | None = None,
        window: int | None = None,
    ) -> Tensor:  # fmt: skip
        assert layout.ring_degree == 1, "a row spread over a ring needs RingAttention"
        self.num_calls += 1
        known = None if kept is None else kept.read()
        of_segments: dict[str, Any] = {"cu_seqlens": layout.local_cu_seqlens, "scale": scale}
        if window is None or layout.longest_segment <= window:
            forward, backward = forward_segments, backward_segments
        else:
            forward, backward = self._windowed.forward, self._windowed.backward
            of_segments["window"] = window
        out, lse = _LocalAttention.apply(
            q, k, v, known, partial(forward, self.kernel, **of_segments), partial(backward, self.kernel, **of_segments)
        )
        if kept is not None and known is None:
            kept.fill(out, lse)
        return out

    def known(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return out, lse


class _LocalAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, known: tuple[Tensor, Tensor] | None,
        attend: Callable[..., tuple[Tensor, Tensor]], attend_backward: Callable[..., tuple[Tensor, Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        out, lse = known or attend(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # no zeros for the gradient of lse
        ctx.attend_backward = attend_backward
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: None) -> tuple[Tensor | None, ...]:
        return *ctx.attend_backward(dout, *ctx.saved_tensors), None, None, None
