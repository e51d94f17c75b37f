"""The cross entropy of a chunk as the GPU's kernel allocates it, without its numbers: the gradient lies in the logits.

Stands in for core/loss/chunked.py, cross_entropy_, where a CPU counts what a CUDA device would allocate
(core/verify/cuda_device.py). What it stands for: core/loss/triton_cross_entropy.py.
"""

from __future__ import annotations

import torch
from torch import Tensor


def cross_entropy_(
    logits_cV: Tensor, labels_c1: Tensor, *, dtype: torch.dtype, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    losses_c = logits_cV[:, 0].clone()
    return losses_c.sum(), logits_cV.view(dtype)[:, : logits_cV.shape[1]] if wants_gradient else None
