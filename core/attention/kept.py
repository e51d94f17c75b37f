"""Attention outputs that outlive a checkpointed layer, so that recomputing the layer does not attend again.

`gradient_checkpointing: {save_attention: true}` gives the run an AttentionKeeper. Every attention call asks it for its
cell: empty in the forward, which fills it; full in the recompute, which takes what is there instead of attending.
With head groups (core/attention/head_groups.py) a call has a cell for each group, read once more by their backward.
`checkpoint_offload` lets the outputs wait in host memory, where a layer has one cell.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.offload.host_tensors import HostTensors


class KeptOutput:
    """Output and log-sum-exp of one attention call, from its forward to its backward. The output is with ``host``, as
    that of ``layer``, where there is one."""

    __slots__ = ("_host", "_layer", "_pair")

    def __init__(self, host: HostTensors | None = None, layer: int = 0) -> None:
        self._host, self._layer = host, layer
        self._pair: tuple[Tensor | None, Tensor] | None = None

    def fill(self, out: Tensor, lse: Tensor) -> None:
        if self._host is None:
            self._pair = out.detach(), lse.detach()
        else:
            self._host.put(self._layer, out)
            self._pair = None, lse.detach()

    def read(self) -> tuple[Tensor, Tensor] | None:
        """What the forward left, if it ran. Where a graph is being built, its node holds them from here on."""
        if self._pair is None:
            return None
        out, lse = self._pair
        if torch.is_grad_enabled():
            self._pair = None
        if out is None:
            assert self._host is not None, "fill left it there"
            out = self._host.get(self._layer)
        return out, lse


class AttentionKeeper:
    """The cells of the first ``num_layers`` layers. A layer says when it begins; its attention calls then ask in their
    fixed order."""

    def __init__(self, num_layers: int) -> None:
        self.num_reused = 0  # so far: the evidence of ``verify``
        self.host: HostTensors | None = None  # where outputs wait, if each layer makes one call
        self._layers: list[list[KeptOutput]] = [[] for _ in range(num_layers)]
        self._current: list[KeptOutput] | None = None
        self._layer = 0
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
        self._current, self._layer = self._layers[layer], layer

    def cell(self) -> KeptOutput | None:
        """Of the next attention call of the layer at work."""
        if self._current is None:
            return None
        if self._next == len(self._current):
            self._current.append(KeptOutput(self.host, self._layer))
        self._next += 1
        self.num_reused += self._is_recompute
        return self._current[self._next - 1]
