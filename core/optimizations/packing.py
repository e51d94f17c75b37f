"""Packing: several samples share one row of max_length, told apart exactly. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive, counted
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
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

    length: int = knob(0, minimum=0, help="tokens of a pack; longer samples are rows of their own; 0: max_length")

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        if self.length <= ctx.config.max_length:
            return ()
        issue = Issue(
            code="packing-length",
            severity="error",
            what=f"packing: length is {self.length:,}, max_length is {ctx.config.max_length:,}.",
            why="max_length is the longest row of any kind, packs included.",
            fix=f"Leave packing.length out, or raise max_length to {self.length:,}.",
            suggestion=(("packing.length", 0),),
        )
        return (issue,)

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        """None: a plan is made for a row of max_length, and one sample may be that long whatever packs hold."""
        return Effect()

    def apply(self, setup: TrainingSetup) -> None:
        setup.packing = True  # the trainer lays out its rows by packs (core/data/batches.py)
        setup.pack_length = self.length

    def verify(self, setup: TrainingSetup) -> Evidence:
        rows, samples = setup.counts["rows"], setup.counts["samples"]
        if not setup.packing or rows == 0:
            raise NotActive(f"packing: {rows} rows seen, packing is {'on' if setup.packing else 'off'}")
        return Evidence(
            optimization=self.name,
            claim=f"{counted(samples, 'sample')} in {counted(rows, 'row')}, each attending to itself alone",
            counts=(("rows", rows), ("samples", samples), ("tokens", setup.counts["tokens"])),
        )
