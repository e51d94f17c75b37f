"""What Liger's kernels save and read less: `core/optimizations/liger.py` returns it.

Source: liger-kernel 0.8 ops/rms_norm.py (saves its input and 1/rms, writes the input's gradient over the output's),
ops/swiglu.py (saves gate and up, writes their gradients over them), ops/rope.py (in place).
"""

from __future__ import annotations

from planner.effects import Drop, Effect, Scale, TermSpec
from planner.optimization import PlanContext
from planner.parts.activations import MLP_BACKWARD, SAVED, SAVED_BY_MLP, both_layers
from planner.parts.mlp_moments import without_adapters
from planner.parts.recompute import last_norm_term, num_recomputed_layers
from planner.parts.sizes import Sizes
from planner.parts.static import elementwise_bytes

_SOURCE = "liger-kernel 0.8"


def liger_effect(ctx: PlanContext, *, rms_norm: bool, swiglu: bool, rope: bool) -> Effect:
    s = ctx.sizes
    swiglu = swiglu and ctx.model.experts is None  # experts compute their own
    add: list[TermSpec] = []
    drop: list[Drop] = []
    if rms_norm and s.is_half:
        for layers in ("layer", "other_layers"):
            drop += [Drop(key=f"{layers}.{norm}", formula="no fp32 copy") for norm in ("norm1", "norm2")]
            drop += [
                Drop(key=f"{layers}.trainable.{norm}", formula="the weight's gradient is made of the input")
                for norm in ("norm1", "norm2")
            ]
        text = f"{s.c}d * T: the layer's input, where checkpointing does not keep it anyway"
        add += both_layers(s, "alias.norm1", "activations", SAVED, s.c * s.d * s.T, text, source=_SOURCE)
        add += both_layers(s, "liger.norm1", "activations", SAVED, 4 * s.T, "4 * T: 1/rms", source=_SOURCE)
        add += both_layers(
            s, "liger.norm2", "activations", SAVED_BY_MLP, (s.c * s.d + 4) * s.T,
            f"({s.c}d + 4) * T: the MLP norm's input, and 1/rms", source=_SOURCE,
        )  # fmt: skip
        if ctx.model.qk_norm:
            width, heads = s.q + s.kv, s.H + ctx.model.num_kv_heads
            drop += [
                Drop(key=f"{layers}{key}", formula="no fp32 copy, and none normed for the weights")
                for key in (".attention.qk_norm", ".trainable.attention.qk_norm")
                for layers in ("layer", "other_layers")
            ]
            drop.append(Drop(key="attention_backward.qk_norm", formula="its gradient is written over what is there"))
            add += both_layers(
                s, "attention.liger_qk_norm", "activations", SAVED, (s.c * width + 4 * heads) * s.T,
                f"({s.c}(q + kv) + 4(H + K)) * T: q and k before norm, and 1/rms", source=_SOURCE,
            )  # fmt: skip
        drop.append(Drop(key="layer_forward.last", formula="the last norm makes nothing but its output"))
        if ctx.config.method == "full" and num_recomputed_layers(ctx.config, ctx.model) == 0:
            add.append(last_norm_term(ctx))
        drop.append(Drop(key="final_norm", formula="no fp32 copy"))
        drop.append(Drop(key="final_norm.trainable", formula="the weight's gradient is made of the input"))
        add.append(
            TermSpec(
                key="liger.final_norm", part="activations", instants=frozenset({"forward_loss", "loss_backward"}),
                bytes=s.c * s.d * s.T, formula=f"{s.c}d * T: the last norm's input", source=_SOURCE,
            )
        )  # fmt: skip
    if swiglu:
        drop += [Drop(key=f"{layers}.mlp", formula="silu(gate) is not saved") for layers in ("layer", "other_layers")]
        add += both_layers(
            s, "liger.mlp", "activations", SAVED_BY_MLP, 2 * s.c * s.f * s.T, f"2 * {s.c}f * T: gate, up",
            source=_SOURCE,
        )  # fmt: skip
        drop.append(Drop(key="layer_backward.mlp", formula="gradients are written over gate and up"))
        # a trained down projection still holds its input when it makes the gradient of it
        inputs = 1 if ctx.config.method == "full" else 0
        add.append(
            TermSpec(
                key="layer_backward.liger_mlp", part="activations", instants=MLP_BACKWARD,
                bytes=(without_adapters(s, fuses_swiglu=True) + inputs * s.c * s.f) * s.T,
                formula=f"{s.c}(d + f) * T: gradients of residual and product"
                + (f"; {s.c}f * T: the product, for down's weight" if inputs else ""),
                source=_SOURCE,
            )
        )  # fmt: skip
        in_sum = ctx.config.gradient_accumulation_steps > 1 and ctx.config.optimization("tiled_mlp") is None
        if inputs and in_sum:  # without accumulation it is counted as what it becomes, tiles have sums of their own
            add.append(
                TermSpec(
                    key="layer_backward.liger_down", part="gradients", instants=MLP_BACKWARD, bytes=s.c * s.d * s.f,
                    formula=f"{s.c}d * f: down's gradient, beside the sum that it is added to", source=_SOURCE,
                )
            )  # fmt: skip
    numerator, denominator = _bytes(s, rms_norm, swiglu, rope), elementwise_bytes(s)
    text = "norms, SwiGLU and RoPE in one pass each"
    return Effect(
        add=tuple(add),
        drop=tuple(drop),
        scale_work=tuple(
            Scale(key=key, numerator=numerator, denominator=denominator, formula=text, source=_SOURCE)
            for key in ("memory.layers", "memory.recompute")
        ),
    )


def _bytes(s: Sizes, rms_norm: bool, swiglu: bool, rope: bool) -> int:
    """planner/parts/static.py, elementwise_bytes, with each fused op reading its inputs and writing its output once."""
    norms = 2 * s.c * s.d if rms_norm else (4 * s.c + 32) * s.d
    rotation = (2 if rope else 10) * s.c * (s.q + s.kv)
    product = (3 if swiglu else 5) * s.c * s.f
    return (2 * norms + rotation + product + 6 * s.c * s.d + s.c * s.routed) * s.T
