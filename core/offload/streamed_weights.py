"""Frozen weights of the decoder layers wait in pinned host memory; the device holds two layers of them, the one at work
and the one on its way. core/model/load.py takes them there, `weight_streaming` lets the run bring them back.

    forward     layer 0      layer 1      layer 2      layer 3
    side        ----- 1 in ------ 2 in ------ 3 in
    backward    layer 3      layer 2      layer 1      layer 0
    side        ------------------ 1 in ------ 0 in

The tensors of layer i are views of slot i % 2 for the whole run: nothing is bound anew, only the numbers there change.
A hook in front of a layer's forward, and one on the gradient of its output, wait for the layer's own and ask for the
next in that direction, so that it does not matter who computes the layer, or whether backward runs its forward again.
Ours; the idea is ZeRO-Infinity's (arXiv 2104.07857).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from core.offload.copies import copies_of
from core.offload.host_slots import HostSlots
from core.offload.streamed_tables import StreamedTables
from planner.errors import ConfigError

NUM_SLOTS = 2
ALIGNMENT = 256  # bytes: what kernels ask of the address of an operand, and more


@dataclass(frozen=True, slots=True)
class _Piece:
    """One tensor of a layer: where it is kept, and its place in the layer's bytes."""

    owner: Any  # a module, or what holds the scales of a 4-bit weight
    name: str
    offset: int
    like: Tensor  # shape and dtype, no memory

    def of(self, flat: Tensor) -> Tensor:
        end = self.offset + self.like.numel() * self.like.element_size()
        return flat[self.offset : end].view(self.like.dtype).view(self.like.shape)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A layer in host memory."""

    slots: HostSlots
    flat: Tensor  # (bytes,) uint8
    pieces: tuple[_Piece, ...]


class StreamedWeights:
    """``take`` every layer, in their order, then ``open``; ``watch`` once the run is set up."""

    tables: StreamedTables | None = None  # embeddings and head, where they wait on the host too

    def __init__(self, device: torch.device) -> None:
        self.num_brought = self.num_bytes_brought = 0  # layers and bytes so far: the evidence of ``verify``
        self._device = device
        self._copies = copies_of(device)
        self._layers: list[_Waiting] = []
        self._slots: list[Tensor] = []
        self._there: list[int | None] = [None] * NUM_SLOTS  # the layer whose numbers are in each slot
        self._events: list[Any] = [None] * NUM_SLOTS
        self._at: int | None = None

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def host_bytes(self) -> int:
        return sum(layer.flat.numel() for layer in self._layers)

    @property
    def held_bytes(self) -> int:
        return sum(slot.numel() for slot in self._slots)

    def take(self, layer: nn.Module) -> None:
        """The next layer's weights go to host memory, and are used from there no more before ``open``.

        Raises:
            EnvironmentProblem: the driver does not pin that much.
        """
        tensors, pieces, offset = list(_frozen_tensors(layer)), [], 0
        for owner, name, tensor in tensors:
            pieces.append(_Piece(owner, name, offset, torch.empty_like(tensor, device="meta")))
            offset += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        slots = HostSlots(1, offset, device=self._device)
        flat = slots.view(0, torch.empty(offset, dtype=torch.uint8, device="meta"))
        for piece, (owner, name, tensor) in zip(pieces, tensors):
            piece.of(flat).copy_(tensor)
            _put(owner, name, tensor.new_empty(0))
        self._layers.append(_Waiting(slots, flat, tuple(pieces)))

    def open(self) -> None:
        """Room for two layers on the device, where from now on every layer's weights are."""
        size = max(layer.flat.numel() for layer in self._layers)
        self._slots = [
            torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(min(NUM_SLOTS, self.num_layers))
        ]
        for index, layer in enumerate(self._layers):
            for piece in layer.pieces:
                _put(piece.owner, piece.name, piece.of(self._slots[index % NUM_SLOTS]))

    def watch(self, layers: nn.ModuleList) -> Callable[[], None]:
        """Before each of ``layers`` computes, forward or backward, its weights are there. What takes that back."""
        handles = [
            handle
            for index, layer in enumerate(layers)
            for handle in (
                layer.register_forward_pre_hook(lambda *_, index=index: self.enter(index)),
                layer.register_forward_hook(self._watch_gradient(index)),
            )
        ]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    def _watch_gradient(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            tensor: Tensor = output[0] if isinstance(output, tuple) else output
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self.enter(index))

        return hook

    def enter(self, index: int) -> None:
        """Layer ``index`` is about to compute; the next one is asked for, upwards or downwards as the last step was."""
        if index == self._at:
            return
        goes_up = index == 0 or (self._at is not None and index > self._at)
        self._bring(index)
        self._copies.arrive(self._events[index % NUM_SLOTS])
        self._at = index
        ahead = index + 1 if goes_up else index - 1
        if 0 <= ahead < self.num_layers:
            self._bring(ahead)

    def _bring(self, index: int) -> None:
        slot = index % NUM_SLOTS
        if self._there[slot] == index:
            return
        flat = self._layers[index].flat
        # what the slot held has been used: its layer's work was given to the stream before
        self._events[slot] = self._copies.fill(self._slots[slot][: flat.numel()], flat)
        self._there[slot] = index
        self.num_brought += 1
        self.num_bytes_brought += flat.numel()

    def num_outside(self) -> int:
        """Frozen tensors of the layers that are in no slot."""
        places = {slot.untyped_storage()._cdata for slot in self._slots}
        tensors = (getattr(piece.owner, piece.name) for layer in self._layers for piece in layer.pieces)
        return sum(tensor.untyped_storage()._cdata not in places for tensor in tensors)

    def free(self) -> None:
        """Unpin. No copy may be under way."""
        for layer in self._layers:
            layer.slots.free()


def _frozen_tensors(layer: nn.Module) -> Iterator[tuple[Any, str, Tensor]]:
    """Parameters, and the scales of 4-bit ones, each with what it is an attribute of."""
    for module in layer.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                raise ConfigError(
                    f"weight_streaming, and {name} of a decoder layer is trained.",
                    why="What is trained has gradients and states, which would have to travel too.",
                    fix="Train adapters (lora or qlora), or remove weight_streaming.",
                )
            yield module, name, parameter
            scales = getattr(parameter, "quant_state", None)
            while scales is not None:  # with double quantisation these have scales, too
                yield scales, "absmax", scales.absmax
                scales = scales.state2 if scales.nested else None


def _put(owner: Any, name: str, tensor: Tensor) -> None:
    if isinstance(owner, nn.Module):
        getattr(owner, name).data = tensor  # the parameter stays what it is, with what it knows of its scales
    else:
        setattr(owner, name, tensor)
