"""LoRA: train two thin matrices beside each chosen linear, the base stays frozen. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.adapters import adapter_effect, check_adapters
from planner.types import Issue

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    name: ClassVar[str] = "lora"
    title: ClassVar[str] = "LoRA"
    summary: ClassVar[str] = (
        "Trains rank-r matrices beside the frozen linears: gradients and optimizer states shrink to the adapters', "
        "about 2 % more compute."
    )
    main_knob: ClassVar[str | None] = "rank"
    stage: ClassVar[int] = 30
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    rank: int = knob(16, help="rank r of each update", minimum=1)
    alpha: int = knob(32, help="the update is scaled by alpha / rank", minimum=1)
    targets: str = knob("all-linear", help="all-linear, or a comma list such as q_proj,v_proj")
    dropout: float = knob(0.0, help="dropout on the adapters' input", minimum=0.0)
    adapter_dtype: str = knob(
        "float32", help="dtype of the adapters and their optimizer states", choices=("float32", "bfloat16", "float16")
    )

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        return check_adapters(
            ctx, self.name, targets=self.targets, dropout=self.dropout, adapter_dtype=self.adapter_dtype
        )

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return adapter_effect(
            ctx, rank=self.rank, targets=self.targets, dropout=self.dropout, adapter_dtype=self.adapter_dtype
        )

    def apply(self, setup: TrainingSetup) -> None:
        from core.model.adapters import train_adapters

        train_adapters(
            setup, self.name, rank=self.rank, alpha=self.alpha, targets=self.targets, dropout=self.dropout,
            adapter_dtype=self.adapter_dtype,
        )  # fmt: skip

    def verify(self, setup: TrainingSetup) -> Evidence:
        from core.model.adapters import prove_adapters

        adapters, trainable = prove_adapters(setup, self.name)
        return Evidence(
            optimization=self.name,
            claim=f"gradients reached both matrices of {adapters} adapters, {trainable:,} trainable parameters",
            counts=(("adapters", adapters), ("trainable_parameters", trainable)),
        )
