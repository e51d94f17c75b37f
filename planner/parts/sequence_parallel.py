"""What Ulysses and ring attention add besides the smaller shard: exchange buffers and link traffic."""

from __future__ import annotations

from planner.effects import Effect, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import ATTENTION_BACKWARD, SAVED, both_layers
from planner.parts.adapters import target_names
from planner.parts.recompute import num_recomputed_layers
from planner.parts.sizes import Sizes
from planner.types import DTYPE_BYTES


def ulysses_effect(ctx: PlanContext, *, degree: int) -> Effect:
    if degree <= 1:
        return Effect()
    s = ctx.sizes
    exchanged = s.c * (2 * s.num_q + 2 * s.num_kv)  # q, k, v there and the output back, one way, forward
    # a recompute exchanges again, kept outputs or not; backward sends the gradients the same ways
    passes = 2 * s.N + num_recomputed_layers(ctx.config, ctx.model)
    gathered = both_layers(
        s, "attention.gathered", "communication", SAVED, s.c * s.q * s.T,
        f"{s.c}q * T: attention output back in this rank's tokens, for o_proj",
    )  # fmt: skip
    return Effect(
        add=(
            *(gathered if _saves_output_input(ctx, s) else ()),
            TermSpec(
                key="attention_backward.ulysses", part="communication", instants=ATTENTION_BACKWARD,
                bytes=2 * exchanged,
                formula=f"2 * {s.c} * (2q + 2kv) * T: send and receive buffers of the gradients of q, k, v and output",
                source="core/parallel/ulysses.py",
            ),
        ),
        add_work=(
            Work(
                key="link.ulysses", kind="link", amount=passes * exchanged * (degree - 1) // degree,
                formula=f"{passes} passes of a layer * {s.c}(2q + 2kv) * T * (U-1)/U",
            ),
        ),
    )  # fmt: skip


def ring_effect(ctx: PlanContext, *, degree: int) -> Effect:
    if degree <= 1:
        return Effect()
    s = ctx.sizes
    block = 2 * s.c * s.num_kv  # K and V of one rank
    setting = ctx.config.optimization("gradient_checkpointing")
    keeps_outputs = setting is not None and setting.as_dict().get("save_attention", False)
    again = 0 if keeps_outputs else num_recomputed_layers(ctx.config, ctx.model)
    return Effect(
        add=(
            TermSpec(
                key="attention_backward.ring", part="communication", instants=ATTENTION_BACKWARD,
                bytes=ring_buffer_bytes(s),
                formula=f"T * (2 * 2 * {s.c}kv + 2 * 2 * 4kv + 4q + 4H): K and V in flight twice, their gradients in "
                "fp32 twice, dq in fp32, log-sum-exp",
                source="core/parallel/ring.py",
            ),
        ),
        add_work=(
            Work(
                key="link.ring", kind="link", overlapped=True,
                amount=(degree - 1) * ((2 * s.N + again) * block + s.N * 8 * s.num_kv),
                formula=f"{degree - 1} hops * (K and V in {2 * s.N + again} passes of a layer, their fp32 gradients in "
                "N)",
            ),
        ),
    )  # fmt: skip


def ring_buffer_bytes(s: Sizes) -> int:
    in_flight = 2 * 2 * s.c * s.num_kv
    gradients = 2 * 2 * 4 * s.num_kv
    return in_flight + gradients + 4 * s.num_q + 4 * s.num_lse


def _saves_output_input(ctx: PlanContext, s: Sizes) -> bool:
    """Whether o_proj keeps its input as it is: when trained, or adapted without a cast (which keeps a copy instead)."""
    setting = ctx.config.adapters
    if setting is None:
        return True
    knobs = setting.as_dict()
    return "o_proj" in target_names(knobs["targets"], ctx.model.linears) and DTYPE_BYTES[knobs["adapter_dtype"]] == s.c
