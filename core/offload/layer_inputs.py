"""Checkpointed layers whose inputs wait in host memory. `checkpoint_offload` puts it in the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from core.offload.host_tensors import HostTensors


def checkpoint_with(inputs: HostTensors, layer: int) -> Callable[..., Any]:
    """What a layer of transformers calls as its checkpointing function: ``f(forward, hidden_states, *others)``.

    torch's checkpoint would keep the hidden states itself. It is given an empty tensor in their place, which tells it
    the device whose generator to replay, and the layer gets its input from ``inputs`` when it is recomputed.
    """

    def run(forward: Callable[..., Any], hidden_states: Tensor, *others: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(hidden_states, *others)
        requires_grad = hidden_states.requires_grad
        first = [hidden_states]

        def compute(_: Tensor, *others: Any) -> Any:
            x = first.pop() if first else inputs.get(layer).requires_grad_(requires_grad)
            return forward(x, *others)

        inputs.put(layer, hidden_states)
        return checkpoint(compute, hidden_states.new_empty(0), *others, use_reentrant=False)

    return run
