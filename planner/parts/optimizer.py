"""Gradients, optimizer states and the temporaries of the step, for whatever is trained: base weights or adapters."""

from __future__ import annotations

from planner.effects import TermSpec
from planner.optimization import PlanContext
from planner.types import INSTANTS, Instant


def trainable_terms(
    ctx: PlanContext, what: str, *, num_parameters: int, largest_tensor: int, element_bytes: int
) -> tuple[TermSpec, ...]:
    """``gradients.<what>``, ``optimizer.<what>`` and ``step.<what>``. torch.optim states have the parameters' dtype."""
    size = element_bytes * num_parameters
    instants: frozenset[Instant] = frozenset({"backward_end", "optimizer_step"})
    if ctx.config.gradient_accumulation_steps > 1:
        instants |= {"forward_loss", "loss_backward", "layer_backward", "attention_backward"}
    terms = [
        TermSpec(
            key=f"gradients.{what}", part="gradients", instants=instants, bytes=size,
            formula=f"{element_bytes} * {num_parameters}", basis="exact",
            source="zero_grad(set_to_none=True) frees them after the step",
        ),
        TermSpec(
            key=f"optimizer.{what}", part="optimizer", instants=frozenset(INSTANTS) - {"load"}, bytes=2 * size,
            formula=f"2 * {element_bytes} * {num_parameters}: exp_avg and exp_avg_sq", basis="exact",
            source="torch.optim.AdamW",
        ),
    ]  # fmt: skip
    temporaries, text = step_temporaries(ctx, size, element_bytes * largest_tensor)
    if temporaries:
        terms.append(
            TermSpec(
                key=f"step.{what}", part="optimizer", instants=frozenset({"optimizer_step"}), bytes=temporaries,
                formula=text, source="torch.optim.adamw",
            )
        )  # fmt: skip
    return tuple(terms)


def step_temporaries(ctx: PlanContext, trainable_bytes: int, largest_bytes: int) -> tuple[int, str]:
    if ctx.config.optim == "adamw_torch_fused":
        return 0, "the fused kernel updates in place"
    if ctx.cluster.gpu.kind == "cpu":  # torch uses the foreach form on accelerators only
        return 2 * largest_bytes, f"2 * {largest_bytes}: square root and quotient of the largest tensor"
    return trainable_bytes, f"{trainable_bytes}: one more copy of what is trained (foreach square roots)"
