"""An attention kernel that allocates what a CUDA flash attention does, and computes nothing.

Called by core/verify/cuda_entries.py and tests/planner/engine_bytes.py. Shapes: core/attention/kernel.py. Sources:
torch aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd and mha_bwd, and attention_backward.cu,
_flash_attention_backward; flash-attention flash_attn/cute/interface.py, _flash_attn_bwd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.attention.kernel import INT32_ELEMENTS
from planner.attention_kernels import TITLES, KernelName

_LENGTH_MULTIPLE = 128  # of the backward's float32 scratch
_HEAD_DIM_MULTIPLE = 32


class FlashAllocations:
    """An AttentionKernel and a SegmentKernel: a packed row takes the same bytes."""

    takes_segments = True
    max_elements: int | None = INT32_ELEMENTS

    def __init__(self, key: KernelName = "torch") -> None:
        self.key = key
        self.name = f"allocations of {TITLES[key]}"
        self._sums_heads_in_float32 = key in ("flash3", "flash4")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        return _by_token(q), torch.zeros(q.shape[:-1])

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        # torch's alone: the parts of a head group are cut out of what is whole
        contiguous = [x.transpose(1, 2).contiguous() for x in (dout, out) if self.key == "torch"]
        heads, length, head_dim = q.shape[1:]
        rounded = _rounded_up(length, _LENGTH_MULTIPLE)
        row_sums = torch.zeros(2 if self._sums_heads_in_float32 else 1, heads, rounded)  # the second: lse in base 2
        wide_dq = torch.zeros(heads, rounded, _rounded_up(head_dim, _HEAD_DIM_MULTIPLE))
        # where query heads share k and v: their gradients of each query head, or sums over them in float32
        of_heads = k if self._sums_heads_in_float32 else q
        dtype = torch.float32 if self._sums_heads_in_float32 else q.dtype
        shared = [torch.zeros(of_heads.shape, dtype=dtype) for _ in range(2 * (k.shape[1] < heads))]
        grads = _by_token(q), _by_token(k), _by_token(v)
        del row_sums, wide_dq, shared, contiguous
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
