"""Attention outputs that outlive a checkpointed layer, so that recomputing the layer does not attend again.

`gradient_checkpointing: {save_attention: true}` gives the run an AttentionKeeper. Every attention call asks it for its
cell: empty in the forward, which fills it; full in the recompute, which takes what is there instead of attending.
With head groups (core/attention/head_groups.py) a call has a cell for each group, read once more by their backward.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KeptOutput:
    """Output and log-sum-exp of one attention call, from its forward to its backward."""

    __slots__ = ("_pair",)

    def __init__(self) -> None:
        self._pair: tuple[Tensor, Tensor] | None = None

    def fill(self, out: Tensor, lse: Tensor) -> None:
        self._pair = out.detach(), lse.detach()

    def read(self) -> tuple[Tensor, Tensor] | None:
        """What the forward left, if it ran. Where a graph is being built, its node holds them from here on."""
        pair = self._pair
        if torch.is_grad_enabled():
            self._pair = None
        return pair


class AttentionKeeper:
    """The cells of the first ``num_layers`` layers. A layer says when it begins; its attention calls then ask in their
    fixed order."""

    def __init__(self, num_layers: int) -> None:
        self.num_reused = 0  # so far: the evidence of ``verify``
        self._layers: list[list[KeptOutput]] = [[] for _ in range(num_layers)]
        self._current: list[KeptOutput] | None = None
        self._next = 0
        self._is_recompute = False

    def begin(self, layer: int, *, is_recompute: bool) -> None:
        """``layer`` starts its forward, or its recompute inside a backward; without gradients nothing is kept, nor of
        layers beyond ``num_layers``."""
        self._next, self._is_recompute = 0, is_recompute
        if not torch.is_grad_enabled() or layer >= len(self._layers):
            self._current = None
            return
        if not is_recompute:
            self._layers[layer] = []  # also drops what a forward without a backward left
        self._current = self._layers[layer]

    def cell(self) -> KeptOutput | None:
        """Of the next attention call of the layer at work."""
        if self._current is None:
            return None
        if self._next == len(self._current):
            self._current.append(KeptOutput())
        self._next += 1
        self.num_reused += self._is_recompute
        return self._current[self._next - 1]
