"""From hidden states to the summed loss: the seam, and the plain way that holds the logits of the whole shard.

core/train/forward.py calls the HeadLoss of the run; the trainer divides by the global number of targets. A sum is the
only form that adds up over micro-batches and ranks with unequal numbers of targets, none included.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from core.attention.kernel import wide_dtype
from core.data.row import IGNORE_INDEX


class HeadLoss(Protocol):
    def __call__(
        self, hidden: Tensor, head_weight: Tensor, labels: Tensor, target_index: Tensor | None = None
    ) -> Tensor:
        """Sum of cross entropies over the positions whose label is not IGNORE_INDEX; 0 without any, never NaN.

        hidden (1, L, d), head_weight (V, d), labels (1, L) int64 already shifted -> scalar, float32 or wider.
        ``target_index`` (n,) int64, the positions that hold a target, spares a device sync when the caller knows it.
        """
        ...


class StockLoss:
    """Logits of every position at once, as transformers computes them: 1 to 3 times L * V wide elements."""

    def __call__(
        self, hidden: Tensor, head_weight: Tensor, labels: Tensor, target_index: Tensor | None = None
    ) -> Tensor:
        logits_LV = functional.linear(hidden[0], head_weight)
        logits_LV = logits_LV.to(wide_dtype(logits_LV.dtype))
        return functional.cross_entropy(logits_LV, labels[0], ignore_index=IGNORE_INDEX, reduction="sum")


def head_operands(hidden: Tensor, head_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the dtype in which autocast, where it is on, would have multiplied them."""
    device_type = hidden.device.type
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        return hidden.to(dtype), head_weight.to(dtype)
    return hidden, head_weight
