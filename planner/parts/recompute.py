"""What gradient checkpointing per decoder layer changes: `core/optimizations/gradient_checkpointing.py` returns it.

Of N layers the first R are recomputed in backward, the last N - R (the knob ``kept_layers``) keep their tensors. The
last layer runs backward first, when every saved tensor is there, so a kept one is at the peak with all that it saved,
and the fullest recompute comes later, beside R layer inputs only.
"""

from __future__ import annotations

from planner.effects import Confine, Drop, Effect, Scale, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import OTHERS, SAVED, WITHOUT_GRAPH, mlp_pieces
from planner.parts.launches import LAYER_RECOMPUTE, launch_work
from planner.parts.static import elementwise_bytes
from planner.types import Instant, ModelSpec, RunConfig

RECOMPUTED: frozenset[Instant] = frozenset({"layer_backward", "attention_backward", "backward_end"})


def num_recomputed_layers(config: RunConfig, model: ModelSpec) -> int:
    """R: the decoder layers that run forward again in backward."""
    setting = config.optimization("gradient_checkpointing")
    if setting is None:
        return 0
    kept: int = setting.as_dict().get("kept_layers", 0)
    return max(0, model.num_layers - kept)


def recomputes_last_layer(ctx: PlanContext) -> bool:
    return num_recomputed_layers(ctx.config, ctx.model) == ctx.model.num_layers


def num_inputs_at_end(config: RunConfig, model: ModelSpec) -> int:
    """How many layers still have their inputs at ``backward_end``. The first layer's backward is the fullest where
    everything is trained; its input needs no gradient of a run with adapters, so the second layer's is fuller there."""
    return min(num_recomputed_layers(config, model), 1 if config.method == "full" else 2)


def has_liger_norms(ctx: PlanContext) -> bool:
    liger = ctx.config.optimization("liger")
    return liger is not None and liger.as_dict()["rms_norm"] is True


def norm_copies_input(ctx: PlanContext) -> bool:
    """transformers' norm keeps a float32 copy of a 16-bit input, Liger's the input itself."""
    return ctx.sizes.is_half and not has_liger_norms(ctx)


def last_norm_bytes(ctx: PlanContext) -> int:
    """A token, at the end of the decoder's forward: input, normed and multiplied; and the embeddings, which the decoder
    holds to its end, unless they wait as the input of the first layer."""
    s = ctx.sizes
    if not s.is_half:
        return 8 * s.d
    saves_input = ctx.config.method == "full" and has_liger_norms(ctx)
    waits = num_recomputed_layers(ctx.config, ctx.model) > 0 or saves_input
    return ((2 * s.c if has_liger_norms(ctx) else 14) + (0 if waits else s.c)) * s.d


def last_norm_term(ctx: PlanContext) -> TermSpec:
    """In the place of layer_forward.last, which knows neither checkpointing nor Liger; adapters bring their own."""
    size = last_norm_bytes(ctx)
    return TermSpec(
        key="layer_forward.last_norm", part="activations", instants=frozenset({"layer_forward"}),
        bytes=size * ctx.sizes.T,
        formula=f"{size // ctx.sizes.d}d * T: the last norm's input, products and output",
    )  # fmt: skip


def checkpointing_effect(ctx: PlanContext) -> Effect:
    """One hidden state per recomputed layer from forward to its backward, in which that layer computes again."""
    s = ctx.sizes
    recomputed = num_recomputed_layers(ctx.config, ctx.model)
    if recomputed == 0:
        return Effect()
    one_input, at_end = s.c * s.d * s.T, num_inputs_at_end(ctx.config, ctx.model)
    count = "N" if recomputed == s.N else "R"
    last = _last_layer_recomputed(ctx) if recomputed == s.N else _last_layer_kept(ctx, s.N - recomputed)
    return Effect(
        add=(
            TermSpec(
                key="layer_inputs", part="checkpoints", instants=OTHERS, bytes=recomputed * one_input,
                formula=f"{count} * {s.c}d * T = {recomputed} * {s.c} * {s.d} * {s.T}", basis="exact",
                source="transformers GradientCheckpointingLayer: the input of each decoder layer",
            ),
            TermSpec(
                key="layer_inputs.last", part="checkpoints", instants=frozenset({"backward_end"}),
                bytes=at_end * one_input, basis="exact",
                formula=f"{at_end} * {s.c}d * T = {at_end} * {s.c} * {s.d} * {s.T}: of the lowest layers",
            ),
            *last.add,
        ),
        drop=last.drop,
        confine=last.confine,
        scale=last.scale,
        add_work=(
            Work(
                key="gemm.recompute", kind="gemm",
                amount=2 * ctx.model.num_active_linear_parameters * s.T * recomputed // s.N,
                formula=f"2 * linears * T * {recomputed} / {s.N}: the forward of {recomputed} layers again",
            ),
            Work(
                key="attention.recompute", kind="attention", amount=2 * recomputed * s.q * s.span * s.T,
                formula=f"2 * {count} * q * L * T: causal attention forward again",
            ),
            Work(
                key="memory.recompute", kind="memory", amount=recomputed * elementwise_bytes(s),
                formula=f"{count} * bytes of norms, RoPE, SwiGLU and sums, again",
            ),
            launch_work(
                "overhead.recompute", recomputed * LAYER_RECOMPUTE.ns, f"operators of {count} layers forward again"
            ),
        ),
    )  # fmt: skip


def _last_layer_recomputed(ctx: PlanContext) -> Effect:
    s = ctx.sizes
    plain = TermSpec(
        key="layer_forward.layer", part="activations", instants=frozenset({"layer_forward"}),
        bytes=s.c * (2 * s.d + mlp_pieces(s) * s.f) * s.T,
        formula=f"{s.c}(2d + {mlp_pieces(s)}f) * T: residual, normed input, {WITHOUT_GRAPH[mlp_pieces(s)]}",
    )  # fmt: skip
    return Effect(
        add=(plain,) if ctx.config.method == "full" else (),  # adapters bring their own
        drop=(
            Drop(key="other_layers.*", formula="saved tensors of the other layers are recomputed"),
            # norm 1 saves the layer's input itself when no fp32 copy is needed: counted in layer_inputs
            Drop(key="layer.alias.*", formula="the layer's input is kept once"),
            Drop(key="layer_forward.last", formula="no layer's saved tensors are alive in forward"),
        ),
        confine=(Confine(key="layer.*", instants=RECOMPUTED, formula="exists while its layer is recomputed"),),
    )


def _last_layer_kept(ctx: PlanContext, kept: int) -> Effect:
    s = ctx.sizes
    return Effect(
        add=(last_norm_term(ctx),) if ctx.config.method == "full" else (),
        drop=(Drop(key="layer_forward.last", formula="the embeddings wait as the first layer's input"),),
        scale=(
            Scale(
                key="other_layers.*", numerator=kept - 1, denominator=s.N - 1,
                formula=f"{kept} layers keep their tensors, the one at work among them; the others are recomputed",
            ),
        ),
        confine=(
            Confine(
                key="layer.alias.*", instants=SAVED - {"backward_end"},
                formula="the input of a recomputed layer is kept once",
            ),
        ),
    )  # fmt: skip
