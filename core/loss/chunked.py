"""Linear head and cross entropy in chunks of targets: logits of a whole sequence never exist.

`fused_loss` puts ChunkedLoss into the run (core/optimizations/fused_loss.py). Loss is the last node of the graph, so
the gradients of hidden states and head are formed chunk by chunk in the forward, while the logits are there, and the
backward only scales them. Positions without a target cost nothing: SFT prompts skip the head altogether.

    N targets   c chunk_tokens   V vocabulary   d hidden size

Memory beside the inputs: c * V wide elements and one copy of the hidden states' gradient; a trainable head adds its
gradient, V * d wide elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core.attention.kernel import INT32_ELEMENTS, wide_dtype
from core.data.row import IGNORE_INDEX
from core.loss.head_loss import head_operands


class ChunkedLoss:
    """A HeadLoss; see core/loss/head_loss.py for shapes."""

    def __init__(self, chunk_tokens: int) -> None:
        self.chunk_tokens = chunk_tokens
        # so far, the evidence of ``verify``
        self.num_calls = self.num_targets = self.num_chunks = 0

    def __call__(
        self, hidden: Tensor, head_weight: Tensor, labels: Tensor, target_index: Tensor | None = None
    ) -> Tensor:
        if target_index is None:
            target_index = (labels[0] != IGNORE_INDEX).nonzero()[:, 0]
        # logits of a chunk must stay within what 32-bit indices reach, whatever was asked for
        chunk_tokens = min(self.chunk_tokens, max(1, INT32_ELEMENTS // head_weight.shape[0]))
        self.num_calls += 1
        self.num_targets += target_index.numel()
        self.num_chunks += -(-target_index.numel() // chunk_tokens)
        hidden, head_weight = head_operands(hidden, head_weight)
        # Function.forward runs without grad mode, so whether gradients are wanted at all must be asked out here
        wants = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden, head_weight))
        return _ChunkedCrossEntropy.apply(hidden[0], head_weight, labels[0], target_index, chunk_tokens, *wants)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_Ld: Tensor,
        head_Vd: Tensor,
        labels_L: Tensor,
        target_index_N: Tensor,
        chunk_tokens: int,
        wants_dhidden: bool,
        wants_dhead: bool,
    ) -> Tensor:
        wide = wide_dtype(hidden_Ld.dtype)
        loss = hidden_Ld.new_zeros((), dtype=wide)
        dhidden_Ld = torch.zeros_like(hidden_Ld) if wants_dhidden else None
        dhead_Vd = torch.zeros_like(head_Vd, dtype=wide) if wants_dhead else None
        with torch.autocast(hidden_Ld.device.type, enabled=False):  # operands have their dtype already
            for index_c in target_index_N.split(chunk_tokens) if target_index_N.numel() else ():
                hidden_cd, labels_c1 = hidden_Ld[index_c], labels_L[index_c, None]
                logits_cV = wide_matmul(hidden_cd, head_Vd.t())
                chunk_loss, dlogits_cV = cross_entropy_(
                    logits_cV, labels_c1, dtype=hidden_cd.dtype, wants_gradient=wants_dhidden or wants_dhead
                )
                loss += chunk_loss
                if dhidden_Ld is not None:
                    dhidden_Ld[index_c] = dlogits_cV @ head_Vd
                if dhead_Vd is not None:
                    dhead_Vd += wide_matmul(dlogits_cV.t(), hidden_cd)
                del logits_cV, dlogits_cV  # before the next chunk's are made
        ctx.dhidden, ctx.dhead, ctx.head_dtype = dhidden_Ld, dhead_Vd, head_Vd.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dhidden_Ld, dhead_Vd = ctx.dhidden, ctx.dhead
        ctx.dhidden = ctx.dhead = None  # scaled in place below: a second backward would scale them again
        if dhidden_Ld is None and dhead_Vd is None:
            raise RuntimeError("the chunked loss keeps its gradients for one backward only")
        if dhidden_Ld is not None:
            dhidden_Ld.mul_(dloss)
        if dhead_Vd is not None:
            dhead_Vd = dhead_Vd.mul_(dloss).to(ctx.head_dtype)
        return dhidden_Ld, dhead_Vd, None, None, None, None, None


def cross_entropy_(
    logits_cV: Tensor, labels_c1: Tensor, *, dtype: torch.dtype, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Summed cross entropy of (c, V) wide logits, which are written over, and its gradient (c, V) in ``dtype``.

    16-bit operands go to the next product as they are.
    """
    if logits_cV.device.type == "cuda" and logits_cV.dtype == torch.float32:
        from core.loss import triton_cross_entropy  # Triton comes with torch for CUDA

        return triton_cross_entropy.cross_entropy_(logits_cV, labels_c1, dtype=dtype, wants_gradient=wants_gradient)
    lse_c1 = logits_cV.logsumexp(-1, keepdim=True)
    loss = (lse_c1 - logits_cV.gather(1, labels_c1)).sum()
    if not wants_gradient:
        return loss, None
    # d loss / d logits = softmax - one hot
    dlogits_cV = logits_cV.sub_(lse_c1).exp_()
    dlogits_cV.scatter_add_(1, labels_c1, dlogits_cV.new_full((), -1.0).expand(labels_c1.shape))
    return loss, dlogits_cV.to(dtype)


def wide_matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in ``wide_dtype``, without a wide copy of the operands: CUDA GEMMs of 16-bit operands write float32."""
    wide = wide_dtype(a.dtype)
    if a.device.type == "cuda" and a.dtype != wide:
        return torch.mm(a, b, out_dtype=wide)
    return (a @ b).to(wide)
