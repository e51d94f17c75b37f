"""One tensor of each decoder layer waits in host memory from forward to backward: `checkpoint_offload` sends the inputs
of checkpointed layers there, and the attention outputs that are kept for them.

    forward     layer 0      layer 1      layer 2      layer 3 (kept)
    side        ----- x0 out ----- x1 out ----- x2 out
    backward    layer 3      layer 2      layer 1      layer 0
    side        x2 in ------ x1 in ------ x0 in

Copies run on a side stream beside compute. Going out, a tensor is held until the compute stream has waited for its
copy, one layer later; coming in, it is asked for one layer ahead. So two at most are on the GPU beside the kept ones,
always the same, whatever the copies' speed. On a CPU the copies are plain ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core.offload.copies import copies_of
from core.offload.host_slots import HostSlots


class HostTensors:
    """A tensor of each of ``num_layers`` layers; those of the last ``kept_layers`` stay where they are."""

    def __init__(self, num_layers: int, *, kept_layers: int, slot_bytes: int, device: torch.device) -> None:
        self.num_offloaded = max(0, num_layers - kept_layers)
        self.num_out = self.num_in = self.num_bytes_out = 0  # copies so far: the evidence of ``verify``
        self.slots = HostSlots(self.num_offloaded, slot_bytes, device=device)
        self._copies = copies_of(device)
        self._kept: dict[int, Tensor] = {}
        self._like: dict[int, Tensor] = {}  # shape and dtype of what a slot holds, no memory
        self._arriving: dict[int, tuple[Tensor, Any]] = {}

    def put(self, layer: int, x: Tensor) -> None:
        """In forward, in the order of the layers."""
        if layer == 0:  # what a forward without a backward left
            self._arriving.clear()
            self._kept.clear()
        if layer >= self.num_offloaded:
            self._copies.settle()
            self._kept[layer] = x.detach()
            return
        self._like[layer] = torch.empty_like(x, device="meta")
        self._copies.send(x.detach(), self.slots.view(layer, self._like[layer]))
        self.num_out += 1
        self.num_bytes_out += x.numel() * x.element_size()

    def get(self, layer: int) -> Tensor:
        """In backward, once, the values of the layer's tensor; that of the layer below is asked for."""
        if layer in self._kept:
            x = self._kept.pop(layer)
        else:
            x, event = self._arriving.pop(layer, None) or self._fetch(layer)
            self._copies.arrive(event)
            self.num_in += 1
        if 0 < layer <= self.num_offloaded and layer - 1 not in self._arriving:
            self._arriving[layer - 1] = self._fetch(layer - 1)
        return x

    def _fetch(self, layer: int) -> tuple[Tensor, Any]:
        return self._copies.receive(self.slots.view(layer, self._like[layer]))
