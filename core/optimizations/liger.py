"""Liger: fused Triton kernels for RMSNorm, SwiGLU and RoPE of known classes. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.layer_policy import FAMILIES, MODULES_ONLY
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.liger import liger_effect
from planner.types import Issue
from planner.update_checks import refusal

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup

TITLES = {"rms_norm": "RMSNorm", "swiglu": "SwiGLU", "rope": "RoPE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Liger:
    name: ClassVar[str] = "liger"
    title: ClassVar[str] = "Liger kernels"
    summary: ClassVar[str] = (
        "Computes RMSNorm, SwiGLU and RoPE in fused kernels that save less and read less; the loss stays with "
        "fused_loss."
    )
    main_knob: ClassVar[str | None] = None
    stage: ClassVar[int] = 35  # modules are replaced before head groups look at them
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)

    rms_norm: bool = knob(True, help="fused RMSNorm")
    swiglu: bool = knob(True, help="fused silu(gate) * up")
    rope: bool = knob(True, help="fused rotary embedding, in place")

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(op for op in TITLES if getattr(self, op))

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        if ctx.cluster.gpu.kind != "cuda":
            return (
                Issue(
                    code="liger-device", severity="error", what="liger needs an NVIDIA GPU.",
                    why="Its kernels are Triton.", fix="Remove liger.", suggestion=(("liger", None),),
                ),
            )  # fmt: skip
        if ctx.environment.source == "detected" and "liger-kernel" not in ctx.environment.packages:
            return (
                Issue(
                    code="package-liger", severity="error", what="liger needs the package liger-kernel.",
                    why="It is not installed.", fix="pip install 'longfit[liger]'", suggestion=(("liger", None),),
                ),
            )  # fmt: skip
        if ctx.model.family in MODULES_ONLY:
            return (
                refusal(
                    "liger-family", f"liger does not know the layers of {ctx.model.family}.",
                    f"It replaces exact classes, those of {', '.join(FAMILIES)}, and never by guess.",
                    "Remove liger.", liger=None,
                ),
            )  # fmt: skip
        if self.swiglu and ctx.model.experts is not None:
            return (
                refusal(
                    "liger-experts", f"liger.swiglu is on, and {ctx.model.name} is a mixture of experts.",
                    "Experts multiply by silu(gate) within one module, which liger leaves alone; norms and RoPE it "
                    "replaces.",
                    "Set liger: {swiglu: false}.", liger={"swiglu": False},
                ),
            )  # fmt: skip
        if not self.ops:
            return (
                Issue(
                    code="liger-nothing", severity="error", what="liger is on with every op switched off.",
                    why="There is nothing to replace.", fix="Remove liger.", suggestion=(("liger", None),),
                ),
            )  # fmt: skip
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return liger_effect(ctx, rms_norm=self.rms_norm, swiglu=self.swiglu, rope=self.rope)

    def apply(self, setup: TrainingSetup) -> None:
        import liger_kernel.ops

        self.replace(setup, liger_kernel.ops)

    def replace(self, setup: TrainingSetup, functions: object) -> None:
        """Apart from ``apply`` so that the functions can be others.

        Raises:
            ConfigError: the model has no module of a class that is known.
        """
        from core.model.liger_ops import replace_ops
        from planner.errors import ConfigError

        done = replace_ops(setup.causal_lm, self.ops, functions)
        missing = [TITLES[op] for op in self.ops if not done.replaced[op]]
        if missing:
            for undo in reversed(done.undo):  # RoPE's function is this process's
                undo()
            raise ConfigError(
                f"liger finds no {' and no '.join(missing)} that it knows in {type(setup.causal_lm).__name__}.",
                why="It replaces exact classes of Llama, Mistral, Qwen2, Qwen3 and their mixtures of experts only, and "
                "never by guess; no experts.",
                fix="Remove liger, or switch these ops off.",
            )
        setup.undo += done.undo
        setup.liger = done

    def verify(self, setup: TrainingSetup) -> Evidence:
        done = setup.liger
        idle = [op for op in self.ops if done is None or done.calls[op] == 0]
        if done is None or idle:
            raise NotActive(f"liger: {', '.join(TITLES[op] for op in idle)} never computed")
        words = ", ".join(f"{TITLES[op]} of {done.replaced[op]} modules" for op in self.ops)
        off = [TITLES[op] for op in TITLES if op not in self.ops]
        return Evidence(
            optimization=self.name,
            claim=f"{words}; not {', '.join([*off, 'the loss'])}",
            counts=tuple((f"{op}_calls", done.calls[op]) for op in self.ops),
        )
