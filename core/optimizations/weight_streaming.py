"""Weight streaming: frozen weights come from host memory, layer by layer. Listed in the registry, planned only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.streaming import streamed_weights, streaming_effect
from planner.types import Issue
from planner.update_checks import refusal

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStreaming:
    name: ClassVar[str] = "weight_streaming"
    title: ClassVar[str] = "Weight streaming"
    summary: ClassVar[str] = (
        "Keeps frozen weights in pinned host memory and brings each layer one ahead of its turn: the GPU holds two "
        "layers of them, while the copies hide behind compute where rows are long."
    )
    main_knob: ClassVar[str | None] = "embeddings"
    stage: ClassVar[int] = 25
    available: ClassVar[bool] = False
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    embeddings: str = knob(
        "resident", help="whether embeddings and head stay on the GPU or come too", choices=("resident", "streamed")
    )

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        issues = []
        if ctx.config.method == "full":
            weights = streamed_weights(ctx.config, ctx.model)
            size = ctx.model.num_layers * weights.layer / GIB
            issues.append(
                refusal(
                    "streaming-trains-weights", "weight_streaming without lora or qlora.",
                    f"Trained weights have gradients and states, {3 * size:.1f} GiB beside {size:.1f} GiB of layers, "
                    "which would have to travel too.",
                    "Add lora: 16, or remove weight_streaming.", lora=16,
                )
            )  # fmt: skip
        if ctx.cluster.gpu.kind == "cpu":
            issues.append(
                refusal(
                    "streaming-on-cpu", "weight_streaming on a CPU.", "Weights are in host memory already.",
                    "Remove weight_streaming.", weight_streaming=None,
                )
            )  # fmt: skip
        if ctx.config.optimization("fsdp") is not None:
            issues.append(
                refusal(
                    "streaming-fsdp", "weight_streaming and fsdp are both switched on.",
                    "Each says where a weight is while its layer is not at work.",
                    "Remove fsdp (weights wait in host memory), or weight_streaming (in the other GPUs).", fsdp=None,
                )
            )  # fmt: skip
        return tuple(issues)

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return streaming_effect(ctx)
