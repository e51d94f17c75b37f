"""Weight streaming: frozen weights come from host memory, layer by layer. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.streaming import streamed_weights, streaming_effect
from planner.types import Issue
from planner.update_checks import refusal

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup

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
    available: ClassVar[bool] = True
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
        if self.embeddings == "streamed" and ctx.config.optimization("fused_loss") is None:
            issues.append(
                refusal(
                    "streaming-head-loss", "weight_streaming: streamed without fused_loss.",
                    "The head is there while the loss is formed; without fused_loss the backward needs it once more.",
                    "Add fused_loss: true, or keep embeddings and head on the GPU (weight_streaming: resident).",
                    fused_loss=True,
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

    def apply(self, setup: TrainingSetup) -> None:
        streamed = getattr(setup.causal_lm, "streamed_weights", None)
        if streamed is None:
            raise NotActive("weight_streaming: the model was loaded with all of its weights on the device")
        setup.streamed = streamed
        setup.undo.append(streamed.free)
        setup.undo.append(streamed.watch(setup.causal_lm.get_decoder().layers))
        if streamed.tables is not None:
            setup.undo.append(streamed.tables.free)
            setup.undo.append(streamed.tables.watch())

    def verify(self, setup: TrainingSetup) -> Evidence:
        streamed = setup.streamed
        if streamed is None or streamed.num_layers != setup.spec.num_layers:
            raise NotActive("weight_streaming: the layers' weights do not wait in host memory")
        if outside := streamed.num_outside():
            raise NotActive(f"weight_streaming: {outside} frozen tensors of the layers are not where layers take turns")
        if streamed.num_brought < streamed.num_layers:
            raise NotActive(f"weight_streaming: {streamed.num_brought} of {streamed.num_layers} layers were brought")
        tables = streamed.tables
        if (tables is None) == (self.embeddings == "streamed") or (tables is not None and not tables.num_heads_brought):
            raise NotActive("weight_streaming: embeddings and head are not where they should be")
        host_bytes = streamed.host_bytes + (0 if tables is None else tables.host_bytes)
        return Evidence(
            optimization=self.name,
            claim=f"{streamed.num_layers} layers{', embeddings and head' * (tables is not None)} wait in host memory, "
            f"{host_bytes:,} bytes; layers take turns in {streamed.held_bytes:,} bytes of the device, "
            f"{streamed.num_bytes_brought:,} came so far",
            counts=(("layers", streamed.num_layers), ("brought", streamed.num_brought), ("host_bytes", host_bytes)),
        )
