"""QLoRA: LoRA on a base whose decoder linears are kept in 4-bit NF4. Listed in the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.adapters import adapter_effect, check_adapters
from planner.parts.nf4 import nf4_effect
from planner.types import Issue


@dataclass(frozen=True, slots=True, kw_only=True)
class QLora:
    name: ClassVar[str] = "qlora"
    title: ClassVar[str] = "QLoRA (4-bit base)"
    summary: ClassVar[str] = (
        "LoRA on a base kept in NF4: decoder linears take about a quarter of their 16-bit bytes and are dequantised "
        "each time they are used."
    )
    main_knob: ClassVar[str | None] = "rank"
    stage: ClassVar[int] = 30
    available: ClassVar[bool] = False

    rank: int = knob(16, help="rank r of each update", minimum=1)
    alpha: int = knob(32, help="the update is scaled by alpha / rank", minimum=1)
    targets: str = knob("all-linear", help="all-linear, or a comma list such as q_proj,v_proj")
    dropout: float = knob(0.0, help="dropout on the adapters' input", minimum=0.0)
    adapter_dtype: str = knob(
        "float32", help="dtype of the adapters and their optimizer states", choices=("float32", "bfloat16", "float16")
    )
    double_quant: bool = knob(True, help="quantise the scales too: 0.516 instead of 0.5625 bytes a weight")

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        issues = list(
            check_adapters(ctx, self.name, targets=self.targets, dropout=self.dropout, adapter_dtype=self.adapter_dtype)
        )
        if ctx.cluster.gpu.kind != "cuda":
            issues.append(
                Issue(
                    code="qlora-device", severity="error", what="qlora needs an NVIDIA GPU.",
                    why="The NF4 kernels of bitsandbytes run on CUDA here.", fix="Use lora on this machine.",
                    suggestion=(("qlora", None), ("lora", self.rank)),
                )
            )  # fmt: skip
        elif ctx.environment.source == "detected" and "bitsandbytes" not in ctx.environment.packages:
            issues.append(
                Issue(
                    code="package-bitsandbytes", severity="error", what="qlora needs the package bitsandbytes.",
                    why="It is not installed.", fix="pip install 'longfit[bnb]'",
                )
            )  # fmt: skip
        return tuple(issues)

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        adapters = adapter_effect(
            ctx, rank=self.rank, targets=self.targets, dropout=self.dropout, adapter_dtype=self.adapter_dtype
        )
        return nf4_effect(ctx, double_quant=self.double_quant, adapters=adapters)
