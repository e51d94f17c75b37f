"""QLoRA: LoRA on a base whose decoder linears are kept in 4-bit NF4. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.adapters import adapter_effect, check_adapters
from planner.parts.nf4 import nf4_effect
from planner.types import Issue

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


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
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

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
        if ctx.config.optimization("fake_parallel") is not None and ctx.config.engine != "layer":
            issues.append(
                Issue(
                    code="qlora-fake-parallel", severity="error",
                    what="qlora and fake_parallel are both switched on, and transformers' modules compute the layers.",
                    why="There fake_parallel cuts rows and columns of plain weights, and a 4-bit weight has none. The "
                    "layer engine dequantises a weight first.",
                    fix="Use engine: layer where the model allows it, remove fake_parallel, or use lora.",
                    suggestion=(("fake_parallel", None),),
                )
            )  # fmt: skip
        if ctx.cluster.gpu.kind != "cuda":
            issues.append(
                Issue(
                    code="qlora-device", severity="warning", what="qlora runs on a CPU, slowly.",
                    why="Every linear is dequantised each time it is used, and a CPU has no kernel that fuses both.",
                    fix="Use lora on this machine.", suggestion=(("qlora", None), ("lora", self.rank)),
                )
            )  # fmt: skip
        if ctx.environment.source == "detected" and "bitsandbytes" not in ctx.environment.packages:
            issues.append(
                Issue(
                    code="package-bitsandbytes", severity="error", what="qlora needs the package bitsandbytes.",
                    why="It is not installed.", fix="pip install 'longfit[bnb]'", suggestion=(("qlora", None),),
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

    def apply(self, setup: TrainingSetup) -> None:
        import torch

        from core.model.adapters import train_adapters
        from core.model.nf4 import quantise_linears

        setup.model.requires_grad_(False)
        quantise_linears(  # those that load_model has not
            setup.causal_lm.get_decoder().layers, double_quant=self.double_quant,
            dtype=getattr(torch, setup.config.dtype), device=setup.device,
        )  # fmt: skip
        train_adapters(
            setup, self.name, rank=self.rank, alpha=self.alpha, targets=self.targets, dropout=self.dropout,
            adapter_dtype=self.adapter_dtype,
        )  # fmt: skip

    def verify(self, setup: TrainingSetup) -> Evidence:
        from core.model.adapters import prove_adapters
        from core.model.nf4 import quantised_linears

        adapters, trainable = prove_adapters(setup, self.name)
        linears = quantised_linears(setup.causal_lm)
        wanted = len(setup.spec.linears) * setup.spec.num_layers
        packed = [linear for linear in linears if linear.weight.quant_state.nested == self.double_quant]
        if len(packed) != wanted:
            raise NotActive(f"qlora: {len(packed)} of {wanted} decoder linears are NF4 as asked for")
        num_bytes = sum(linear.weight.numel() for linear in linears)
        return Evidence(
            optimization=self.name,
            claim=f"{len(linears)} decoder linears are NF4 ({num_bytes:,} bytes before scales), gradients reached both "
            f"matrices of {adapters} adapters, {trainable:,} trainable parameters",
            counts=(("linears", len(linears)), ("adapters", adapters), ("trainable_parameters", trainable)),
        )
