"""The exchange of Ulysses: from a part of the tokens with all heads, to all tokens with a part of the heads, and back.

Called by core/parallel/ulysses.py. U = 2, H = 4; a rank's rows before, its columns after:

                heads  0 1 | 2 3                                   rank 0 |  rank 1
    rank 0   tokens A   a a | b b      --- scatter_heads --->     A  a a  |  A  b b
    rank 1   tokens B   c c | d d      <--- gather_heads ----     B  c c  |  B  d d

Each is the other's backward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def scatter_heads(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(1, H, L, D) -> (1, H/U, U*L, D), tokens in rank order. Differentiable. Collective; H a multiple of U."""
    return _Exchange.apply(x, group, True)


def gather_heads(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(1, H/U, U*L, D) -> (1, H, L, D), heads in rank order. Differentiable. Collective."""
    return _Exchange.apply(x, group, False)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, scatters_heads: bool) -> Tensor:
        ctx.group, ctx.scatters_heads = group, scatters_heads
        return _scatter(x, group) if scatters_heads else _gather(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return (_gather if ctx.scatters_heads else _scatter)(grad, ctx.group), None, None


def _scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts_UhLD = x[0].unflatten(0, (dist.get_world_size(group), -1))  # by the rank that gets these heads
    parts_UhLD = _all_to_all(parts_UhLD, group)  # by the rank that these tokens came from
    return parts_UhLD.transpose(0, 1).flatten(1, 2)[None]


def _gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts_UhLD = x[0].unflatten(1, (dist.get_world_size(group), -1)).transpose(0, 1)  # by the rank of these tokens
    return _all_to_all(parts_UhLD, group).flatten(0, 1)[None]


def _all_to_all(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """parts[i] goes to rank i, result[i] came from rank i. NCCL and gloo both have this collective."""
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received
