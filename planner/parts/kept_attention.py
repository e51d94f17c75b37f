"""Attention outputs kept beside the layer inputs: what `gradient_checkpointing: {save_attention: true}` changes."""

from __future__ import annotations

from dataclasses import replace

from planner.effects import Drop, Effect, TermSpec
from planner.optimization import PlanContext
from planner.parts.activations import OTHERS
from planner.parts.offload import outputs_leave
from planner.parts.recompute import num_inputs_at_end, num_recomputed_layers, recomputes_last_layer
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
    setting = ctx.config.optimization("checkpoint_offload")
    leaves = outputs_leave(ctx.config, ctx.model)
    kept = setting.as_dict()["kept_layers"] if setting and leaves else s.N
    here = ", the others in host memory" if kept < s.N else ""
    added: list[TermSpec] = []
    for index, (instants, layers, own, arriving) in enumerate(_spread(ctx)):
        sizes = (
            ("output", min(layers, max(kept - own, arriving)), s.c * s.num_q, f"{s.c}q * T: attention output{here}"),
            ("log_sum_exp", layers, 4 * s.num_lse, "4H * T: log-sum-exp"),
        )
        added += [
            TermSpec(
                key=f"kept_attention.{name}.{index}", part="checkpoints", instants=instants, bytes=count * size,
                formula=f"{count} layers * {text}", source=_SOURCE,
            )
            for name, count, size, text in sizes
        ]  # fmt: skip
    return replace(
        checkpointing,
        add=(*checkpointing.add, *added),
        drop_work=(
            *checkpointing.drop_work,
            Drop(key="attention.recompute", formula="the output is kept"),
            Drop(key="attention.head_groups", formula="the output of each group is kept"),
        ),
    )


def _spread(ctx: PlanContext) -> tuple[tuple[frozenset[Instant], int, int, int], ...]:
    """Instants, how many layers have an output there that is counted nowhere else, whether that of the layer at work is
    among what it saves (1) or not (0), and whether that of the layer below is on its way from host memory."""
    num_layers, recomputed = ctx.sizes.N, num_recomputed_layers(ctx.config, ctx.model)
    last, at_end = frozenset[Instant]({"backward_end"}), num_inputs_at_end(ctx.config, ctx.model)
    if ctx.config.optimization("fake_parallel"):
        return (OTHERS, num_layers, 0, 0), (last, at_end, 0, 0)
    if recomputes_last_layer(ctx):
        return (_FORWARD, num_layers, 0, 0), (OTHERS - _FORWARD, num_layers - 1, 1, 1), (last, at_end - 1, 1, 1)
    return (_FORWARD, recomputed, 0, 0), (OTHERS - _FORWARD, recomputed, 0, 0), (last, at_end - 1, 1, 1)
