"""Cross entropy of a chunk of logits and its gradient on a GPU, in the memory of the logits. Called by chunked.py.

Each row is read twice: for its log-sum-exp, and for softmax - one hot, which is written over it. A 16-bit gradient
takes the first half of its row: what is written lies behind what is still to be read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


def cross_entropy_(
    logits_cV: Tensor, labels_c1: Tensor, *, dtype: torch.dtype, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """See core/loss/chunked.py. ``logits_cV`` is float32 and contiguous."""
    num_rows, vocabulary = logits_cV.shape
    losses_c = torch.empty(num_rows, dtype=torch.float32, device=logits_cV.device)
    width = logits_cV.view(dtype).shape[1]  # of a row of the logits, in elements of the gradient
    dlogits_cV = logits_cV.view(dtype)[:, :vocabulary]
    _cross_entropy[(num_rows,)](
        logits_cV, dlogits_cV, labels_c1, losses_c, vocabulary, width, WANTS_GRADIENT=wants_gradient, BLOCK=_BLOCK,
        num_warps=16,
    )  # fmt: skip
    return losses_c.sum(), dlogits_cV if wants_gradient else None


@triton.jit
def _cross_entropy(
    logits_ptr, dlogits_ptr, labels_ptr, losses_ptr, vocabulary, width, WANTS_GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels_ptr + row)
    logits_ptr += row * vocabulary
    target = tl.load(logits_ptr + label)
    maximum = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + columns, mask=columns < vocabulary, other=float("-inf"))
        higher = tl.maximum(maximum, tl.max(logits, axis=0))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.exp(logits - higher), axis=0)
        maximum = higher
    log_sum_exp = maximum + tl.log(total)
    tl.store(losses_ptr + row, log_sum_exp - target)
    if WANTS_GRADIENT:
        dlogits_ptr += row * width
        for start in range(0, vocabulary, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < vocabulary
            logits = tl.load(logits_ptr + columns, mask=inside, other=float("-inf"))
            dlogits = tl.exp(logits - log_sum_exp) - tl.where(columns == label, 1.0, 0.0)
            tl.debug_barrier()  # all of this block is read before any of it is written over
            tl.store(dlogits_ptr + columns, dlogits.to(dlogits_ptr.dtype.element_ty), mask=inside)
            tl.debug_barrier()
