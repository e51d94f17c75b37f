"""Our attention function for transformers, under the name "longfit".

core/model/load.py registers it before a model is built. The name is neutral on purpose: transformers takes every name
containing "flash" for a hub kernel, and builds a mask only for names it knows a mask for, so for ours it builds none.
The model's forward is given ``longfit_row=RowAttention(...)``, which transformers hands through to the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from core.attention.kept import AttentionKeeper, KeptOutput
from core.attention.sequence import SequenceAttention
from core.parallel.layout import SequenceLayout

ATTENTION_NAME = "longfit"


@dataclass(frozen=True, slots=True)
class RowAttention:
    """What an attention layer must know of the row at hand."""

    attention: SequenceAttention
    layout: SequenceLayout
    keeper: AttentionKeeper | None = None  # where outputs are kept from a layer's forward to its recompute

    def cell(self) -> KeptOutput | None:
        """Where the next attention call of the layer at work keeps its output, if it does."""
        return None if self.keeper is None else self.keeper.cell()

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, kept: KeptOutput | None, window: int | None
    ) -> Tensor:
        """q (1, H, L, D), k and v (1, K, L, D) after RoPE, a cell, and the layer's window -> (1, H, L, D)."""
        device_type = q.device.type
        if torch.is_autocast_enabled(device_type):  # autocast knows only torch's own operators, so it is done here
            dtype = torch.get_autocast_dtype(device_type)
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        return self.attention(q, k, v, self.layout, scale, kept, window)


def window_of(module: nn.Module) -> int | None:
    """Tokens that an attention module of transformers looks back, itself included; None: all of its sample.

    Not every family hands its window to the attention function: some (Qwen2-MoE) leave it to the mask.
    """
    config = module.config
    layer_types = getattr(config, "layer_types", None)
    slides = layer_types is None or layer_types[module.layer_idx] == "sliding_attention"
    return (getattr(config, "sliding_window", None) or None) if slides else None


def register_attention() -> None:
    """Make the name known to transformers; calling it again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, longfit_attention)


def longfit_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    longfit_row: RowAttention | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query (1, H, L, D), key and value (1, K, L, D) -> ((1, L, H, D), no weights). Called by transformers' layers.

    Raises:
        RuntimeError: the model is called without ``longfit_row``, as by ``generate``; or with what cannot be honoured:
            a mask, attention dropout, a window other than that of the module's config.
    """
    if longfit_row is None:
        raise RuntimeError(
            "attention 'longfit' is for training steps (core/train/forward.py); "
            "call model.set_attn_implementation('sdpa') before generating"
        )
    if attention_mask is not None:
        raise RuntimeError("attention 'longfit' takes no mask: samples are told apart by cu_seqlens")
    if dropout:
        raise RuntimeError(f"attention 'longfit' has no dropout, the model asks for {dropout}")
    window = window_of(module)
    if sliding_window not in (None, window):
        raise RuntimeError(f"the layer asks for a window of {sliding_window} tokens, its config says {window}")
    return longfit_row(query, key, value, scaling, longfit_row.cell(), window).transpose(1, 2), None
