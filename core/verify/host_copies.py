"""What the copies of layer inputs to host memory hold on the device. Put in place by core/verify/cuda_device.py.

As core/offload/layer_inputs.py does on a GPU: an input going out is held until the next one goes, an input coming in is
asked for one layer ahead. Host memory is not counted here: its tensors are on the device "meta".
"""

from __future__ import annotations

import torch
from torch import Tensor


class MetaSlots:
    """In the place of HostSlots."""

    def __init__(self, num_slots: int, slot_bytes: int, *, device: torch.device) -> None: ...

    def view(self, slot: int, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device="meta")

    def free(self) -> None: ...


class HostCopies:
    """In the place of the side stream."""

    def __init__(self) -> None:
        self._leaving: Tensor | None = None

    def send(self, x: Tensor, slot: Tensor) -> None:
        self._leaving = x

    def settle(self) -> None:
        self._leaving = None

    def receive(self, slot: Tensor) -> tuple[Tensor, None]:
        return torch.empty(slot.shape, dtype=slot.dtype), None

    def arrive(self, event: None) -> None: ...
