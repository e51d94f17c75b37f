"""What lives from load to the end: base weights; and what full training adds to them."""

from __future__ import annotations

from planner.effects import TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import OTHERS, SAVED
from planner.parts.cpu import uses_mapped_weights
from planner.parts.launches import LAYER_BACKWARD, LAYER_FORWARD, launch_work
from planner.parts.optimizer import trained_terms, trained_work
from planner.parts.sizes import Sizes
from planner.parts.tensors import trained_model
from planner.types import INSTANTS

INPUT_BYTES = 32  # ids, positions, labels and indices of targets, int64


def static_terms(ctx: PlanContext, s: Sizes) -> tuple[TermSpec, ...]:
    count = ctx.model.num_parameters
    instants = frozenset(INSTANTS) - (frozenset({"load"}) if uses_mapped_weights(ctx) else frozenset())
    return (
        TermSpec(
            key="weights.base", part="weights", instants=instants, bytes=s.c * count,
            formula=f"{s.c} * {count} parameters", basis="exact", source="config.json",
        ),
        *trained_terms(ctx, "base", trained_model(ctx.model, s.c)),
    )  # fmt: skip


def model_terms(s: Sizes, num_evaluation_tokens: int) -> tuple[TermSpec, ...]:
    """Per-token tensors outside the decoder layers."""
    rotated = "h" if s.rotary == s.h else f" * {s.rotary}"
    at_end = INPUT_BYTES + 2 * s.lowest_rotations * s.c * s.rotary
    rotations = 2 * s.rotations * s.c * s.rotary
    upper = INPUT_BYTES + rotations - at_end
    others = TermSpec(
        key="inputs.upper", part="activations", instants=OTHERS, bytes=upper * s.T,
        formula=f"{upper // (s.c * s.rotary)} * {s.c}{rotated} * T: cosine and sine of the upper layers' own",
    )  # fmt: skip
    return (
        TermSpec(
            key="inputs", part="activations", instants=SAVED, bytes=at_end * s.T,
            formula=f"({INPUT_BYTES} + {2 * s.lowest_rotations} * {s.c}{rotated}) * T: ids, positions, labels, "
            "targets; cosine and sine", source="core/parallel/layout.py, Shard",
        ),
        *((others,) if upper else ()),
        TermSpec(
            key="inputs.evaluation", part="activations", instants=frozenset({"evaluation_forward", "evaluation"}),
            bytes=INPUT_BYTES * num_evaluation_tokens,
            formula=f"{INPUT_BYTES} * {num_evaluation_tokens} tokens: ids, positions, labels, targets",
            source="core/parallel/layout.py, Shard",
        ),
        TermSpec(
            key="inputs.evaluation_rotations", part="activations", instants=frozenset({"evaluation_forward"}),
            bytes=rotations * num_evaluation_tokens,
            formula=f"{2 * s.rotations} * {s.c}{rotated} * {num_evaluation_tokens} tokens: cosine and sine"
            + (" of each type of layer" if s.rotations > 1 else "") + ", gone with the decoder",
        ),
        TermSpec(
            key="final_norm", part="activations", instants=frozenset({"forward_loss", "loss_backward"}),
            bytes=4 * s.d * s.T, formula=f"4d * T = 4 * {s.d} * {s.T}: the last norm's input, fp32",
        ),
        TermSpec(
            key="final_norm.trainable", part="activations", instants=frozenset({"forward_loss", "loss_backward"}),
            bytes=s.normed * s.d * s.T,
            formula=f"{s.normed}d * T = {s.normed} * {s.d} * {s.T}: normed, for the last norm's weight",
        ),
    )  # fmt: skip


def elementwise_bytes(s: Sizes) -> int:
    """Bytes read and written by one forward of one layer outside its matrix products, for T tokens: norms by way of
    fp32, RoPE, SwiGLU, residual sums, copies of the tokens for their experts."""
    norms, rope, swiglu, residual = (4 * s.c + 32) * s.d, 10 * s.c * (s.q + s.kv), 5 * s.c * s.f, 6 * s.c * s.d
    return (2 * norms + rope + swiglu + residual + s.c * s.routed) * s.T


def base_work(ctx: PlanContext, s: Sizes) -> tuple[Work, ...]:
    linears, head = ctx.model.num_active_linear_parameters, s.V * s.d
    causal = 2 * s.N * s.q * s.span * s.T  # QK^T and PV, half of them masked: 2 * (2 q L T) / 2
    return (
        *trained_work(ctx, "base", trained_model(ctx.model, s.c)),
        Work(key="gemm.forward", kind="gemm", amount=2 * linears * s.T, formula="2 * linears * T"),
        Work(key="gemm.input_gradient", kind="gemm", amount=2 * linears * s.T, formula="2 * linears * T"),
        Work(key="gemm.weight_gradient.layers", kind="gemm", amount=2 * linears * s.T, formula="2 * linears * T"),
        Work(key="gemm.head", kind="gemm", amount=4 * head * s.T, formula="4 * V * d * T: forward, input gradient"),
        Work(key="gemm.weight_gradient.head", kind="gemm", amount=2 * head * s.T, formula="2 * V * d * T"),
        Work(key="attention.forward", kind="attention", amount=causal, formula="2 * N * q * L * T, causal"),
        Work(
            key="attention.backward", kind="attention", amount=5 * causal // 2,
            formula="2.5 * 2 * N * q * L * T, causal",
        ),
        Work(
            key="memory.layers", kind="memory", amount=3 * s.N * elementwise_bytes(s),
            formula="3 * N * bytes of norms, RoPE, SwiGLU, sums, experts' copies: forward, and twice that in backward",
        ),
        launch_work(
            "overhead.launches", s.N * (LAYER_FORWARD.ns + LAYER_BACKWARD.ns), "operators of N layers, both ways"
        ),
    )  # fmt: skip
