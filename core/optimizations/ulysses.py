"""Ulysses: sequence sharded over ranks, all-to-all to head shards around attention. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive, counted
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parallel import check_degree, legal_ulysses_degrees
from planner.parts.sequence_parallel import ulysses_effect
from planner.types import Issue

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Ulysses:
    name: ClassVar[str] = "ulysses"
    title: ClassVar[str] = "Ulysses sequence parallelism"
    summary: ClassVar[str] = (
        "Each rank holds a part of the tokens and, during attention, all tokens of a part of the heads: activations "
        "divide by the degree, weights do not."
    )
    main_knob: ClassVar[str | None] = "degree"
    stage: ClassVar[int] = 41
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    degree: int = knob(2, help="ranks that share a row by heads", minimum=1)

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        issues = check_degree(self.name, self.degree, ctx.config.parallel.ulysses, ctx.cluster.num_gpus)
        legal = legal_ulysses_degrees(ctx.model, max(self.degree, ctx.cluster.num_gpus))
        if self.degree in legal:
            return issues
        heads, kv_heads = ctx.model.num_attention_heads, ctx.model.num_kv_heads
        return (
            *issues,
            Issue(
                code="ulysses-degree-heads", severity="error", what=f"ulysses degree {self.degree} is not possible.",
                why=f"It has to divide the {heads} query heads, and to divide the {kv_heads} KV heads or be a multiple "
                "of them.",
                fix=f"Legal here: {', '.join(map(str, legal))}. Use sequence_parallel: {self.degree} to combine with "
                "ring.",
                suggestion=(("ulysses", None), ("sequence_parallel", self.degree)),
            ),
        )  # fmt: skip

    def reshape(self, shape: RankShape) -> RankShape:
        return replace(
            shape,
            tokens=-(-shape.tokens // self.degree),
            q_heads=shape.q_heads // self.degree or 1,
            kv_heads=shape.kv_heads // self.degree or 1,
        )

    def effect(self, ctx: PlanContext) -> Effect:
        return ulysses_effect(ctx, degree=self.degree)

    def apply(self, setup: TrainingSetup) -> None:
        from core.parallel.ulysses import UlyssesAttention

        setup.mesh.require("ulysses", self.degree)
        if self.degree > 1:
            setup.attention = UlyssesAttention(setup.attention, setup.mesh.ulysses_group)

    def verify(self, setup: TrainingSetup) -> Evidence:
        from core.parallel.ulysses import UlyssesAttention

        attention = setup.attention
        if self.degree == 1:
            return Evidence(optimization=self.name, claim="degree 1: there is nobody to share a row with")
        if not (isinstance(attention, UlyssesAttention) and attention.num_calls > 0):
            raise NotActive(f"ulysses: attention is {type(attention).__name__}, called {attention.num_calls} times")
        return Evidence(
            optimization=self.name,
            claim=f"{self.degree} ranks exchanged tokens for heads in {counted(attention.num_calls, 'attention call')}",
            counts=(("degree", self.degree), ("calls", attention.num_calls)),
        )
