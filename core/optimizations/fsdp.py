"""FSDP: weights, gradients and states as shards over all ranks. Listed in the registry, planned only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from planner.effects import Effect
from planner.optimization import PlanContext, RankShape
from planner.parts.fsdp import fsdp_effect
from planner.types import Issue
from planner.update_checks import refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp:
    name: ClassVar[str] = "fsdp"
    title: ClassVar[str] = "FSDP (sharded weights)"
    summary: ClassVar[str] = (
        "Each rank keeps its share of weights, gradients and optimizer states and gathers a layer when its turn comes: "
        "memory of a rank falls with their number, for the links' traffic."
    )
    main_knob: ClassVar[str | None] = None
    stage: ClassVar[int] = 70
    available: ClassVar[bool] = False
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        issues = []
        if ctx.config.parallel.world == 1:
            issues.append(
                refusal(
                    "fsdp-one-rank", "fsdp on one GPU.", "1 / 1 of the weights is all of them.",
                    "Remove fsdp, or use weight_streaming: the host takes the other ranks' place.", fsdp=None,
                )
            )  # fmt: skip
        if ctx.config.optimization("galore") is not None:
            issues.append(
                refusal(
                    "fsdp-galore", "fsdp and galore are both switched on.",
                    "GaLore decomposes whole gradients, and a rank has 1 / "
                    f"{ctx.config.parallel.world} of each.",
                    "Remove galore: shards of plain states are small too.", galore=None,
                )
            )  # fmt: skip
        return tuple(issues)

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return fsdp_effect(ctx)
