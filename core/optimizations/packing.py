"""Packing: several samples share one row of max_length, told apart exactly. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape
from planner.types import Issue

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


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
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        """None: a plan is made for a full row, and a full row of one sample costs the most attention."""
        return Effect()

    def apply(self, setup: TrainingSetup) -> None:
        setup.packing = True  # the trainer lays out its rows by packs (core/data/batches.py)

    def verify(self, setup: TrainingSetup) -> Evidence:
        rows, samples = setup.counts["rows"], setup.counts["samples"]
        if not setup.packing or rows == 0:
            raise NotActive(f"packing: {rows} rows seen, packing is {'on' if setup.packing else 'off'}")
        return Evidence(
            optimization=self.name,
            claim=f"{samples:,} samples in {rows:,} rows, each attending to itself alone",
            counts=(("rows", rows), ("samples", samples), ("tokens", setup.counts["tokens"])),
        )
