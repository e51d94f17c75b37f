"""Attention by head groups on one GPU (`core/optimizations/fake_parallel.py`): q, k, v of one group at a time."""

from __future__ import annotations

from planner.effects import Drop, Effect, Scale, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import ATTENTION_BACKWARD, SAVED, both_layers, transient_terms
from planner.parts.launches import HEAD_GROUP_BACKWARD, HEAD_GROUP_FORWARD, launch_work
from planner.parts.recompute import has_liger_norms


def head_groups_effect(ctx: PlanContext, *, groups: int) -> Effect:
    """Each group is projected, attended and added into the output, then recomputed from the layer's normed input."""
    if groups <= 1:
        return Effect()
    s = ctx.sizes
    normed = both_layers(
        s, "group_input", "activations", SAVED, s.c * s.d * s.T, f"{s.c}d * T: normed input, to recompute groups"
    )
    group = s.c * (2 * s.num_q + 2 * s.num_kv) + 4 * s.num_lse
    return Effect(
        add=(
            *normed,
            TermSpec(
                key="attention_backward.group", part="activations", instants=ATTENTION_BACKWARD,
                bytes=-(-group // groups) + 4 * s.d * s.T,
                formula=f"(({s.c}(2q + 2kv) + 4H) / {groups} + 4d) * T: one group, fp32 gradient of the input",
                source="core/optimizations/fake_parallel.py",
            ),
            TermSpec(
                key="attention_backward.norm", part="activations", instants=ATTENTION_BACKWARD,
                bytes=_norm_beyond_group(ctx, -(-group // groups), groups),
                formula="20d * T: the norm's backward, five fp32 pieces, where it holds more than a group",
            ),
        ),
        drop=tuple(
            Drop(key=f"{layers}.{piece}", formula="recomputed group by group")
            for layers in ("layer", "other_layers")
            for piece in ("attention.*", "adapter.attention.*", "trainable.attention.*")
        ),
        scale=(
            Scale(
                key="attention_backward.gradients", numerator=1, denominator=groups, formula=f"one of {groups} groups"
            ),
        ),
        add_work=(
            Work(
                key="gemm.head_groups", kind="gemm", amount=2 * s.N * (s.d * (s.q + 2 * s.kv) + s.q * s.d) * s.T,
                formula="2 * N * (d(q + 2kv) + qd) * T: projections of every group again in backward",
            ),
            Work(
                key="attention.head_groups", kind="attention", amount=2 * s.N * s.q * s.span * s.T,
                formula="2 * N * q * L * T: attention of every group again in backward",
            ),
            launch_work(
                "overhead.head_groups", s.N * groups * (HEAD_GROUP_FORWARD.ns + HEAD_GROUP_BACKWARD.ns),
                f"operators of {groups} groups in N layers, and of their recompute",
            ),
            Work(
                key="memory.head_groups", kind="memory", amount=s.N * groups * 200 * s.d * s.T,
                formula=f"N * {groups} groups * 200d * T: each group adds into the whole output, and into its gradient",
            ),
        ),
    )  # fmt: skip


def _norm_beyond_group(ctx: PlanContext, group: int, groups: int) -> int:
    """Small groups are less than the backward of the norm before them. Liger's writes over what is there."""
    s = ctx.sizes
    if has_liger_norms(ctx):
        return 0
    kernel = next(spec.bytes for spec in transient_terms(s) if spec.key == "attention_backward.gradients")
    return max(0, 20 * s.d * s.T - (kernel // groups + group + (4 + s.c) * s.d * s.T))
