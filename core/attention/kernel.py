"""Attention kernels: softmax(q k^T) v with its log-sum-exp, and the backward that takes a log-sum-exp from outside.

Called by core/attention/segments.py and core/parallel/ring.py, never by models. The backward of a block with the
row's *global* output and log-sum-exp gives that block's exact share of the gradients, which is what a ring needs.
Here: the contract, the CPU's kernel and the reference. On GPUs: torch_kernels.py and flash_packages.py.

    H query heads   K KV heads, G = H/K query heads share one   Lq, Lk tokens   D head dim
    q, out, dout, dq (1, H, Lq, D)    k, v, dk, dv (1, K, Lk, D)    lse (1, H, Lq) in promote_types(dtype, float32)

Rows are never batched in longfit (core/data/row.py), so the leading dimension is 1 everywhere.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from planner.attention_kernels import KernelName
from planner.parts.reference_attention import QUERY_BLOCK

INT32_ELEMENTS = 2**31 - 1  # what a kernel with 32-bit indices reaches


class AttentionKernel(Protocol):
    """A pair of functions. ``causal`` needs Lq == Lk; no length may be 0."""

    key: KernelName  # in planner/attention_kernels.py
    name: str  # for people, with the version
    takes_segments: bool  # is a SegmentKernel: a packed row is one call
    max_elements: int | None  # of one operand; None: as many as there is memory for

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """(out in q's dtype, lse)."""
        ...

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dq, dk, dv) in the dtypes of q, k, v; dk and dv summed over the query heads that share a KV head."""
        ...


class SegmentKernel(AttentionKernel, Protocol):
    """A kernel that attends causally inside each of many segments in one call ("varlen")."""

    def forward_segments(
        self, q: Tensor, k: Tensor, v: Tensor, *, bounds: tuple[int, ...], scale: float
    ) -> tuple[Tensor, Tensor]:
        """(out, lse) as of ``forward``; segment i is tokens bounds[i] to bounds[i + 1] of q, k and v."""
        ...

    def backward_segments(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, bounds: tuple[int, ...],
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """(dq, dk, dv) as of ``backward``."""
        ...


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Where softmax statistics, losses and sums over blocks accumulate: float32, or the input's own if wider."""
    return torch.promote_types(dtype, torch.float32)


class CpuFlashKernel:
    """The CPU flash operator of torch (float64, float32 and 16-bit), linear memory in length.

    It wants as many KV heads as query heads. With q seen as (K, G, Lq, D), KV heads as its batch, k and v are repeated
    over G by a stride of 0: K and V are expanded without a copy.
    """

    key: KernelName = "cpu"
    name = "torch CPU flash"
    takes_segments = False
    max_elements: int | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        out_KGLD, lse_KGL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _by_kv_head(q, k), _shared(k, q), _shared(v, q), 0.0, causal, scale=scale
        )
        return out_KGLD.flatten(0, 1)[None], lse_KGL.flatten(0, 1)[None]

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq_KGLD, dk_KGLD, dv_KGLD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _by_kv_head(dout, k), _by_kv_head(q, k), _shared(k, q), _shared(v, q), _by_kv_head(out, k),
            lse[0].unflatten(0, (k.shape[1], -1)), 0.0, causal, scale=scale,
        )  # fmt: skip
        return dq_KGLD.flatten(0, 1)[None], dk_KGLD.sum(1)[None], dv_KGLD.sum(1)[None]


class ReferenceKernel:
    """Plain torch for every dtype and device, in blocks of query rows; statistics in ``wide_dtype``."""

    key: KernelName = "reference"
    name = "torch reference"
    takes_segments = False
    max_elements: int | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        q_KGLD, k_K1LD, v_K1LD = _wide(_by_kv_head(q, k)), _wide(k[0][:, None]), _wide(v[0][:, None])
        out_KGLD = torch.empty_like(q_KGLD)
        lse_KGL = q_KGLD.new_empty(q_KGLD.shape[:-1])
        for rows in _query_blocks(q.shape[2]):
            scores = _scores(q_KGLD, k_K1LD, rows, causal, scale)
            lse_KGL[:, :, rows] = scores.logsumexp(-1)
            out_KGLD[:, :, rows] = scores.sub_(lse_KGL[:, :, rows, None]).exp_() @ v_K1LD
            del scores  # before the next block's are made
        return out_KGLD.to(q.dtype).flatten(0, 1)[None], lse_KGL.flatten(0, 1)[None]

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        q_KGLD, k_K1LD, v_K1LD = _wide(_by_kv_head(q, k)), _wide(k[0][:, None]), _wide(v[0][:, None])
        dout_KGLD, out_KGLD = _wide(_by_kv_head(dout, k)), _wide(_by_kv_head(out, k))
        lse_KGL = lse[0].unflatten(0, (k.shape[1], -1))
        dq_KGLD = torch.empty_like(q_KGLD)
        dk_KLD, dv_KLD = torch.zeros_like(k_K1LD[:, 0]), torch.zeros_like(v_K1LD[:, 0])
        for rows in _query_blocks(q.shape[2]):
            dout_rows = dout_KGLD[:, :, rows]
            weights = _scores(q_KGLD, k_K1LD, rows, causal, scale).sub_(lse_KGL[:, :, rows, None]).exp_()
            dv_KLD += (weights.transpose(-1, -2) @ dout_rows).sum(1)
            # d softmax: weights * (dweights - rowsum(dweights * weights)), and that row sum is rowsum(dout * out)
            dscores = dout_rows @ v_K1LD.transpose(-1, -2)
            dscores.sub_((dout_rows * out_KGLD[:, :, rows]).sum(-1, keepdim=True)).mul_(weights).mul_(scale)
            dq_KGLD[:, :, rows] = dscores @ k_K1LD
            dk_KLD += (dscores.transpose(-1, -2) @ q_KGLD[:, :, rows]).sum(1)
            del weights, dscores
        return dq_KGLD.to(q.dtype).flatten(0, 1)[None], dk_KLD.to(k.dtype)[None], dv_KLD.to(v.dtype)[None]


def _by_kv_head(x_1HLD: Tensor, k: Tensor) -> Tensor:
    """(1, H, L, D) -> (K, G, L, D), a view."""
    return x_1HLD[0].unflatten(0, (k.shape[1], -1))


def _shared(k_1KLD: Tensor, q: Tensor) -> Tensor:
    """(1, K, L, D) -> (K, G, L, D) with stride 0 over G, a view."""
    return k_1KLD[0][:, None].expand(-1, q.shape[1] // k_1KLD.shape[1], -1, -1)


def _wide(x: Tensor) -> Tensor:
    return x.to(wide_dtype(x.dtype))


def _query_blocks(num_rows: int) -> list[slice]:
    return [slice(start, min(start + QUERY_BLOCK, num_rows)) for start in range(0, num_rows, QUERY_BLOCK)]


def _scores(q_KGLD: Tensor, k_K1LD: Tensor, rows: slice, causal: bool, scale: float) -> Tensor:
    scores = (q_KGLD[:, :, rows] @ k_K1LD.transpose(-1, -2)).mul_(scale)
    if causal:
        key_ids = torch.arange(k_K1LD.shape[2], device=scores.device)
        scores.masked_fill_(key_ids > key_ids[rows, None], float("-inf"))
    return scores
