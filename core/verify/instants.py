"""Which of the planner's instants a run is in, told by hooks on the model and by the trainer's meter.

Called by core/verify/dry_run.py. A forward is a "layer_forward" until the last norm is done, then a "forward_loss". A
backward is a "loss_backward" until the last decoder layer has its output's gradient, then one instant after the other
as gradients reach the layers. Two phases are no instants of the planner: "middle_layers", between the last and the
first, and "embedding_backward", when the embeddings' gradient is formed and every other one is there. With the layer
engine the modules of the layers are still called, so that their outputs tell the same; attention is no module there,
and the engine's own attention backward of the last layer tells "attention_backward".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from core.attention.register import window_of
from planner.types import Instant

if TYPE_CHECKING:
    from core.layer.decoder_layer import DecoderLayer
    from core.layer.engine import LayerEngine

Phase = Instant | Literal["middle_layers", "embedding_backward"]
_BEGIN: dict[str, Instant] = {
    "load": "load", "forward": "layer_forward", "backward": "loss_backward", "step": "optimizer_step",
    "evaluation": "evaluation_forward", "save": "save",
}  # fmt: skip


class InstantMeter:
    """What the trainer takes for a MemoryMeter (core/train/memory.py)."""

    last_instant = None

    def __init__(self, enter: Callable[[Phase], None]) -> None:
        self.enter = enter

    @contextmanager
    def during(self, instant: str) -> Iterator[None]:
        self.enter(_BEGIN[instant])
        yield

    def rows(self, step: int) -> list[dict[str, Any]]:
        return []


def watch(
    decoder: nn.Module, enter: Callable[[Phase], None], *, num_lowest: int = 1, engine: LayerEngine | None = None
) -> None:  # fmt: skip
    """Hooks on a decoder whose ``layers`` have a ``self_attn``; they change no tensor and keep none. ``num_lowest``: of
    the layers whose backward is "backward_end". ``engine``: what computes the layers, where modules do not."""
    layers = list(decoder.layers)
    decoder.register_forward_pre_hook(lambda *_: enter(_forward()))
    decoder.register_forward_hook(lambda *_: enter("forward_loss" if torch.is_grad_enabled() else "evaluation"))
    # the gradient of a layer's output arrives: its MLP is next; that of its attention's output: the MLP is done
    for layer in layers[num_lowest:-1]:
        _on_gradient(layer, lambda: enter("middle_layers"))
    for layer in layers[: min(num_lowest, max(1, len(layers) - 1))]:
        _on_gradient(layer, lambda: enter("backward_end"))
    embeddings = decoder.get_input_embeddings()
    if embeddings.weight.requires_grad:
        _on_gradient(embeddings, lambda: enter("embedding_backward"))
    if len(layers) > 1:
        _on_gradient(layers[-1], lambda: enter("layer_backward"))
        if engine is None:
            _on_gradient(layers[-1].self_attn, lambda: enter("attention_backward"))
            window = window_of(layers[-1].self_attn)
            for layer in [one for one in layers[num_lowest:-1] if window_of(one.self_attn) != window][-1:]:
                _on_gradient(layer.self_attn, lambda: enter("attention_backward"))  # it may hold more
        else:
            _before_attention_backward(engine.layers[-1].layer, lambda: enter("attention_backward"))


def _forward() -> Phase:
    return "layer_forward" if torch.is_grad_enabled() else "evaluation_forward"


def _on_gradient(module: nn.Module, act: Callable[[], None]) -> None:
    def watch_output(_module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor: Tensor = output[0] if isinstance(output, tuple) else output
        if tensor.requires_grad:
            tensor.register_hook(lambda _: act())

    module.register_forward_hook(watch_output)


def _before_attention_backward(layer: DecoderLayer, act: Callable[[], None]) -> None:
    """The layer engine runs a layer's backward in one node of the graph: MLP, then attention, by a method each."""
    run = layer._attention_backward

    def told(*args: Any, **kwargs: Any) -> list[Tensor]:
        act()
        return run(*args, **kwargs)

    layer._attention_backward = told
