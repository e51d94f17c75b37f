"""Causal attention of each segment of a local sequence to itself: what one rank can do without its peers.

Segments are the samples of a pack, and the padding; their bounds are known on the CPU (cu_seqlens), so no mask is
ever built and no device is asked. A kernel that knows segments gets them in one call, any other one by one. Operands of
more elements than a kernel can index are handed over by KV heads. Called by core/attention/sequence.py and, for the
diagonal block, by the ring.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from core.attention.kernel import AttentionKernel
from planner.errors import ConfigError


def forward_segments(
    kernel: AttentionKernel, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: tuple[int, ...], scale: float
) -> tuple[Tensor, Tensor]:
    """out (1, H, L, D) laid out in memory as (1, L, H, D), which the output projection reads, and lse (1, H, L)."""
    parts = _head_parts(kernel, q, k)
    if len(parts) == 1:
        return _forward(kernel, q, k, v, cu_seqlens, scale)
    out, lse = _empty_by_token(q), None
    for query_heads, kv_heads in parts:
        operands = (x[:, heads].contiguous() for x, heads in ((q, query_heads), (k, kv_heads), (v, kv_heads)))
        part_out, part_lse = _forward(kernel, *operands, cu_seqlens, scale)
        lse = part_lse.new_empty(q.shape[:-1]) if lse is None else lse
        out[:, query_heads], lse[:, query_heads] = part_out, part_lse
    return out, lse


def _forward(
    kernel: AttentionKernel, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: tuple[int, ...], scale: float
) -> tuple[Tensor, Tensor]:
    if len(cu_seqlens) == 2:
        return kernel.forward(q, k, v, causal=True, scale=scale)
    if kernel.takes_segments:
        return kernel.forward_segments(q, k, v, bounds=cu_seqlens, scale=scale)
    out, lse = _empty_by_token(q), None
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
    parts = _head_parts(kernel, q, k)
    if len(parts) == 1:
        return _backward(kernel, dout, q, k, v, out, lse, cu_seqlens, scale)
    grads = tuple(_empty_by_token(x) for x in (q, k, v))
    for query_heads, kv_heads in parts:
        sides = (query_heads, query_heads, kv_heads, kv_heads, query_heads, query_heads)
        operands = (x[:, heads].contiguous() for x, heads in zip((dout, q, k, v, out, lse), sides))
        part_grads = _backward(kernel, *operands, cu_seqlens, scale)
        for grad, part_grad, heads in zip(grads, part_grads, (query_heads, kv_heads, kv_heads)):
            grad[:, heads] = part_grad
    return grads


def _backward(
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
    if len(cu_seqlens) == 2:
        return kernel.backward(dout, q, k, v, out, lse, causal=True, scale=scale)
    if kernel.takes_segments:
        return kernel.backward_segments(dout, q, k, v, out, lse, bounds=cu_seqlens, scale=scale)
    grads = tuple(_empty_by_token(x) for x in (q, k, v))
    for start, end in pairwise(cu_seqlens):
        part = slice(start, end)
        segment_grads = kernel.backward(*(x[:, :, part] for x in (dout, q, k, v, out, lse)), causal=True, scale=scale)
        for grad, segment_grad in zip(grads, segment_grads):
            grad[:, :, part] = segment_grad
    return grads


def _head_parts(kernel: AttentionKernel, q: Tensor, k: Tensor) -> list[tuple[slice, slice]]:
    """(query heads, KV heads) of each call, so that no operand has more elements than the kernel indexes.

    Raises:
        ConfigError: the query heads of a single KV head have more.
    """
    if kernel.max_elements is None or q.numel() <= kernel.max_elements:
        return [(slice(None), slice(None))]
    num_kv_heads = k.shape[1]
    for num_parts in range(2, num_kv_heads + 1):
        if num_kv_heads % num_parts == 0 and q.numel() // num_parts <= kernel.max_elements:
            sizes = q.shape[1] // num_parts, num_kv_heads // num_parts
            return [tuple(slice(part * size, (part + 1) * size) for size in sizes) for part in range(num_parts)]
    raise ConfigError(
        f"Queries of {q.shape[2]:,} tokens and {q.shape[1] // num_kv_heads} heads for each KV head have more than "
        f"{kernel.max_elements:,} elements.",
        why=f"{kernel.name} counts elements with 32 bits.",
        fix="Lower max_length, or spread the row over more GPUs with sequence_parallel.",
    )


def _empty_by_token(x: Tensor) -> Tensor:
    """As x (1, H, L, D), laid out in memory as (1, L, H, D)."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)
