"""RowOps that allocate what the Triton kernels do and compute nothing: the layer engine's memory, counted on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from core.layer.row_ops import Update


class RowAllocations:
    """See core/layer/triton_ops.py for what it stands for."""

    name = "allocations of Triton"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)

    def rms_norm_backward_(self, total: Tensor, dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> None: ...

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> None: ...

    def swiglu(self, gate: Tensor, up: Tensor, updates: tuple[Update | None, Update | None]) -> Tensor:
        return torch.zeros_like(gate)

    def swiglu_backward_(
        self, gate: Tensor, up: Tensor, updates: tuple[Update | None, Update | None], dproduct: Tensor
    ) -> None: ...
