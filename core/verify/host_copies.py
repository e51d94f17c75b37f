"""What the copies of layers' tensors to host memory hold on the device. Put in place by core/verify/cuda_device.py.

As core/offload/host_tensors.py does on a GPU: a tensor going out is held until the next one goes, one coming in is
asked for one layer ahead. Host memory is not counted here: its tensors are on the device "meta".
"""

from __future__ import annotations

import torch
from torch import Tensor


class MetaSlots:
    """In the place of HostSlots."""

    def __init__(self, num_slots: int, slot_bytes: int, *, device: torch.device) -> None:
        self.num_bytes = num_slots * slot_bytes

    def view(self, slot: int, like: Tensor) -> Tensor:
        return torch.empty_like(like, device="meta")

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
        return torch.empty_like(slot, device="cpu"), None

    def fill(self, x: Tensor, slot: Tensor) -> None: ...

    def arrive(self, event: None) -> None: ...
