"""What gradient checkpointing per decoder layer changes: `core/optimizations/gradient_checkpointing.py` returns it."""

from __future__ import annotations

from planner.effects import Confine, Drop, Effect, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import OTHERS
from planner.parts.static import LAYER_LAUNCH_NS, elementwise_bytes
from planner.types import Instant

RECOMPUTED: frozenset[Instant] = frozenset({"layer_backward", "attention_backward", "backward_end"})


def checkpointing_effect(ctx: PlanContext) -> Effect:
    """One hidden state per layer from forward to its backward; the layer at work is recomputed in backward."""
    s = ctx.sizes
    plain = TermSpec(
        key="layer_forward.layer", part="activations", instants=frozenset({"layer_forward"}),
        bytes=s.c * (2 * s.d + 3 * s.f) * s.T,
        formula=f"{s.c}(2d + 3f) * T: residual, normed input, silu(gate), up, their product",
    )  # fmt: skip
    one_input = s.c * s.d * s.T
    return Effect(
        add=(
            TermSpec(
                key="layer_inputs", part="checkpoints", instants=OTHERS, bytes=s.N * one_input,
                formula=f"N * {s.c}d * T = {s.N} * {s.c} * {s.d} * {s.T}", basis="exact",
                source="transformers GradientCheckpointingLayer: the input of each decoder layer",
            ),
            TermSpec(
                key="layer_inputs.last", part="checkpoints", instants=frozenset({"backward_end"}), bytes=one_input,
                formula=f"{s.c}d * T = {s.c} * {s.d} * {s.T}, the first layer's", basis="exact",
            ),
            *((plain,) if ctx.config.method == "full" else ()),  # adapters bring their own
        ),
        drop=(
            Drop(key="other_layers.*", formula="saved tensors of the other layers are recomputed"),
            # norm 1 saves the layer's input itself when no fp32 copy is needed: counted in layer_inputs
            Drop(key="layer.alias.*", formula="the layer's input is kept once"),
            Drop(key="layer_forward.last", formula="no layer's saved tensors are alive in forward"),
        ),
        confine=(
            Confine(key="layer.*", instants=RECOMPUTED, formula="exists while its layer is recomputed"),
        ),
        add_work=(
            Work(
                key="gemm.recompute", kind="gemm", amount=2 * ctx.model.num_linear_parameters * s.T,
                formula="2 * linears * T: the forward of every layer again",
            ),
            Work(
                key="attention.recompute", kind="attention", amount=2 * s.N * s.q * s.L * s.T,
                formula="2 * N * q * L * T: causal attention forward again",
            ),
            Work(
                key="memory.recompute", kind="memory", amount=s.N * elementwise_bytes(s),
                formula="N * bytes of norms, RoPE, SwiGLU and sums, again",
            ),
            Work(
                key="overhead.recompute", kind="overhead", amount=s.N * LAYER_LAUNCH_NS, overlapped=True,
                formula=f"N * {LAYER_LAUNCH_NS} ns: the kernels of each layer's forward again",
            ),
        ),
    )  # fmt: skip
