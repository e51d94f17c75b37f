"""Weights, gradients and states as shards over all ranks, in numbers: `core/optimizations/fsdp.py` returns it.

As FSDP2 does it: a decoder layer is gathered before it computes, the next one while it does, and let go of after; the
root (embeddings, head, last norm) is gathered from the first forward to the end of backward; gradients are summed in
float32 and scattered. Source: torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

from planner.effects import Effect, Scale, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import SAVED
from planner.parts.adapters import layer_adapters
from planner.parts.optimizer import AT_STEP
from planner.parts.streaming import streamed_weights
from planner.types import Instant

AT_WORK: frozenset[Instant] = SAVED | {"evaluation_forward", "evaluation"}
BACKWARD: frozenset[Instant] = frozenset({"layer_backward", "attention_backward", "backward_end"})
SHARDED = ("weights.*", "optimizer.*", "step.*", "gradients.base.all", "gradients.base.end", "gradients.adapters.*")
REDUCE_BYTES = 4  # of a gradient on its way: float32


def fsdp_effect(ctx: PlanContext) -> Effect:
    s, config, ranks = ctx.sizes, ctx.config, ctx.config.parallel.world
    if ranks == 1:
        return Effect()
    weights = streamed_weights(config, ctx.model)  # a layer as it is stored: in 16 bit, or NF4
    adapters, element = layer_adapters(ctx)
    layer = weights.layer + element * adapters
    root = weights.embeddings + weights.final_norm
    is_full = config.method == "full"
    trained_layer, trained_root = (weights.layer // s.c, root // s.c) if is_full else (adapters, 0)
    table = s.c * s.V * s.d if is_full else 0
    shard = f"1/{ranks} of it"
    return Effect(
        add=(
            TermSpec(
                key="gathered.layers", part="communication", instants=AT_WORK, bytes=2 * layer + layer // ranks,
                formula=f"2 * {layer} + {layer} / {ranks}: the layer at work, the one on its way, what is sent of it",
                source="torch FSDP2, fully_shard of each layer",
            ),
            TermSpec(
                key="gathered.root", part="communication", instants=AT_WORK, bytes=root,
                formula=f"{root}: embeddings, head and last norm, gathered until backward ends",
                source="torch FSDP2, the root's reshard_after_forward is off",
            ),
            TermSpec(
                key="reduced.layers", part="communication", instants=BACKWARD,
                bytes=(s.c + 2 * REDUCE_BYTES) * trained_layer,
                formula=f"({s.c} + 2 * {REDUCE_BYTES}) * {trained_layer}: gradients of a layer, and those of two in "
                "float32 on their way",
                source="torch FSDP2, reduce-scatter",
            ),
            TermSpec(
                key="reduced.head", part="communication", instants=frozenset({"backward_end"}), bytes=table,
                formula=f"{s.c}V * d: the head's gradient, whole until the root's are scattered",
                source="torch FSDP2, reduce-scatter",
            ),
            TermSpec(
                key="reduced.root", part="communication", instants=AT_STEP,
                bytes=(2 * s.c + REDUCE_BYTES) * trained_root,
                formula=f"(2 * {s.c} + {REDUCE_BYTES}) * {trained_root}: the root and its gradients, whole, and these "
                "in float32 on their way, when backward ends",
                source="torch FSDP2, reduce-scatter",
            ),
        ),
        scale=tuple(Scale(key=key, numerator=1, denominator=ranks, formula=shard) for key in SHARDED),
        add_work=(
            Work(
                key="link.gathered", kind="link", overlapped=True,
                amount=(2 * s.N * layer + root) * (ranks - 1) // ranks,
                formula=f"(2N * {layer} + {root}) * (n - 1) / n: every layer in forward and in backward, the root once",
            ),
            Work(
                key="link.reduced", kind="link", overlapped=True,
                amount=REDUCE_BYTES * (s.N * trained_layer + trained_root) * (ranks - 1) // ranks,
                formula=f"{REDUCE_BYTES} * {s.N * trained_layer + trained_root} * (n - 1) / n: gradients, scattered",
            ),
        ),
    )  # fmt: skip
