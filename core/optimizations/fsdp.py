"""FSDP: weights, gradients and states as shards over all ranks. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape
from planner.parts.fsdp import fsdp_effect
from planner.parts.optimizer import is_8bit
from planner.types import Issue
from planner.update_checks import refusal

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp:
    name: ClassVar[str] = "fsdp"
    title: ClassVar[str] = "FSDP (sharded weights)"
    summary: ClassVar[str] = (
        "Each rank keeps its share of weights, gradients and optimizer states and gathers a layer when its turn comes: "
        "memory of a rank falls with their number, for the links' traffic."
    )
    main_knob: ClassVar[str | None] = None
    stage: ClassVar[int] = 70
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        issues = []
        if ctx.config.parallel.world == 1:
            issues.append(
                refusal(
                    "fsdp-one-rank", "fsdp on one GPU.", "1 / 1 of the weights is all of them.",
                    "Remove fsdp, or use weight_streaming: the host takes the other ranks' place.", fsdp=None,
                )
            )  # fmt: skip
        return (*issues, *self._states(ctx), *self._quantised(ctx))

    def _states(self, ctx: PlanContext) -> list[Issue]:
        """What needs gradients or states of whole tensors."""
        config, issues = ctx.config, []
        share = f"1 / {config.parallel.world}"
        if config.optimization("galore") is not None:
            issues.append(
                refusal(
                    "fsdp-galore", "fsdp and galore are both switched on.",
                    f"GaLore decomposes whole gradients, and a rank has {share} of each.",
                    "Remove galore: shards of plain states are small too.", galore=None,
                )
            )  # fmt: skip
        if is_8bit(config):
            issues.append(
                refusal(
                    "fsdp-8bit", f"fsdp and optim {config.optim} are both set.",
                    "8-bit states are scaled by blocks of a whole tensor, and those of a shard end elsewhere: a "
                    "checkpoint of shards could not be put together.",
                    f"Set optim: adamw_torch_fused, of whose states a rank has {share}, or remove fsdp.",
                    optim="adamw_torch_fused",
                )
            )  # fmt: skip
        if config.update == "layer":
            issues.append(
                refusal(
                    "fsdp-update-layer", "fsdp and update: layer are both set.",
                    f"Of the gradients, which an update within the backward spares, a rank has {share}: FSDP sums and "
                    "cuts those of a layer as soon as its backward ends.",
                    "Set update: step, or remove fsdp.", update="step",
                )
            )  # fmt: skip
        return issues

    def _quantised(self, ctx: PlanContext) -> list[Issue]:
        if ctx.config.optimization("qlora") is None:
            return []
        return [
            refusal(
                "fsdp-qlora", "fsdp and qlora are both switched on.",
                "bitsandbytes keeps the scales of an NF4 weight beside it and not as a parameter: a shard would have "
                "the whole weight's.",
                "Use lora: a rank has 1 / "
                f"{ctx.config.parallel.world} of the 16-bit weights. Or remove fsdp.", fsdp=None,
            )
        ]  # fmt: skip

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return fsdp_effect(ctx)

    def apply(self, setup: TrainingSetup) -> None:
        from core.parallel.sharded import ShardedModel

        setup.sharded = ShardedModel(
            setup.model, setup.causal_lm, device=setup.device, world=setup.config.parallel.world
        )

    def verify(self, setup: TrainingSetup) -> Evidence:
        from torch.distributed.tensor import DTensor

        sharded = setup.sharded
        whole = [name for name, p in setup.model.named_parameters() if not isinstance(p, DTensor)]
        if sharded is None or whole:
            raise NotActive(f"fsdp: {len(whole)} parameters are whole on this rank, the first is {whole[:1]}")
        own, share, total = sharded.held_bytes()
        if own > share:
            raise NotActive(f"fsdp: this rank holds {own:,} of {total:,} bytes of weights, and its share is {share:,}")
        optimizer = setup.optimizer
        states = sum(
            value.nbytes
            for parameter in setup.trained.values()
            for value in ({} if optimizer is None else optimizer.state.get(parameter, {})).values()
        )
        return Evidence(
            optimization=self.name,
            claim=f"this rank, one of {sharded.world}, holds {own:,} of {total:,} bytes of weights, and {states:,} of "
            "optimizer states",
            counts=(("weight_bytes", own), ("state_bytes", states)),
        )
