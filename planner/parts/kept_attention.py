"""Attention outputs kept beside the layer inputs: what `gradient_checkpointing: {save_attention: true}` changes."""

from __future__ import annotations

from dataclasses import replace

from planner.effects import Drop, Effect, TermSpec
from planner.optimization import PlanContext
from planner.parts.activations import OTHERS
from planner.types import Instant

_FORWARD: frozenset[Instant] = frozenset({"layer_forward", "forward_loss", "loss_backward"})
_SOURCE = "core/attention/kept.py"


def keep_attention(ctx: PlanContext, checkpointing: Effect) -> Effect:
    """The effect of checkpointing with outputs and log-sum-exp of every layer kept, and no attention in the recompute.

    The layer at work holds its own among its saved tensors; with head groups, which save none, it counts here.
    """
    s = ctx.sizes
    one = s.c * s.num_q + 4 * s.num_lse
    text = f"({s.c}q + 4H) * T = {one}: attention output and log-sum-exp of one layer"
    if ctx.config.optimization("fake_parallel"):
        spread = ((OTHERS, s.N), (frozenset[Instant]({"backward_end"}), 1))
    else:
        spread = ((_FORWARD, s.N), (OTHERS - _FORWARD, s.N - 1))
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
