"""Attention outputs kept beside the layer inputs: what `gradient_checkpointing: {save_attention: true}` changes."""

from __future__ import annotations

from dataclasses import replace

from planner.effects import Drop, Effect, TermSpec
from planner.optimization import PlanContext
from planner.parts.activations import OTHERS
from planner.parts.recompute import num_recomputed_layers, recomputes_last_layer
from planner.types import Instant

_FORWARD: frozenset[Instant] = frozenset({"layer_forward", "forward_loss", "loss_backward"})
_SOURCE = "core/attention/kept.py"


def keep_attention(ctx: PlanContext, checkpointing: Effect) -> Effect:
    """The effect of checkpointing with outputs and log-sum-exp of every layer kept, and no attention in the recompute.

    Only a recomputed layer has one, and the layer at work holds its own among its saved tensors. Head groups save none
    of their own and read the kept one in every layer.
    """
    s = ctx.sizes
    recomputed = num_recomputed_layers(ctx.config, ctx.model)
    if recomputed == 0:
        return checkpointing
    one = s.c * s.num_q + 4 * s.num_lse
    text = f"({s.c}q + 4H) * T = {one}: attention output and log-sum-exp of one layer"
    spread: tuple[tuple[frozenset[Instant], int], ...]
    if ctx.config.optimization("fake_parallel"):
        spread = ((OTHERS, s.N), (frozenset[Instant]({"backward_end"}), 1))
    elif recomputes_last_layer(ctx):
        spread = ((_FORWARD, s.N), (OTHERS - _FORWARD, s.N - 1))
    else:
        spread = ((OTHERS, recomputed),)
    return replace(
        checkpointing,
        add=(
            *checkpointing.add,
            *(
                TermSpec(
                    key=f"kept_attention.{index}", part="checkpoints", instants=instants, bytes=layers * one,
                    formula=f"{layers} * {text}", source=_SOURCE,
                )
                for index, (instants, layers) in enumerate(spread)
            ),
        ),
        drop_work=(
            *checkpointing.drop_work,
            Drop(key="attention.recompute", formula="the output is kept"),
            Drop(key="attention.head_groups", formula="the output of each group is kept"),
        ),
    )  # fmt: skip
