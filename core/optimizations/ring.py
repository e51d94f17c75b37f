"""Ring attention: sequence sharded over ranks in zigzag order, K and V travel around. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive, counted
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parallel import check_degree, check_ring_model
from planner.parts.sequence_parallel import ring_effect
from planner.types import Issue

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    name: ClassVar[str] = "ring"
    title: ClassVar[str] = "Ring attention"
    summary: ClassVar[str] = (
        "Each rank holds two zigzag chunks of the tokens and meets the others' K and V one block at a time: any degree "
        "works, activations divide by it."
    )
    main_knob: ClassVar[str | None] = "degree"
    stage: ClassVar[int] = 40
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    degree: int = knob(2, help="ranks that share a row by tokens", minimum=1)

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        issues = check_degree(self.name, self.degree, ctx.config.parallel.ring, ctx.cluster.num_gpus)
        return (*issues, *check_ring_model(ctx.model, ctx.config.max_length)) if self.degree > 1 else issues

    def reshape(self, shape: RankShape) -> RankShape:
        return replace(
            shape,
            tokens=-(-shape.tokens // self.degree),
            attention_tokens=-(-shape.attention_tokens // self.degree),
        )

    def effect(self, ctx: PlanContext) -> Effect:
        return ring_effect(ctx, degree=self.degree)

    def apply(self, setup: TrainingSetup) -> None:
        from core.attention.sequence import LocalAttention
        from core.parallel.ring import RingAttention

        setup.mesh.require("ring", self.degree)
        if self.degree > 1:
            assert isinstance(setup.attention, LocalAttention), "ring is the innermost of the attentions"
            setup.attention = RingAttention(setup.attention.kernel, setup.mesh.ring_group)

    def verify(self, setup: TrainingSetup) -> Evidence:
        from core.parallel.ring import RingAttention

        ring = getattr(setup.attention, "inner", setup.attention)
        if self.degree == 1:
            return Evidence(optimization=self.name, claim="degree 1: there is nobody to share a row with")
        if not (isinstance(ring, RingAttention) and ring.num_calls > 0):
            raise NotActive(f"ring: attention is {type(ring).__name__}, called {ring.num_calls} times")
        return Evidence(
            optimization=self.name,
            claim=f"{self.degree} ranks passed K and V around in {counted(ring.num_calls, 'attention call')}",
            counts=(("degree", self.degree), ("calls", ring.num_calls)),
        )
