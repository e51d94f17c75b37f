"""Tiled MLP: the MLP of each layer by tiles of tokens, forward and backward. Listed in the registry.

With `engine: layer` the layer engine carries it out itself (planner/layer_policy.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.tiled_mlp import tiled_mlp_effect
from planner.types import Issue
from planner.update_checks import refusal

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledMlp:
    name: ClassVar[str] = "tiled_mlp"
    title: ClassVar[str] = "Tiled MLP"
    summary: ClassVar[str] = (
        "Keeps the MLP's input and runs the MLP a tile of tokens at a time, and again in backward: its wide tensors "
        "exist for one tile, for one more forward of the MLP."
    )
    main_knob: ClassVar[str | None] = "tiles"
    stage: ClassVar[int] = 46
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    tiles: int = knob(8, help="tiles that a row's tokens are cut into", minimum=1)

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        issues = []
        if ctx.model.experts is not None:
            issues.append(
                refusal(
                    "tiled-mlp-experts", f"tiled_mlp on {ctx.model.name}, a mixture of experts.",
                    "What experts hold is planned for whole rows: no plan of tiles of them is proven.",
                    "Remove tiled_mlp.", tiled_mlp=None,
                )
            )  # fmt: skip
        adapters = ctx.config.adapters
        if adapters is not None and adapters.as_dict()["dropout"] > 0:
            issues.append(
                refusal(
                    "tiled-mlp-dropout",
                    f"tiled_mlp and {adapters.name}.dropout {adapters.as_dict()['dropout']} are both set.",
                    "Each tile is computed twice and must see the same adapter both times.",
                    f"Set {adapters.name}.dropout: 0.0, or remove tiled_mlp.", tiled_mlp=None,
                )
            )  # fmt: skip
        return tuple(issues)

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return tiled_mlp_effect(ctx, tiles=self.tiles)

    def apply(self, setup: TrainingSetup) -> None:
        from core.model.tiled_mlp import tile_forward

        for layer in setup.causal_lm.get_decoder().layers:
            setup.undo.append(tile_forward(layer.mlp, self.tiles))

    def verify(self, setup: TrainingSetup) -> Evidence:
        from core.model.tiled_mlp import TiledForward

        forwards = [layer.mlp.forward for layer in setup.causal_lm.get_decoder().layers]
        active = [f for f in forwards if isinstance(f, TiledForward) and f.num_tiles == self.tiles and f.num_calls]
        if len(active) != len(forwards):
            raise NotActive(f"tiled_mlp: {len(active)} of {len(forwards)} MLPs work by tiles")
        return Evidence(
            optimization=self.name,
            claim=f"{len(active)} of {len(forwards)} MLPs work in {self.tiles} tiles",
            counts=(("modules", len(active)), ("tiles", self.tiles)),
        )
