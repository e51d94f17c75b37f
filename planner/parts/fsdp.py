"""Weights, gradients and states as shards over all ranks, in numbers: `core/optimizations/fsdp.py` returns it.

What core/parallel/sharded.py makes of torch's FSDP2 (torch.distributed.fsdp.fully_shard, _fsdp_param_group.py):

    layers     one is gathered into a buffer, and copied from there to its tensors; the next one's buffer is filled
               while it computes. In forward a buffer is let go of when the next layer has been copied
    root       embeddings, head and last norm, gathered from the first forward to the end of backward
    gradients  of a layer exist whole until its backward ends, are laid into a buffer of float32, summed and scattered;
               the buffer stays until the next layer's are ready. The root's, the head's among them, wait for the last
    loading    a group goes to the device whole, and its shard stays
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.effects import Drop, Effect, Scale, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import SAVED
from planner.parts.adapters import layer_adapters
from planner.parts.optimizer import AT_STEP, update_temporaries
from planner.parts.recompute import num_inputs_at_end, num_recomputed_layers
from planner.parts.sizes import evaluation_tokens
from planner.parts.streaming import streamed_weights
from planner.parts.tensors import Trained, trained_model
from planner.types import Instant

EVALUATION: frozenset[Instant] = frozenset({"evaluation_forward", "evaluation"})
TWO_LAYERS: frozenset[Instant] = frozenset(
    {"layer_forward", "layer_backward", "attention_backward", "backward_end", "evaluation_forward"}
)
ONE_LAYER: frozenset[Instant] = frozenset({"forward_loss", "loss_backward", "evaluation"})
BACKWARD: frozenset[Instant] = frozenset({"layer_backward", "attention_backward", "backward_end"})
MLP_BACKWARD: frozenset[Instant] = frozenset({"layer_backward", "backward_end"})
ATTENTION_BACKWARD: frozenset[Instant] = frozenset({"attention_backward"})
SHARDED = ("weights.*", "optimizer.*", "step.*", "gradients.base.all", "gradients.adapters.*")
REDUCE_BYTES = 4  # of a gradient on its way: float32
FSDP2 = "torch 2.13 FSDP2, _fsdp_param_group.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Bytes of the groups whole, and parameters of them that are trained, each of ``element`` bytes."""

    layer: int
    root: int
    trained_layer: int
    trained_root: int
    element: int


def fsdp_effect(ctx: PlanContext) -> Effect:
    s, ranks = ctx.sizes, ctx.config.parallel.world
    if ranks == 1:
        return Effect()
    groups = _groups(ctx)
    layer, root, reduced = groups.layer, groups.root, s.N * groups.trained_layer + groups.trained_root
    shard = f"1/{ranks} of it"
    return Effect(
        add=(
            *_gathered(ctx, groups),
            *_reduced(ctx, groups),
            *(_whole_gradients(ctx, groups) if ctx.config.method == "full" else ()),
        ),
        drop=tuple(
            Drop(key=f"gradients.base.{which}", formula="whole until the layer's backward ends, then a shard")
            for which in ("head", "upper", "end", "shared")
        ),
        scale=tuple(Scale(key=key, numerator=1, denominator=ranks, formula=shard) for key in SHARDED),
        add_work=(
            Work(
                key="link.gathered", kind="link", overlapped=True,
                amount=(2 * s.N * layer + root) * (ranks - 1) // ranks,
                formula=f"(2N * {layer} + {root}) * (n - 1) / n: every layer in forward and in backward, the root once",
            ),
            Work(
                key="link.reduced", kind="link", overlapped=True, amount=REDUCE_BYTES * reduced * (ranks - 1) // ranks,
                formula=f"{REDUCE_BYTES} * {reduced} * (n - 1) / n: gradients, scattered",
            ),
        ),
    )  # fmt: skip


def _groups(ctx: PlanContext) -> _Groups:
    s, config = ctx.sizes, ctx.config
    weights = streamed_weights(config, ctx.model)
    adapters, element = layer_adapters(ctx)
    root = weights.embeddings + weights.final_norm
    if config.method == "full":
        return _Groups(
            layer=weights.layer, root=root, trained_layer=weights.layer // s.c, trained_root=root // s.c, element=s.c
        )
    return _Groups(
        layer=weights.layer + element * adapters, root=root, trained_layer=adapters, trained_root=0, element=element
    )


def _gathered(ctx: PlanContext, groups: _Groups) -> tuple[TermSpec, ...]:
    s, layer, root, whole = ctx.sizes, groups.layer, groups.root, max(groups.layer, groups.root)
    made, evaluated = (_made_by_a_layer(ctx, tokens) for tokens in (s.T, evaluation_tokens(ctx)))
    return (
        TermSpec(
            key="gathered.layers", part="communication", instants=TWO_LAYERS, bytes=2 * layer,
            formula=f"2 * {layer}: the layer at work, and a buffer: the next one's, in forward its own", source=FSDP2,
        ),
        TermSpec(
            key="gathered.waiting", part="communication", instants=ONE_LAYER, bytes=layer,
            formula=f"{layer}: the last layer's buffer, before and after the loss", source=FSDP2,
        ),
        TermSpec(
            key="gathered.ahead", part="communication", instants=frozenset({"layer_forward"}),
            bytes=max(0, layer - made),
            formula=f"{layer} - {made}: the buffer of the layer before while the next one's is copied to its tensors; "
            "less what a layer makes, which is not there then",
            source=FSDP2,
        ),
        TermSpec(
            key="gathered.evaluation", part="communication", instants=frozenset({"evaluation_forward"}),
            bytes=max(0, whole - evaluated),
            formula=f"{whole} - {evaluated}: the same, or the root's buffer beside the first layer's", source=FSDP2,
        ),
        TermSpec(
            key="gathered.root", part="communication", instants=SAVED | EVALUATION, bytes=root,
            formula=f"{root}: embeddings, head and last norm, gathered until backward ends", source=FSDP2,
        ),
        TermSpec(
            key="gathered.load", part="communication", instants=frozenset({"load"}), bytes=whole,
            formula=f"{whole}: the largest group, whole on the device before it is cut",
            source="core/parallel/sharded.py",
        ),
        TermSpec(
            key="gathered.save", part="communication", instants=frozenset({"save"}),
            bytes=REDUCE_BYTES * s.V * s.d if groups.trained_root else 0,
            formula=f"{REDUCE_BYTES}V * d: the largest tensor or state, gathered to be written",
            source="core/parallel/sharded.py, gather",
        ),
    )  # fmt: skip


def _reduced(ctx: PlanContext, groups: _Groups) -> tuple[TermSpec, ...]:
    """Of a layer, adapters or all of it: while the one below it runs backward."""
    s = ctx.sizes
    buffer = REDUCE_BYTES * groups.trained_layer
    lowest = _kept_by_the_lowest(ctx)
    inputs = max(0, min(2, s.N) - num_inputs_at_end(ctx.config, ctx.model)) if groups.trained_root else 0
    return (
        TermSpec(
            key="reduced.layers", part="communication", instants=BACKWARD, bytes=buffer,
            formula=f"{REDUCE_BYTES} * {groups.trained_layer}: gradients of the layer above in float32, on their way",
            source=FSDP2,
        ),
        TermSpec(
            key="gathered.second", part="activations", instants=frozenset({"backward_end"}), bytes=inputs * lowest,
            formula=f"{inputs} * {lowest}: what the lowest layer keeps while the second, with one more buffer, is at "
            "work",
        ),
    )  # fmt: skip


def _made_by_a_layer(ctx: PlanContext, tokens: int) -> int:
    """Bytes of its forward that are gone when it is done: at least q, k, v and output, or what the MLP makes."""
    s, config = ctx.sizes, ctx.config
    attention = 0 if config.optimization("fake_parallel") else s.c * (2 * s.q + 2 * s.kv)
    return max(attention, 0 if config.optimization("tiled_mlp") else 3 * s.c * s.f) * tokens


def _kept_by_the_lowest(ctx: PlanContext) -> int:
    """At least: of a layer, for its backward."""
    s, config = ctx.sizes, ctx.config
    if config.optimization("checkpoint_offload") is not None:
        return 0
    if num_recomputed_layers(config, ctx.model) > 0:
        return s.c * s.d * s.T
    attention = 0 if config.optimization("fake_parallel") else s.q + 2 * s.kv
    mlp = 0 if config.optimization("tiled_mlp") else 2 * s.f
    return s.c * (mlp + attention + s.d) * s.T


def _whole_gradients(ctx: PlanContext, groups: _Groups) -> tuple[TermSpec, ...]:
    """Of full fine-tuning."""
    s, ranks, trained = ctx.sizes, ctx.config.parallel.world, trained_model(ctx.model, ctx.sizes.c)
    element, layer = groups.element, groups.trained_layer
    attention = 0 if ctx.config.optimization("fake_parallel") else s.c * (4 * s.q + 4 * s.kv + s.d) * s.T
    pieces = 4 if ctx.config.optimization("liger") else 6  # of the MLP's width, at its backward's fullest
    mlp = 0 if ctx.config.optimization("tiled_mlp") else pieces * s.c * s.f * s.T
    down, upper = trained.down_parameters, trained.upper_parameters
    done = 0 if ctx.config.gradient_accumulation_steps > 1 else max(0, s.N - 2) * (element * layer // ranks)
    root, text = _root_gradients(ctx, groups, trained)
    return (
        TermSpec(
            key="reduced.head", part="gradients", instants=BACKWARD, bytes=element * trained.early_parameters,
            formula=f"{s.c}V * d: the head's gradient, whole until the root's are scattered", source=FSDP2,
        ),
        TermSpec(
            key="reduced.mlp", part="gradients", instants=MLP_BACKWARD, bytes=element * down,
            formula=f"{element} * {down}: down_proj's of the layer at work",
        ),
        TermSpec(
            key="reduced.attention", part="gradients", instants=ATTENTION_BACKWARD, bytes=element * upper,
            formula=f"{element} * {upper}: the MLP's and o_proj's of the layer at work",
        ),
        TermSpec(
            key="reduced.whole_layer", part="gradients", instants=ATTENTION_BACKWARD,
            bytes=max(0, element * (layer - upper) - attention),
            formula=f"{element} * {layer - upper} - {attention}: the rest of its gradients, less activations of "
            "attention, gone by then",
        ),
        TermSpec(
            key="reduced.lowest_layer", part="gradients", instants=frozenset({"backward_end"}),
            bytes=max(0, element * (layer - down) - mlp),
            formula=f"{element} * {layer - down} - {mlp}: the rest of its gradients, less activations of the MLP, gone "
            "by then",
        ),
        TermSpec(
            key="reduced.shards", part="gradients", instants=frozenset({"backward_end"}), bytes=done,
            formula=f"{max(0, s.N - 2)} * {element} * {layer} / {ranks}: shards of the layers above",
        ),
        TermSpec(
            key="reduced.root", part="communication", instants=AT_STEP, bytes=root, formula=text, source=FSDP2,
        ),
    )  # fmt: skip


def _root_gradients(ctx: PlanContext, groups: _Groups, trained: Trained) -> tuple[int, str]:
    """The end of backward: the embeddings' gradient is formed beside the gathered root and the head's, then all of the
    root's are laid into float32; beyond what the update holds, which comes after."""
    s, ranks, element = ctx.sizes, ctx.config.parallel.world, groups.element
    table, buffer = element * trained.early_parameters, REDUCE_BYTES * groups.trained_layer
    tied = 1 if ctx.model.tie_word_embeddings else 0  # the sum of both contributions
    formed = groups.root + max((2 + tied) * table, 2 * table + s.c * s.d * s.T) + buffer
    laid_out = (element + REDUCE_BYTES) * groups.trained_root
    update, _ = update_temporaries(ctx, trained, largest=trained.largest, updated=trained.num_parameters)
    counted = update // ranks + element * groups.trained_root // ranks
    return max(
        (max(0, formed - counted), f"{formed} - {counted}: gathered root, both tables' gradients, the lowest layer's"),
        (max(0, laid_out - counted), f"({element} + {REDUCE_BYTES}) * {groups.trained_root} - {counted}: the root's"),
    )
