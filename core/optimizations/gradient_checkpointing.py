"""Gradient checkpointing: keep only the input of each decoder layer, recompute the rest. Listed in the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape
from planner.parts.recompute import checkpointing_effect
from planner.types import Issue

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheckpointing:
    name: ClassVar[str] = "gradient_checkpointing"
    title: ClassVar[str] = "Gradient checkpointing"
    summary: ClassVar[str] = (
        "Keeps one hidden state per decoder layer and recomputes the layer in backward: far less memory for one more "
        "forward pass."
    )
    main_knob: ClassVar[str | None] = None
    stage: ClassVar[int] = 50
    available: ClassVar[bool] = True

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return checkpointing_effect(ctx)

    def apply(self, setup: TrainingSetup) -> None:
        import torch

        causal_lm = setup.causal_lm
        # not reentrant: a reentrant checkpoint loses the gradients of a frozen embedding's layers
        causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        setup.undo.append(causal_lm.gradient_checkpointing_disable)
        recomputed = setup.seen.setdefault(self.name, set())

        def note(index: int) -> None:
            if torch._C._current_graph_task_id() != -1:  # a backward is running: as torch's own checkpoint asks
                recomputed.add(str(index))

        for index, layer in enumerate(causal_lm.get_decoder().layers):
            hook = layer.register_forward_pre_hook(lambda _module, _inputs, index=index: note(index))
            setup.undo.append(hook.remove)

    def verify(self, setup: TrainingSetup) -> Evidence:
        num_layers = len(setup.causal_lm.get_decoder().layers)
        num_recomputed = len(setup.seen[self.name])
        if num_recomputed != num_layers:
            raise NotActive(f"gradient_checkpointing: {num_recomputed} of {num_layers} layers recomputed in backward")
        return Evidence(
            optimization=self.name,
            claim=f"{num_recomputed} of {num_layers} decoder layers recompute in backward",
            counts=(("layers", num_recomputed),),
        )
