"""GaLore: full fine-tuning with the optimizer's states of matrices in a subspace. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.galore import PROJ_TYPES, galore_effect, is_projected
from planner.parts.optimizer import is_8bit
from planner.types import DTYPE_BYTES, Issue
from planner.update_checks import refusal

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Galore:
    name: ClassVar[str] = "galore"
    title: ClassVar[str] = "GaLore"
    summary: ClassVar[str] = (
        "Trains every weight, with AdamW states of the projected gradients of the decoder's matrices: states shrink to "
        "a rank, for a decomposition of every gradient now and then."
    )
    main_knob: ClassVar[str | None] = "rank"
    stage: ClassVar[int] = 31
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    rank: int = knob(
        128, help="rank of the subspace; matrices whose shorter side is not above it are left alone", minimum=1
    )
    update_proj_gap: int = knob(200, help="steps between two decompositions", minimum=1)
    scale: float = knob(0.25, help="the projected update is multiplied by this", minimum=0.0)
    proj_type: str = knob("std", help="which side is projected; std: the shorter one", choices=PROJ_TYPES)

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        config, issues = ctx.config, []
        if config.method != "full":
            issues.append(self._with_adapters(ctx))
        if is_8bit(config) or config.master_weights != "none":
            key, value = ("optim", config.optim) if is_8bit(config) else ("master_weights", config.master_weights)
            default = "adamw_torch_fused" if is_8bit(config) else "none"
            issues.append(
                refusal(
                    f"galore-{key.replace('_', '-')}", f"galore and {key}: {value} are both set.",
                    "States of projected gradients have the parameters' dtype, and are small already.",
                    f"Set {key}: {default}.", **{key: default},
                )
            )  # fmt: skip
        shortest = max(min(shape) for shape in ctx.model.linears.values())
        if self.rank >= shortest:
            issues.append(
                refusal(
                    "galore-rank", f"galore.rank is {self.rank}.",
                    f"The longest of the shorter sides of {ctx.model.name}'s matrices is {shortest}: no rank from "
                    "there on saves anything.",
                    f"Set galore: {min(128, shortest // 2)}.", galore=min(128, shortest // 2),
                )
            )  # fmt: skip
        return tuple(issues)

    def _with_adapters(self, ctx: PlanContext) -> Issue:
        setting = ctx.config.adapters
        assert setting is not None
        knobs = setting.as_dict()
        count = ctx.model.num_layers * knobs["rank"] * sum(map(sum, ctx.model.linears.values()))
        states = 2 * DTYPE_BYTES[knobs["adapter_dtype"]] * count
        whole = 2 * DTYPE_BYTES[ctx.config.dtype] * ctx.model.num_parameters
        return refusal(
            "galore-adapters", f"galore and {setting.name} exclude each other.",
            f"Adapters are low-rank already: at rank {knobs['rank']} their states take at most {states / GB:.2f} GB, "
            f"those of all parameters {whole / GB:.1f} GB.",
            f"Remove galore, or remove {setting.name} to train every weight.", galore=None,
        )  # fmt: skip

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return galore_effect(ctx, rank=self.rank, update_proj_gap=self.update_proj_gap, proj_type=self.proj_type)

    def apply(self, setup: TrainingSetup) -> None:
        from core.train.galore_adamw import Projection

        setup.projection = Projection(
            rank=self.rank, update_proj_gap=self.update_proj_gap, scale=self.scale, proj_type=self.proj_type
        )

    def verify(self, setup: TrainingSetup) -> Evidence:
        from core.train.galore_adamw import GaloreAdamW

        matrices = [p for p in setup.causal_lm.get_decoder().layers.parameters() if p.ndim == 2]
        wanted = sum(is_projected(*matrix.shape, self.rank) for matrix in matrices)
        optimizer = setup.optimizer
        states = [optimizer.state[p] for p in matrices] if isinstance(optimizer, GaloreAdamW) else []
        active = [state for state in states if state.keys() & {"left", "right"}]
        if len(active) != wanted:
            raise NotActive(f"galore: {len(active)} of {wanted} matrices have projected states")
        num_bytes = sum(state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes for state in active)
        return Evidence(
            optimization=self.name,
            claim=f"{len(active)} of {len(matrices)} matrices have states of rank {self.rank}, {num_bytes:,} bytes",
            counts=(("matrices", len(active)), ("state_bytes", num_bytes)),
        )
