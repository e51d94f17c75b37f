"""Gradient checkpointing: keep only the input of each decoder layer, recompute the rest. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.kept_attention import keep_attention
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
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"save_attention": False, "kept_layers": 0},
        {"save_attention": True, "kept_layers": 0},
    )

    save_attention: bool = knob(
        False,
        help="keep attention's output and log-sum-exp too: a recompute without attention, for as much memory again",
    )
    kept_layers: int = knob(
        0,
        help="layers, the last ones, that keep their tensors instead of being recomputed: memory that is left over for "
        "speed, as others checkpoint every n-th layer",
        minimum=0,
    )

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        num_layers = ctx.model.num_layers
        if self.kept_layers < num_layers:
            return ()
        return (
            Issue(
                code="checkpointing-nothing", severity="error",
                what=f"gradient_checkpointing.kept_layers is {self.kept_layers}, and {ctx.model.name} has {num_layers} "
                "layers.",
                why="There is no layer left to recompute.",
                fix=f"Set kept_layers: {num_layers - 1} or less, or remove gradient_checkpointing.",
                suggestion=(("gradient_checkpointing", None),),
            ),
        )  # fmt: skip

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        effect = checkpointing_effect(ctx)
        return keep_attention(ctx, effect) if self.save_attention else effect

    def apply(self, setup: TrainingSetup) -> None:
        import torch

        from core.attention.kept import AttentionKeeper

        causal_lm = setup.causal_lm
        layers = causal_lm.get_decoder().layers
        num_recomputed = max(0, len(layers) - self.kept_layers)
        # not reentrant: a reentrant checkpoint loses the gradients of a frozen embedding's layers
        causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        setup.undo.append(causal_lm.gradient_checkpointing_disable)
        # only a reentrant one needs the embeddings to require a gradient, which nobody asks for
        causal_lm.disable_input_require_grads()
        for layer in layers[num_recomputed:]:
            layer.gradient_checkpointing = False
        recomputed = setup.seen.setdefault(self.name, set())
        # head groups attend again in backward whatever the layer does; elsewhere a kept layer's graph has the output
        num_keeping = len(layers) if setup.config.optimization("fake_parallel") else num_recomputed
        keeper = setup.keeper = AttentionKeeper(num_keeping) if self.save_attention else None

        def note(index: int) -> None:
            is_recompute = torch._C._current_graph_task_id() != -1  # a backward is running: as torch's checkpoint asks
            if is_recompute:
                recomputed.add(str(index))
            if keeper is not None:
                keeper.begin(index, is_recompute=is_recompute)

        for index, layer in enumerate(layers):
            hook = layer.register_forward_pre_hook(lambda _module, _inputs, index=index: note(index))
            setup.undo.append(hook.remove)

    def verify(self, setup: TrainingSetup) -> Evidence:
        num_layers = len(setup.causal_lm.get_decoder().layers)
        num_recomputed = len(setup.seen[self.name])
        wanted = max(0, num_layers - self.kept_layers)
        if num_recomputed != wanted:
            raise NotActive(
                f"gradient_checkpointing: {num_recomputed} of {num_layers} layers recomputed in backward, "
                f"{wanted} should"
            )
        num_reused = 0 if setup.keeper is None else setup.keeper.num_reused
        if self.save_attention and num_reused == 0:
            raise NotActive("gradient_checkpointing: save_attention is on, and no recompute took a kept output")
        kept = f", {num_reused} attention outputs were kept for it" if self.save_attention else ""
        return Evidence(
            optimization=self.name,
            claim=f"{num_recomputed} of {num_layers} decoder layers recompute in backward{kept}",
            counts=(("layers", num_recomputed), ("kept_outputs", num_reused)),
        )
