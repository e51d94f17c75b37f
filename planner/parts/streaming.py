"""Frozen weights that wait in pinned host memory, in numbers: `core/optimizations/weight_streaming.py` returns it.

The GPU holds the layer at work and the one on its way; each layer comes once in forward and once in backward, whose
recompute uses the same copy. Embeddings and head stay, or come too: of the embeddings the rows of the batch, of the
head all of it, while the loss is formed. Ours; the idea is ZeRO-Infinity's (arXiv 2104.07857).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.effects import Drop, Effect, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.nf4 import nf4_linear_bytes
from planner.parts.recompute import num_recomputed_layers
from planner.types import DTYPE_BYTES, INSTANTS, Instant, ModelSpec, RunConfig

AT_LOSS: frozenset[Instant] = frozenset({"forward_loss", "evaluation"})
HELD_LAYERS = 2  # at work, and on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedWeights:
    """Bytes."""

    layer: int  # of one decoder layer, norms and biases included
    embeddings: int  # and head, where it is not the same
    head: int
    final_norm: int


def streamed_weights(config: RunConfig, model: ModelSpec) -> StreamedWeights:
    c, table = DTYPE_BYTES[config.dtype], model.vocab_size * model.hidden_size
    embeddings = table * (1 if model.tie_word_embeddings else 2)
    in_layers = model.num_parameters - embeddings - model.hidden_size - model.tower_parameters
    quantised = config.optimization("qlora")
    if quantised is None:
        layers = c * in_layers
    else:
        linears = model.num_linear_parameters
        layers = nf4_linear_bytes(linears, double_quant=quantised.as_dict().get("double_quant", True))
        layers += c * (in_layers - linears)
    return StreamedWeights(
        layer=-(-layers // model.num_layers), embeddings=c * embeddings, head=c * table,
        final_norm=c * (model.hidden_size + model.tower_parameters),
    )  # fmt: skip


def streams_embeddings(config: RunConfig) -> bool:
    setting = config.optimization("weight_streaming")
    return setting is not None and setting.as_dict().get("embeddings") == "streamed"


def streamed_host_bytes(config: RunConfig, model: ModelSpec) -> int:
    """Pinned by one process."""
    if config.optimization("weight_streaming") is None:
        return 0
    weights = streamed_weights(config, model)
    return model.num_layers * weights.layer + (weights.embeddings if streams_embeddings(config) else 0)


def streaming_effect(ctx: PlanContext) -> Effect:
    s, config = ctx.sizes, ctx.config
    weights, streams_tables = streamed_weights(config, ctx.model), streams_embeddings(config)
    held = min(HELD_LAYERS, s.N)
    rows = s.c * s.d * s.T
    layers = (s.N - held) * weights.layer  # each way begins with the two that are there
    forward = s.N / (2 * s.N + num_recomputed_layers(config, ctx.model))  # of the compute: frozen weights, two products
    everywhere = frozenset(INSTANTS)
    tower = ", the vision tower" if ctx.model.tower_parameters else ""
    tables = TermSpec(
        key="weights.embeddings", part="weights", instants=everywhere, bytes=weights.embeddings,
        formula=f"{weights.embeddings}: embeddings and head stay", basis="exact",
    )  # fmt: skip
    head = TermSpec(
        key="weights.head", part="weights", instants=AT_LOSS, bytes=weights.head,
        formula=f"{s.c}V * d = {s.c} * {s.V} * {s.d}: the head, while the loss is formed", basis="exact",
    )  # fmt: skip
    return Effect(
        add=(
            TermSpec(
                key="weights.held_layers", part="weights", instants=everywhere, bytes=held * weights.layer,
                formula=f"{held} * {weights.layer}: the layer at work and the one on its way", basis="exact",
            ),
            TermSpec(
                key="weights.final_norm", part="weights", instants=everywhere, bytes=weights.final_norm,
                formula=f"{weights.final_norm}: the last norm{tower}",
                basis="exact",
            ),
            head if streams_tables else tables,
        ),
        drop=(
            *(Drop(key=f"weights.{what}", formula="waits in host memory") for what in ("base", "nf4", "unquantised")),
            Drop(key="load.quantised", formula="a linear is quantised before there is room for two layers"),
        ),
        add_work=(
            *(
                Work(
                    key=f"pcie.weights.{name}", kind="pcie", overlapped=True, window=window, amount=layers,
                    formula=f"(N - {held}) * {weights.layer}: every layer in {name}, unless it is there",
                )
                for name, window in (("forward", forward), ("backward", 1 - forward))
            ),
            *(
                (
                    Work(
                        key="pcie.tables", kind="pcie", amount=rows + weights.head,
                        formula=f"{s.c}d * T + {weights.head}: rows of the embeddings, the head; both waited for",
                    ),
                )
                if streams_tables
                else ()
            ),
        ),
    )  # fmt: skip
