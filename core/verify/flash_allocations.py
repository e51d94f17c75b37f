"""An attention kernel that allocates what torch's CUDA flash attention does, and computes nothing.

Called by core/verify/dry_run.py and tests/planner/engine_bytes.py. Source: torch
aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd and mha_bwd. Shapes: core/attention/kernel.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.attention.kernel import INT32_ELEMENTS
from planner.attention_kernels import KernelName

_LENGTH_MULTIPLE = 128  # of the backward's float32 scratch
_HEAD_DIM_MULTIPLE = 32


class FlashAllocations:
    """An AttentionKernel and a SegmentKernel: a packed row takes the same bytes."""

    key: KernelName = "torch"
    name = "allocations of torch CUDA flash"
    takes_segments = True
    max_elements: int | None = INT32_ELEMENTS

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        return _by_token(q), torch.zeros(q.shape[:-1])

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, length, head_dim = q.shape[1:]
        rounded = _rounded_up(length, _LENGTH_MULTIPLE)
        row_sums = torch.zeros(heads, rounded)
        wide_dq = torch.zeros(heads, rounded, _rounded_up(head_dim, _HEAD_DIM_MULTIPLE))
        # dk and dv are made for every query head, then summed over the heads of a group
        per_query_head = (_by_token(q), _by_token(q)) if k.shape[1] < heads else ()
        grads = _by_token(q), _by_token(k), _by_token(v)
        del row_sums, wide_dq, per_query_head
        return grads

    def forward_segments(
        self, q: Tensor, k: Tensor, v: Tensor, *, bounds: tuple[int, ...], scale: float
    ) -> tuple[Tensor, Tensor]:
        return self.forward(q, k, v, causal=True, scale=scale)

    def backward_segments(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, bounds: tuple[int, ...],
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        return self.backward(dout, q, k, v, out, lse, causal=True, scale=scale)


def _by_token(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[0], x.shape[2], x.shape[1], x.shape[3], dtype=x.dtype).transpose(1, 2)


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
