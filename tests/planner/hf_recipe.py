"""Transformers' own training step as the planner's parts describe it, for rows that were measured with it.

Layers, adapters, autocast, checkpointing and Liger's operators are those of longfit's module engine, so the planner has
them already. Two things differ and are declared here, as registry entries that only tests have: Liger's fused linear
cross entropy, and a loop that keeps the model's outputs alive during backward. longfit has neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from core.optimizations import REGISTRY
from planner.account import account
from planner.combine import Combined
from planner.effects import Drop, Effect, TermSpec, Work
from planner.optimization import PlanContext, RankShape, setting_of
from planner.time import step_seconds
from planner.types import DataConfig, Environment, Issue, ModelSpec, Optim, ParallelDegrees, RunConfig
from tests.planner.plans import QWEN_7B, Optimizations, cluster_of


@dataclass(frozen=True)
class HfLigerLoss:
    """liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py: logits of one chunk in the hidden states' dtype, the
    gradient of the hidden states formed with the loss."""

    name: ClassVar[str] = "hf_liger_loss"
    available: ClassVar[bool] = True

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        s = ctx.sizes
        chunks = -(-s.V // s.d)
        chunk = min(s.T, 1 << (-(-s.T // chunks) - 1).bit_length())
        return Effect(
            add=(
                TermSpec(
                    key="hf_loss.forward", part="logits", instants=frozenset({"forward_loss"}),
                    bytes=2 * s.c * s.d * s.T + s.c * s.V * chunk,
                    formula=f"2 * {s.c}d * T + {s.c}V * {chunk}: hidden states, their gradient, logits of a chunk",
                ),
                TermSpec(
                    key="hf_loss.backward", part="activations", instants=frozenset({"loss_backward"}),
                    bytes=2 * s.c * s.d * s.T, formula=f"2 * {s.c}d * T: the gradient on its way through the slice",
                ),
            ),
            drop=(Drop(key="logits.*", formula="logits of the whole row never exist"),),
            drop_work=(Drop(key="memory.logits", formula="replaced"),),
            add_work=(
                Work(
                    key="memory.hf_loss", kind="memory", amount=8 * s.V * s.T,
                    formula="8V * T: logits written by the product, read twice, their gradient written and read",
                ),
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class HeldOutputs:
    """``outputs = model(...); outputs.loss.backward()``: the 16-bit logits live until the loop's next turn."""

    name: ClassVar[str] = "held_outputs"
    available: ClassVar[bool] = True

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        s = ctx.sizes
        instants = frozenset({"forward_loss", "loss_backward", "layer_backward", "attention_backward", "backward_end"})
        size = s.c * s.V * s.T
        return Effect(
            add=(TermSpec(key="outputs", part="logits", instants=instants, bytes=size, formula=f"{s.c}V * T: logits"),)
        )


ENTRIES: dict[str, Any] = {**REGISTRY, HfLigerLoss.name: HfLigerLoss, HeldOutputs.name: HeldOutputs}


@dataclass(frozen=True)
class HfStep:
    """One rank's step: the peak of torch's allocated bytes, and the speed."""

    combined: Combined
    tokens_per_second: float

    @property
    def peak_bytes(self) -> int:
        return max(self.combined.bytes_by_instant().values())


def hf_step(
    length: int, *, adapter_dtype: str, autocast: bool, method: str = "lora", rank: int = 64,
    checkpointing: bool = True, liger: bool = True, holds_outputs: bool = False, model: ModelSpec = QWEN_7B,
    kernel: Literal["cudnn", "torch"] = "cudnn", optim: Optim = "adamw_torch",
) -> HfStep:  # fmt: skip
    """Batch 1, bf16, all linears adapted, one H200. ``liger``: its norms, SwiGLU, RoPE and loss; else the stock ones.
    ``kernel``: what torch's SDPA takes by itself, or its flash kernel when that is forced."""
    wanted: Optimizations = {method: {"rank": rank, "adapter_dtype": adapter_dtype}}
    wanted = {**wanted, **({"liger": {}, HfLigerLoss.name: {}} if liger else {})}
    wanted = {**wanted, **({"gradient_checkpointing": {}} if checkpointing else {})}
    wanted = {**wanted, **({HeldOutputs.name: {}} if holds_outputs else {})}
    config = RunConfig(
        name="hf", model="hf", dtype="bfloat16", autocast=autocast, max_length=length, optim=optim,
        data=DataConfig(train=("data.jsonl",)), parallel=ParallelDegrees(),
        optimizations=tuple(setting_of(ENTRIES[name](**knobs)) for name, knobs in wanted.items()),
    )  # fmt: skip
    cluster = cluster_of()
    environment = Environment(source="assumed", packages={}, compute_capability=cluster.gpu.compute_capability)
    # without an entry of its own, attention runs at the catalog's rate, that of torch's flash
    entries = {name: entry for name, entry in ENTRIES.items() if name != "flash_attention" or kernel == "cudnn"}
    result = account(config, model, cluster, environment, entries)
    seconds = step_seconds(result.ctx, result.combined.work, result.combined.specs)
    return HfStep(combined=result.combined, tokens_per_second=length / seconds)
