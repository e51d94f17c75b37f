"""Gradient checkpointing: keep only the input of each decoder layer, recompute the rest. Listed in the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.effects import Effect
from planner.optimization import PlanContext, RankShape
from planner.parts.recompute import checkpointing_effect
from planner.types import Issue


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheckpointing:
    name: ClassVar[str] = "gradient_checkpointing"
    title: ClassVar[str] = "Gradient checkpointing"
    summary: ClassVar[str] = (
        "Keeps one hidden state per decoder layer and recomputes the layer in backward: far less memory for one more "
        "forward pass."
    )
    main_knob: ClassVar[str | None] = None
    stage: ClassVar[int] = 50
    available: ClassVar[bool] = True

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return checkpointing_effect(ctx)
