"""Fused loss: head and cross entropy by chunks of tokens, whole-row logits never exist. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive, counted
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.loss import chunked_loss_effect
from planner.types import Issue

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLoss:
    name: ClassVar[str] = "fused_loss"
    title: ClassVar[str] = "Fused loss (chunked)"
    summary: ClassVar[str] = (
        "Multiplies hidden states by the head a chunk at a time and forms loss and gradient there: 12 bytes per logit "
        "of the whole row shrink to one chunk."
    )
    main_knob: ClassVar[str | None] = "chunk_tokens"
    stage: ClassVar[int] = 60
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)

    chunk_tokens: int = knob(1024, help="tokens whose logits exist at one time", minimum=1)

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return chunked_loss_effect(ctx, chunk_tokens=self.chunk_tokens)

    def apply(self, setup: TrainingSetup) -> None:
        from core.loss.chunked import ChunkedLoss

        setup.loss = ChunkedLoss(self.chunk_tokens)

    def verify(self, setup: TrainingSetup) -> Evidence:
        from core.loss.chunked import ChunkedLoss

        loss = setup.loss
        if not isinstance(loss, ChunkedLoss) or loss.num_calls == 0:
            raise NotActive(f"fused_loss: the loss of this run is {type(loss).__name__}, called 0 times in chunks")
        return Evidence(
            optimization=self.name,
            claim=f"{counted(loss.num_targets, 'target')} in {counted(loss.num_chunks, 'chunk')} of at most "
            f"{loss.chunk_tokens:,}",
            counts=(("targets", loss.num_targets), ("chunks", loss.num_chunks)),
        )
