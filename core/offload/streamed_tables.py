"""Embeddings and head in pinned host memory: `weight_streaming: streamed`. core/model/placement.py takes them there.

Of the embeddings the rows of a batch are gathered on the host and sent; the head comes whole when the loss is formed,
and goes when it is. With the chunked loss, which forms its gradients in the forward, it comes once a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from core.offload.copies import copies_of
from core.offload.host_slots import HostSlots


class StreamedTables:
    """Of a causal LM; they are frozen, and may be one. What is on "meta" gets memory, its numbers are the caller's."""

    def __init__(self, causal_lm: nn.Module, device: torch.device) -> None:
        """
        Raises:
            EnvironmentProblem: the driver does not pin that much.
        """
        self.num_heads_brought = 0  # so far: the evidence of ``verify``
        self._embeddings: nn.Module = causal_lm.get_input_embeddings()  # type: ignore[operator]
        self._head: nn.Module = causal_lm.get_output_embeddings()  # type: ignore[operator]
        self._copies = copies_of(device)
        self._slots: list[HostSlots] = []
        is_tied = self._head.weight is self._embeddings.weight
        self._embeddings.weight = self._on_host(self._embeddings.weight, device)
        self._head.weight = self._embeddings.weight if is_tied else self._on_host(self._head.weight, device)

    def _on_host(self, weight: Tensor, device: torch.device) -> nn.Parameter:
        slots = HostSlots(1, weight.numel() * weight.element_size(), device=device)
        host = slots.view(0, torch.empty_like(weight, device="meta"))
        if not weight.is_meta:
            host.copy_(weight)
        self._slots.append(slots)
        return nn.Parameter(host, requires_grad=False)

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """On the host."""
        return tuple(dict.fromkeys((self._embeddings.weight, self._head.weight)))

    @property
    def host_bytes(self) -> int:
        return sum(slots.num_bytes for slots in self._slots)

    def head(self) -> Tensor:
        """(V, d) on the device, a copy that the caller lets go."""
        weight, event = self._copies.receive(self._head.weight.data)
        self._copies.arrive(event)
        self.num_heads_brought += 1
        return weight

    def watch(self) -> Callable[[], None]:
        """From now on the embeddings' module takes ids of any device and gives rows on the device. What undoes that."""
        stock = self._embeddings.forward

        def rows(ids: Tensor) -> Tensor:
            gathered, event = self._copies.receive(stock(ids.cpu()))
            self._copies.arrive(event)
            return gathered

        self._embeddings.forward = rows  # type: ignore[method-assign]
        return lambda: self._embeddings.__dict__.pop("forward")

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, the model can be sent to the device without them."""
        modules = dict.fromkeys((self._embeddings, self._head))
        weights = {module: module._parameters.pop("weight") for module in modules}
        try:
            yield
        finally:
            for module, weight in weights.items():
                module._parameters["weight"] = weight

    def free(self) -> None:
        for slots in self._slots:
            slots.free()
