"""Tiled MLP: the MLP of each layer by tiles of tokens, forward and backward. Listed in the registry.

Planned only with `engine: module`; the layer engine carries it out itself (planner/layer_policy.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.tiled_mlp import tiled_mlp_effect
from planner.types import Issue
from planner.update_checks import refusal


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
    available: ClassVar[bool] = False
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    tiles: int = knob(8, help="tiles that a row's tokens are cut into", minimum=1)

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        if ctx.model.experts is not None:
            return (
                refusal(
                    "tiled-mlp-experts", f"tiled_mlp on {ctx.model.name}, a mixture of experts.",
                    "Experts take their tokens apart already.", "Remove tiled_mlp.", tiled_mlp=None,
                ),
            )  # fmt: skip
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return tiled_mlp_effect(ctx, tiles=self.tiles)
