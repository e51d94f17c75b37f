"""Frozen linears with LoRA adapters as the layer engine multiplies by them: forward, and every gradient by hand.

    y = x W^T + b + s (x A^T) B^T          dx = dy W + (dy sB) A     dB = s dy^T (x A^T)     dA = (dy sB)^T x

Linears that read the same input (q, k, v; gate, up) form one Projections: their A's are stacked, so that x A^T and its
gradients are one product each. Adapters are trained in their own dtype and multiplied in that of the weights (sB is
scaled before it is cast). Gradients of adapters accumulate in ``wide_dtype`` over tiles and head groups.
LoRA: Hu et al. 2021, arXiv 2106.09685; the forward is that of peft tuners/lora/layer.py, Linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional

from core.attention.kernel import wide_dtype
from core.layer.row_ops import Update
from core.loss.chunked import wide_matmul
from core.model.adapters import ADAPTER_NAME
from core.model.nf4 import dequantised

WHOLE = slice(None)


@dataclass(frozen=True, slots=True)
class FrozenLinear:
    """A linear of a decoder layer and its adapter, if it has one."""

    base: nn.Module  # nn.Linear, or bitsandbytes' Linear4bit
    lora_a: nn.Parameter | None = None  # (r, inputs)
    lora_b: nn.Parameter | None = None  # (outputs, r)
    scaling: float = 0.0

    def weight(self) -> Tensor:
        """(outputs, inputs) in the compute dtype: the weight itself, or a dequantised copy that the caller lets go."""
        return self.base.weight if type(self.base) is nn.Linear else dequantised(self.base)

    @property
    def rank(self) -> int:
        return 0 if self.lora_a is None else self.lora_a.shape[0]


def frozen_linear(module: nn.Module) -> FrozenLinear:
    if not isinstance(module, LoraLayer):
        return FrozenLinear(module)
    return FrozenLinear(
        module.base_layer, module.lora_A[ADAPTER_NAME].weight, module.lora_B[ADAPTER_NAME].weight,
        module.scaling[ADAPTER_NAME],
    )  # fmt: skip


class Projections:
    """Linears of one input. A Pass over them is opened for each forward and each backward of the layer."""

    def __init__(self, linears: Sequence[FrozenLinear]) -> None:
        self.linears = tuple(linears)
        starts = [sum(linear.rank for linear in self.linears[:i]) for i in range(len(self.linears) + 1)]
        self.slots = tuple(slice(start, end) for start, end in pairwise(starts))  # of each linear's rank
        self.rank = starts[-1]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """A and B of each adapted linear, in order."""
        return [p for linear in self.linears if linear.rank for p in (linear.lora_a, linear.lora_b)]

    def open(self, dtype: torch.dtype) -> Pass:
        return Pass(self, dtype)


class Pass:
    """Weights and adapters in the compute dtype for one forward or backward, and the adapters' gradients."""

    def __init__(self, projections: Projections, dtype: torch.dtype) -> None:
        self._projections = projections
        self._linears = projections.linears
        self.weights = [linear.weight() for linear in self._linears]
        adapted = [linear for linear in self._linears if linear.rank]
        self._a = torch.cat([linear.lora_a.detach() for linear in adapted]).to(dtype) if adapted else None
        self._b = [
            (linear.lora_b.detach() * linear.scaling).to(dtype) if linear.rank else None for linear in self._linears
        ]
        self._da: Tensor | None = None
        self._db: list[Tensor | None] = [None] * len(self._linears)

    def narrow(self, x: Tensor) -> Tensor | None:
        """x (T, inputs) -> x A^T of every adapted linear, (T, sum of ranks)."""
        return None if self._a is None else x @ self._a.t()

    def project(self, index: int, x: Tensor, xa: Tensor | None, rows: slice = WHOLE) -> Tensor:
        """Outputs ``rows`` of linear ``index``: (T, inputs), (T, ranks) -> (T, rows)."""
        return self._adapt_(index, self.project_base(index, x, rows), xa, rows)

    def project_base(self, index: int, x: Tensor, rows: slice = WHOLE) -> Tensor:
        """The same without its adapter, whose share is ``update``."""
        bias = self._linears[index].base.bias
        return functional.linear(x, self.weights[index][rows], None if bias is None else bias[rows])

    def update(self, index: int, xa: Tensor | None) -> Update | None:
        """What the adapter of linear ``index`` adds to its outputs, as two factors."""
        b = self._b[index]
        return None if b is None else (xa[:, self._projections.slots[index]], b)

    def add(self, index: int, total: Tensor, x: Tensor, xa: Tensor | None, *, out: Tensor | None = None) -> Tensor:
        """total (T, outputs) + linear ``index`` of x, written to ``out`` or new: the sum costs no pass of its own."""
        y = torch.addmm(total, x, self.weights[index].t(), out=out)
        bias = self._linears[index].base.bias
        if bias is not None:
            y += bias
        return self._adapt_(index, y, xa, WHOLE)

    def _adapt_(self, index: int, y: Tensor, xa: Tensor | None, rows: slice) -> Tensor:
        b = self._b[index]
        return y if b is None else y.addmm_(xa[:, self._projections.slots[index]], b[rows].t())

    def new_dxa(self, like: Tensor) -> Tensor | None:
        """Room for the gradient of ``narrow``'s output, (T, ranks), filled by ``pull``."""
        return None if self._a is None else like.new_zeros(like.shape[0], self._projections.rank)

    def pull(
        self, index: int, dy: Tensor, dxa: Tensor | None, dx: Tensor | None = None, rows: slice = WHOLE, *,
        wants_dx: bool = True, out: Tensor | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Of outputs ``rows``: adds dy sB to ``dxa``; dy W, added in place to ``dx`` (T, inputs) where there is one,
        written to ``out`` or new otherwise."""
        b = self._b[index]
        if b is not None:
            dxa[:, self._projections.slots[index]].addmm_(dy, b[rows])
        if not wants_dx:
            return None
        weight = self.weights[index][rows]
        return torch.mm(dy, weight, out=out) if dx is None else dx.addmm_(dy, weight)

    def widen(self, dxa: Tensor | None, dx: Tensor) -> Tensor:
        """dx + dxa A, in place: what the adapters, all of them, pass on to the input."""
        return dx if self._a is None else dx.addmm_(dxa, self._a)

    def count_b(self, index: int, dy: Tensor, xa: Tensor | None, rows: slice = WHOLE) -> None:
        """Add dy^T (x A^T) to the gradient of B."""
        b = self._b[index]
        if b is None:
            return
        if self._db[index] is None:
            self._db[index] = torch.zeros_like(b, dtype=wide_dtype(b.dtype))
        self._db[index][rows] += wide_matmul(dy.t(), xa[:, self._projections.slots[index]])

    def count_a(self, x: Tensor, dxa: Tensor | None) -> None:
        """Add dxa^T x to the gradients of the A's."""
        if self._a is not None:
            da = wide_matmul(dxa.t(), x)
            self._da = da if self._da is None else self._da.add_(da)

    def gradients(self) -> list[Tensor]:
        """Of ``Projections.parameters``, in their dtypes."""
        grads: list[Tensor] = []
        for linear, slot, db in zip(self._linears, self._projections.slots, self._db):
            if linear.rank:
                grads.append(self._da[slot].to(linear.lora_a.dtype))
                grads.append((db * linear.scaling).to(linear.lora_b.dtype))
        return grads
