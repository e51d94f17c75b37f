"""Flash attention: which version of the attention kernel computes. Listed in the registry.

Without this key a run takes ``auto``: the fastest kernel that is installed and passes the start-up probe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive, counted
from planner.attention_kernels import BY_NUMBER, TITLES, VERSIONS, Candidates, candidates, hopper_speed_up
from planner.effects import Effect, Scale
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.reference_attention import reference_attention_effect
from planner.types import Issue

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashAttention:
    name: ClassVar[str] = "flash_attention"
    title: ClassVar[str] = "Flash attention"
    summary: ClassVar[str] = (
        "Chooses the attention kernel: auto takes the fastest that is installed and gives right numbers here; a "
        "version asked for by number is used or refused."
    )
    main_knob: ClassVar[str | None] = "version"
    stage: ClassVar[int] = 39  # before ring and ulysses wrap the kernel
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    version: str = knob("auto", help="auto, a FlashAttention version, or sdpa: what torch brings", choices=VERSIONS)

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        if self.version not in VERSIONS:
            return (
                Issue(
                    code="flash-attention-version", severity="error",
                    what=f"flash_attention.version is {self.version!r}.", why=f"Known: {', '.join(VERSIONS)}.",
                    fix="Use auto.", suggestion=(("flash_attention", "auto"),),
                ),
            )  # fmt: skip
        found = self._candidates(ctx)
        if self.version not in BY_NUMBER:
            return ()
        name = BY_NUMBER[self.version]
        if not found.names:
            return (
                Issue(
                    code="flash-attention-version", severity="error",
                    what=f"flash_attention: {self.version} is not possible here.", why=f"{found.out[name]}.",
                    fix="Use flash_attention: auto (the fastest that works) or sdpa.",
                    suggestion=(("flash_attention", "auto"),),
                ),
            )  # fmt: skip
        return (
            Issue(
                code="flash-attention-probe", severity="info",
                what=f"{TITLES[name]} is proven by a small forward and backward when the run starts.",
                why="Being installed does not mean that it runs on this GPU.",
                fix="If it fails, the run stops with the reason before the first step.",
            ),
        )  # fmt: skip

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        """The catalog's rate of a Hopper card is that of torch's flash kernel."""
        capability, found = ctx.cluster.gpu.compute_capability, self._candidates(ctx)
        if found.names == ("reference",) and ctx.config.engine == "module":
            return reference_attention_effect(ctx)
        if capability is None or not (9, 0) <= capability < (10, 0):
            return Effect()
        catalog, best = hopper_speed_up(found)
        if best == catalog:
            return Effect()
        text = f"{best} TFLOP/s instead of {catalog}, measured on one H200"
        return Effect(scale_work=(Scale(key="attention.*", numerator=catalog, denominator=best, formula=text),))

    def apply(self, setup: TrainingSetup) -> None:
        import torch

        from core.attention.choose import Problem, choose_kernel
        from core.attention.sequence import LocalAttention

        window = setup.spec.sliding_window
        uses_window = window is not None and setup.config.max_length > window
        problem = Problem(
            device=setup.device, dtype=getattr(torch, setup.config.dtype), num_heads=setup.spec.num_attention_heads,
            num_kv_heads=setup.spec.num_kv_heads, head_dim=setup.spec.head_dim,
            uses_segments=setup.packing or uses_window, uses_blocks=setup.mesh.degrees.ring > 1,
            uses_window=uses_window,
        )  # fmt: skip
        setup.attention = LocalAttention(
            choose_kernel(problem, version=self.version, emit=setup.emit, agree=setup.mesh.agree)
        )

    def verify(self, setup: TrainingSetup) -> Evidence:
        attention = setup.attention
        while hasattr(attention, "inner"):
            attention = attention.inner
        kernel = attention.kernel
        wanted = BY_NUMBER.get(self.version)
        if attention.num_calls == 0 or (wanted is not None and kernel.key != wanted):
            raise NotActive(
                f"flash_attention: version {self.version} was asked for, {kernel.name} was called "
                f"{attention.num_calls} times"
            )
        return Evidence(
            optimization=self.name,
            claim=f"{kernel.name} computed {counted(attention.num_calls, 'attention call')}",
            counts=(("calls", attention.num_calls),),
        )

    def _candidates(self, ctx: PlanContext) -> Candidates:
        return candidates(
            capability=ctx.cluster.gpu.compute_capability, dtype=ctx.config.dtype, head_dim=ctx.model.head_dim,
            packages=ctx.environment.packages, version=self.version,  # type: ignore[arg-type]
            deterministic=ctx.config.deterministic,
        )  # fmt: skip
