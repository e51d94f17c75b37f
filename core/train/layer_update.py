"""`update: layer`: parameters are updated within the backward, a decoder layer as soon as its gradients are complete.

No more than one layer's gradients exist, and none is left for the step. The norm over all gradients is known only when
all are gone, so nothing can be clipped by it, and the gradients of several micro-batches cannot be summed
(planner/update_checks.py refuses both). Called by the trainer; planned in planner/parts/optimizer.py.

    final norm and head  ->  layer N-1  ->  ...  ->  layer 0  ->  embeddings, with the head where it is tied to them
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from core.train.optimizer import gradient_norm, reduce_gradients


class LayerUpdate:
    """Collective over all ranks, which sum the gradients of a part before they update it: every rank takes the parts in
    the same order, also one whose backward brings no gradient of some."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, world: int) -> None:
        """``model``: a causal LM of transformers, all of whose parameters ``optimizer`` has."""
        self.num_parts_in_backward = 0  # updated so far while a backward ran: the evidence
        self._optimizer, self._world = optimizer, world
        self._parts = [part for part in _parts(model) if part]
        self._begin()
        for index, part in enumerate(self._parts):
            for parameter in part:
                parameter.register_post_accumulate_grad_hook(lambda _, index=index: self._arrived(index))

    def finish(self) -> tuple[Tensor, Tensor]:
        """Update what the backward did not reach: no gradient counts as zero. Returns the norms of this rank's own
        gradients and of their sums over the ranks, as they were before their updates; scalars of float64."""
        for index in range(self._next, len(self._parts)):
            self._update(index)
        own, summed = (torch.linalg.vector_norm(torch.stack(norms)) for norms in zip(*self._norms))
        self._begin()
        return own, summed

    def _begin(self) -> None:
        """A step: no gradient has arrived."""
        self._missing = [len(part) for part in self._parts]
        self._next = 0  # the part to be updated
        self._norms: list[tuple[Tensor, Tensor]] = []

    def _arrived(self, index: int) -> None:
        """A gradient of part ``index`` is complete (torch calls it once a backward, tied weights with their sum)."""
        self._missing[index] -= 1
        while self._next < len(self._parts) and self._missing[self._next] == 0:
            self._update(self._next)
            self._next += 1
            self.num_parts_in_backward += 1

    @torch.no_grad()
    def _update(self, index: int) -> None:
        part = self._parts[index]
        if self._world == 1 and all(parameter.grad is None for parameter in part):
            return
        own = None if self._world == 1 else reduce_gradients(part)
        norm = gradient_norm(part)
        self._norms.append((norm if own is None else own.to(norm.dtype), norm))
        self._optimizer.step()  # of what has a gradient: this part
        for parameter in part:
            parameter.grad = None


def _parts(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """In the order in which a backward completes them."""
    decoder = model.get_decoder()  # type: ignore[operator]
    layers = [list(layer.parameters()) for layer in reversed(decoder.layers)]
    embeddings = list(decoder.get_input_embeddings().parameters())
    later = {id(parameter) for part in (*layers, embeddings) for parameter in part}
    yield [parameter for parameter in model.parameters() if id(parameter) not in later]
    yield from layers
    yield embeddings
