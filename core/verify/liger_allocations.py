"""What Liger's Triton kernels save and allocate, without computing: in the place of the module ``liger_kernel.ops``.

Called by core/verify/cuda_entries.py. Source: liger-kernel 0.8 ops/rms_norm.py, ops/swiglu.py, ops/rope.py. Contract:
core/model/liger_ops.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_NUM_SMS = 132  # of an H100 or H200: rows of the norm's partial weight gradients


class LigerRMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, eps: float, offset: float, casting_mode: str, in_place: bool, row_mode: Any
    ) -> Tensor:
        y, inverse_rms = torch.empty_like(x), torch.empty(x.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(x, weight, inverse_rms)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient is written over the output's."""
        _, weight, _ = ctx.saved_tensors
        dweight = torch.empty(_NUM_SMS, weight.shape[0], dtype=torch.float32).sum(0).to(weight.dtype)
        return dy, dweight, None, None, None, None, None


class LigerSiLUMulFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, *_: float) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, dproduct: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients are written over gate and up."""
        gate, up = ctx.saved_tensors
        return gate.detach(), up.detach(), None, None


class LigerRopeFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any, unsqueeze_dim: int
    ) -> tuple[Tensor, Tensor]:
        """In place: q and k lie in memory as (1, L, heads, head_dim) already."""
        ctx.save_for_backward(cos, sin)
        return q.detach(), k.detach()

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
        return _by_token(dq), _by_token(dk), None, None, None, None


def _by_token(x: Tensor) -> Tensor:
    """A copy only where the memory is laid out otherwise."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
