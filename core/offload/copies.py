"""Copies between host memory and the device: beside compute on a GPU, plain ones on a CPU. Used by host_tensors.py and
streamed_weights.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def copies_of(device: torch.device) -> Any:
    return SideStream(device) if device.type == "cuda" else InTurn()


class InTurn:
    """Plain copies."""

    def send(self, x: Tensor, slot: Tensor) -> None:
        slot.copy_(x)

    def settle(self) -> None: ...

    def receive(self, slot: Tensor) -> tuple[Tensor, None]:
        return slot.clone(), None

    def fill(self, x: Tensor, slot: Tensor) -> None:
        x.copy_(slot)

    def arrive(self, event: None) -> None: ...


class SideStream:
    """Copies on a stream of their own; the caller's stream waits for them, the host never does."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._leaving: tuple[Tensor, torch.cuda.Event] | None = None

    def send(self, x: Tensor, slot: Tensor) -> None:
        self.settle()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            slot.copy_(x, non_blocking=True)
            event = self._stream.record_event()
        self._leaving = x, event

    def settle(self) -> None:
        """Let go of what was sent before. Its memory may be written again after the wait, so not before the copy."""
        if self._leaving is not None:
            torch.cuda.current_stream(self._device).wait_event(self._leaving[1])
            self._leaving = None

    def receive(self, slot: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        x = torch.empty_like(slot, device=self._device)
        return x, self.fill(x, slot)

    def fill(self, x: Tensor, slot: Tensor) -> torch.cuda.Event:
        """``x``, on the device, is written once the work has ended that the caller's stream has been given so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            x.copy_(slot, non_blocking=True)
            return self._stream.record_event()

    def arrive(self, event: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)
