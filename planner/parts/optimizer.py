"""Gradients, optimizer states and the temporaries of the step, for whatever is trained: base weights or adapters."""

from __future__ import annotations

from planner.effects import TermSpec
from planner.optimization import PlanContext
from planner.parts.activations import SAVED
from planner.types import INSTANTS, Instant


def trainable_terms(
    ctx: PlanContext, what: str, *, num_parameters: int, largest_tensor: int, element_bytes: int,
    late_parameters: int, early_parameters: int,
) -> tuple[TermSpec, ...]:  # fmt: skip
    """``gradients.<what>.*``, ``optimizer.<what>`` and ``step.<what>``. torch.optim states have the parameters' dtype.

    ``early_parameters``: those whose gradients exist before any layer runs backward (the head's).
    ``late_parameters``: those whose gradients do not exist yet while the first layer's MLP runs backward.
    """
    size = element_bytes * num_parameters
    accumulates = ctx.config.gradient_accumulation_steps > 1
    whole: frozenset[Instant] = frozenset({"optimizer_step"})
    if accumulates:
        whole |= SAVED | {"backward_end"}
    terms = [
        TermSpec(
            key=f"gradients.{what}.all", part="gradients", instants=whole, bytes=size,
            formula=f"{element_bytes} * {num_parameters}"
            + (": alive from the first micro-batch to the step" if accumulates else ""),
            basis="exact", source="zero_grad(set_to_none=True) frees them after the step",
        ),
        TermSpec(
            key=f"optimizer.{what}", part="optimizer", instants=frozenset(INSTANTS) - {"load"}, bytes=2 * size,
            formula=f"2 * {element_bytes} * {num_parameters}: exp_avg and exp_avg_sq", basis="exact",
            source="torch.optim.AdamW",
        ),
    ]  # fmt: skip
    if not accumulates:
        terms += [
            TermSpec(
                key=f"gradients.{what}.end", part="gradients", instants=frozenset({"backward_end"}),
                bytes=element_bytes * (num_parameters - late_parameters),
                formula=f"{element_bytes} * ({num_parameters} - {late_parameters} still to come)", basis="exact",
            ),
            TermSpec(
                key=f"gradients.{what}.head", part="gradients",
                instants=frozenset({"layer_backward", "attention_backward"}),
                bytes=element_bytes * early_parameters,
                formula=f"{element_bytes} * {early_parameters}: the head's", basis="exact",
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
