"""Causal attention of each segment of a local sequence to itself: what one rank can do without its peers.

Segments are the samples of a pack, and the padding; their bounds are known on the CPU (cu_seqlens), so no mask is
ever built and no device is asked. A kernel that knows segments gets them in one call, any other one by one. Called by
core/attention/sequence.py and, for the diagonal block, by the ring.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from core.attention.kernel import AttentionKernel


def forward_segments(
    kernel: AttentionKernel, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: tuple[int, ...], scale: float
) -> tuple[Tensor, Tensor]:
    """out (1, H, L, D) laid out in memory as (1, L, H, D), which the output projection reads, and lse (1, H, L)."""
    if len(cu_seqlens) == 2:
        return kernel.forward(q, k, v, causal=True, scale=scale)
    if kernel.takes_segments:
        return kernel.forward_segments(q, k, v, bounds=cu_seqlens, scale=scale)
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)
    lse = None
    for start, end in pairwise(cu_seqlens):
        part = slice(start, end)
        segment_out, segment_lse = kernel.forward(q[:, :, part], k[:, :, part], v[:, :, part], causal=True, scale=scale)
        if lse is None:
            lse = segment_lse.new_empty(q.shape[:-1])
        out[:, :, part], lse[:, :, part] = segment_out, segment_lse
    return out, lse


def backward_segments(
    kernel: AttentionKernel,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens: tuple[int, ...],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shapes and dtypes of q, k, v."""
    if len(cu_seqlens) == 2:
        return kernel.backward(dout, q, k, v, out, lse, causal=True, scale=scale)
    if kernel.takes_segments:
        return kernel.backward_segments(dout, q, k, v, out, lse, bounds=cu_seqlens, scale=scale)
    grads = tuple(x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v))
    for start, end in pairwise(cu_seqlens):
        part = slice(start, end)
        segment_grads = kernel.backward(*(x[:, :, part] for x in (dout, q, k, v, out, lse)), causal=True, scale=scale)
        for grad, segment_grad in zip(grads, segment_grads):
            grad[:, :, part] = segment_grad
    return grads
