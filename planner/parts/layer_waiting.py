"""What waits in a layer of the layer engine from its forward to its backward, at every instant.

``waiting.`` terms, declared by planner/parts/layer_engine.py. What is kept: core/layer/decoder_layer.py, Kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.effects import TermSpec
from planner.layer_policy import LayerPolicy, outputs_wait_on_host
from planner.parts.sizes import Sizes
from planner.types import Instant

LayerPart = Literal["mlp", "attention"]
LOSS: frozenset[Instant] = frozenset({"forward_loss", "loss_backward"})
SOURCE = "core/layer/decoder_layer.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Of a backward that is nearly through: the layer at work, 0 or 1, and at which of its parts."""

    layer: int
    part: LayerPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One kind of tensor that a layer keeps from forward to backward."""

    name: str
    text: str
    one: int  # bytes of a layer
    here: tuple[bool, ...]  # of each layer, whether its copy is on the GPU all the time
    moves: bool = False  # those that are not come and go
    done: bool = False  # the layer at work lets go of it before its attention runs backward

    def layers_at(self, moment: Moment) -> int:
        """How many of it there are: the layer at work, and all below it, of which the next one arrives."""
        gone = self.done and moment.part == "attention" and self.here[moment.layer]
        return sum(is_here or self.moves for is_here in self.here[: moment.layer + 1]) - int(gone)


def waiting_of(s: Sizes, policies: tuple[LayerPolicy, ...]) -> tuple[Waiting, ...]:
    moves = outputs_wait_on_host(policies)
    whole = tuple(policy.keeps_products for policy in policies)
    return (
        Waiting(
            name="inputs", text=f"{s.c}d * T", one=s.c * s.d * s.T, here=tuple(not p.offloads for p in policies),
            moves=any(policy.offloads for policy in policies),
        ),
        Waiting(
            name="outputs", text=f"{s.c}q * T: attention outputs", one=s.c * s.num_q, moves=moves,
            here=tuple(policy.keeps_attention and not (moves and policy.offloads) for policy in policies),
        ),
        Waiting(
            name="log_sum_exp", text="4H * T", one=4 * s.num_lse, here=tuple(p.keeps_attention for p in policies)
        ),
        Waiting(name="qkv", text=f"{s.c}(q + 2kv) * T: q, k, v", one=s.c * (s.num_q + 2 * s.num_kv), here=whole),
        Waiting(
            name="mlp", text=f"{s.c}(d + 2f) * T: h, gate, up", one=s.c * (s.d + 2 * s.f) * s.T, here=whole, done=True
        ),
    )  # fmt: skip


def waiting_terms(waiting: tuple[Waiting, ...], end: Moment) -> list[TermSpec]:
    """Inputs, attention outputs and products of all layers, in forward, in the last layer's backward, and at its
    end."""
    terms: list[TermSpec] = []
    for kind in waiting:
        here, held = kind.here, sum(kind.here)
        # beside the last layer that of the one below it leaves, or arrives, if it is on the host
        arriving = int(kind.moves and here[-1] and len(here) > 1 and not here[-2])
        spread: tuple[tuple[str, frozenset[Instant], int], ...] = (
            ("layer", frozenset({"layer_forward"}), held + arriving), ("loss", LOSS, held),
            ("mlp", frozenset({"layer_backward"}), held + arriving),
            ("attention", frozenset({"attention_backward"}), held + arriving - int(kind.done and here[-1])),
            ("end", frozenset({"backward_end"}), kind.layers_at(end)),
        )  # fmt: skip
        terms += [
            TermSpec(
                key=f"waiting.{kind.name}.{when}", part="checkpoints", instants=instants, bytes=layers * kind.one,
                formula=f"{layers} layers * {kind.text}", basis="exact", source=SOURCE,
            )
            for when, instants, layers in spread
        ]  # fmt: skip
    return terms
