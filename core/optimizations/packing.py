"""Packing: several samples share one row of max_length, told apart exactly. Listed in the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.effects import Effect
from planner.optimization import PlanContext, RankShape
from planner.types import Issue


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    name: ClassVar[str] = "packing"
    title: ClassVar[str] = "Packing"
    summary: ClassVar[str] = (
        "Fills each row with whole samples, isolated by restarted positions and segment attention: short samples no "
        "longer cost a whole row."
    )
    main_knob: ClassVar[str | None] = None
    stage: ClassVar[int] = 10
    available: ClassVar[bool] = True

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        """None: a plan is made for a full row, and a full row of one sample costs the most attention."""
        return Effect()
