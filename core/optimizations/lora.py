"""LoRA: train two thin matrices beside each chosen linear, the base stays frozen. Listed in the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from core.optimizations.evidence import Evidence, NotActive
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
        import torch

        from core.model.adapters import ADAPTER_NAME, add_lora, lora_layers

        setup.model = add_lora(
            setup.model, rank=self.rank, alpha=self.alpha, targets=self.targets, dropout=self.dropout,
            dtype=getattr(torch, self.adapter_dtype), seed=setup.config.seed,
        )  # fmt: skip
        reached = setup.seen.setdefault(self.name, set())
        for module_name, layer in lora_layers(setup.model).items():
            for matrix in (layer.lora_A, layer.lora_B):
                parameter = matrix[ADAPTER_NAME].weight
                which = f"{module_name}.{'A' if matrix is layer.lora_A else 'B'}"
                hook = parameter.register_post_accumulate_grad_hook(lambda _, which=which: reached.add(which))
                setup.undo.append(hook.remove)

    def verify(self, setup: TrainingSetup) -> Evidence:
        from core.model.adapters import lora_layers

        adapters = lora_layers(setup.model)
        reached = setup.seen[self.name]
        silent = [f"{name}.{matrix}" for name in adapters for matrix in "AB" if f"{name}.{matrix}" not in reached]
        if silent or not adapters:
            raise NotActive(f"lora: no gradient reached {len(silent)} adapter matrices, the first is {silent[:1]}")
        trained_base = [n for n, p in setup.model.named_parameters() if p.requires_grad and ".lora_" not in n]
        if trained_base:
            raise NotActive(f"lora: {len(trained_base)} base parameters are not frozen, the first is {trained_base[0]}")
        trainable = sum(p.numel() for p in setup.model.parameters() if p.requires_grad)
        return Evidence(
            optimization=self.name,
            claim=f"gradients reached both matrices of {len(adapters)} adapters, {trainable:,} trainable parameters",
            counts=(("adapters", len(adapters)), ("trainable_parameters", trainable)),
        )
