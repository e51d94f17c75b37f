"""MFU in one named convention, so that a share printed here can be compared. Called by planner/plan.py.

mfu_causal: FLOPs that the model needs, over what the card's datasheet promises in the same time. Recompute is not
counted (it is work, not progress), attention is counted once and causal (half of the score matrix), and gradients of
frozen weights are not counted: LoRA needs 4 N S + 4 H S + 3.5 a, full training 6 N S + 6 H S + 3.5 a, where N are the
active linear weights, H the head's, S the tokens and a the causal forward of attention.
"""

from __future__ import annotations

from planner.optimization import PlanContext

CONVENTION = "model FLOPs without recompute, causal attention once, over the dense 16-bit datasheet peak"


def model_flops(ctx: PlanContext) -> float:
    """Of one rank in one micro-batch, without the adapters' own products (about 2 %)."""
    s, model = ctx.sizes, ctx.model
    weights = model.num_active_linear_parameters + model.vocab_size * model.hidden_size
    attention = 2 * s.N * s.q * s.span * s.T
    passes = 6 if ctx.config.method == "full" else 4
    return passes * weights * s.T + 3.5 * attention


def mfu_causal(ctx: PlanContext, seconds_per_step: float) -> float | None:
    """None without a datasheet peak: on a CPU."""
    peak = ctx.cluster.gpu.peak_flops
    if peak is None:
        return None
    return ctx.config.gradient_accumulation_steps * model_flops(ctx) / (seconds_per_step * peak)
