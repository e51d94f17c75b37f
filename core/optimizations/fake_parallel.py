"""Fake parallel: on one GPU, the heads of Ulysses' virtual ranks run one after another. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.layer_policy import FAMILIES, MODULES_ONLY
from planner.optimization import PlanContext, RankShape, knob
from planner.parallel import is_legal_ulysses_degree
from planner.parts.head_groups import head_groups_effect
from planner.types import Issue
from planner.update_checks import refusal

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeParallel:
    name: ClassVar[str] = "fake_parallel"
    title: ClassVar[str] = "Fake parallel (head groups)"
    summary: ClassVar[str] = (
        "Projects, attends and adds into the output one group of heads at a time, and again in backward: full-width "
        "q, k, v never exist, for one more projection."
    )
    main_knob: ClassVar[str | None] = "groups"
    stage: ClassVar[int] = 45
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    groups: int = knob(2, help="head groups per layer, a divisor of the KV heads", minimum=1)

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        issues: list[Issue] = []
        if ctx.model.family in MODULES_ONLY:
            issues.append(
                refusal(
                    "fake-parallel-family", f"fake_parallel does not know the attention of {ctx.model.family}.",
                    f"It rearranges the forward of exact classes: those of {', '.join(FAMILIES)}.",
                    "Remove fake_parallel.", fake_parallel=None,
                )
            )  # fmt: skip
        heads, kv_heads = ctx.model.num_attention_heads, ctx.model.num_kv_heads
        if kv_heads % self.groups:
            legal = [groups for groups in range(1, kv_heads + 1) if kv_heads % groups == 0]
            issues.append(
                Issue(
                    code="fake-parallel-groups", severity="error",
                    what=f"fake_parallel groups {self.groups} is not possible.",
                    why=f"Each group takes whole KV heads, and this model has {kv_heads}.",
                    fix=f"Legal here: {', '.join(map(str, legal))}.",
                    suggestion=(("fake_parallel", max(g for g in legal if g <= self.groups)),),
                )
            )  # fmt: skip
        degree = ctx.config.parallel.ulysses
        if not issues and not is_legal_ulysses_degree(heads // self.groups, kv_heads // self.groups, degree):
            issues.append(
                Issue(
                    code="fake-parallel-ulysses", severity="error",
                    what=f"fake_parallel groups {self.groups} and ulysses degree {degree} do not go together.",
                    why=f"A group has {heads // self.groups} query and {kv_heads // self.groups} KV heads to exchange "
                    f"over {degree} ranks.",
                    fix="Remove fake_parallel, or use ring.",
                    suggestion=(("fake_parallel", None),),
                )
            )  # fmt: skip
        adapters = ctx.config.adapters
        if adapters is not None and adapters.as_dict()["dropout"] > 0:
            issues.append(
                Issue(
                    code="fake-parallel-dropout", severity="error",
                    what=f"fake_parallel and {adapters.name}.dropout {adapters.as_dict()['dropout']} are both set.",
                    why="Each group is computed twice and must see the same adapter both times.",
                    fix=f"Set {adapters.name}.dropout: 0.0, or remove fake_parallel.",
                    suggestion=(("fake_parallel", None),),
                )
            )  # fmt: skip
        return tuple(issues)

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return head_groups_effect(ctx, groups=self.groups)

    def apply(self, setup: TrainingSetup) -> None:
        from core.attention.head_groups import HeadGroups

        for layer in setup.causal_lm.get_decoder().layers:
            module = layer.self_attn
            module.forward = HeadGroups(module, self.groups)
            setup.undo.append(lambda module=module: module.__dict__.pop("forward"))

    def verify(self, setup: TrainingSetup) -> Evidence:
        from core.attention.head_groups import HeadGroups

        forwards = [layer.self_attn.forward for layer in setup.causal_lm.get_decoder().layers]
        active = [f for f in forwards if isinstance(f, HeadGroups) and f.num_groups == self.groups and f.num_calls]
        if len(active) != len(forwards):
            raise NotActive(f"fake_parallel: {len(active)} of {len(forwards)} attention modules work by head groups")
        return Evidence(
            optimization=self.name,
            claim=f"{len(active)} of {len(forwards)} attention modules work in {self.groups} head groups",
            counts=(("modules", len(active)), ("groups", self.groups)),
        )
