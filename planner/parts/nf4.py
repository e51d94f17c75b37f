"""NF4 storage of the decoder linears, as bitsandbytes keeps them: what `qlora` changes besides the adapters."""

from __future__ import annotations

from dataclasses import replace

from planner.effects import Drop, Effect, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.recompute import num_recomputed_layers
from planner.parts.tensors import INPUTS_OF_ATTENTION
from planner.types import INSTANTS

BLOCK = 64  # weights that share one scale
SCALE_BLOCK = 256  # scales that share one second-level scale


def nf4_linear_bytes(num_weights: int, *, double_quant: bool) -> int:
    """4 bits a weight and its scales: 0.5625 bytes a weight, 0.5159 with double quantisation."""
    blocks = -(-num_weights // BLOCK)
    scales = blocks + 4 * -(-blocks // SCALE_BLOCK) if double_quant else 4 * blocks
    return -(-num_weights // 2) + scales


def nf4_effect(ctx: PlanContext, *, double_quant: bool, adapters: Effect) -> Effect:
    """The adapters' effect with the base weights replaced by NF4 linears and the rest in the compute dtype."""
    s = ctx.sizes
    linears = ctx.model.num_linear_parameters
    rest = ctx.model.num_parameters - linears
    others = (", experts" if ctx.model.experts else "") + (", vision tower" if ctx.model.tower_parameters else "")
    sizes = {name: inputs * outputs for name, (inputs, outputs) in s.linears.items()}
    largest_of_attention = max(sizes[name] for name in (*INPUTS_OF_ATTENTION, "o_proj") if name in sizes)
    largest = max(sizes.values())
    everywhere = frozenset(INSTANTS)
    return replace(
        adapters,
        add=(
            *adapters.add,
            TermSpec(
                key="weights.nf4", part="weights", instants=everywhere,
                bytes=nf4_linear_bytes(linears, double_quant=double_quant),
                formula=f"{0.5159 if double_quant else 0.5625} * {linears} decoder linear weights", basis="exact",
                source="bitsandbytes: blocks of 64, scales of 256 blocks quantised to 8 bits",
            ),
            TermSpec(
                key="weights.unquantised", part="weights", instants=everywhere, bytes=s.c * rest,
                formula=f"{s.c} * {rest}: embeddings, head, norms, biases{others}", basis="exact",
            ),
            TermSpec(
                key="load.quantised", part="weights", instants=frozenset({"load"}), bytes=s.c * max(0, largest - rest),
                formula=f"{s.c} * ({largest} - {rest}): the largest linear in 16 bit, while it is quantised, if "
                "that is more than what comes to the GPU after it",
                source="core/model/nf4.py",
            ),
            TermSpec(
                key="attention_backward.dequantised", part="weights", instants=frozenset({"attention_backward"}),
                bytes=s.c * largest_of_attention,
                formula=f"{s.c} * {largest_of_attention}: the largest linear of attention, dequantised while it is "
                "used; the fullest moments of the MLP lie between its linears",
                source="13.36 GB measured on one H200, planned 13.36 without and 13.50 with one in the MLP",
            ),
        ),
        drop=(*adapters.drop, Drop(key="weights.base", formula="linears are kept in 4 bits")),
        add_work=(
            *adapters.add_work,
            Work(
                key="memory.dequantise", kind="memory",
                amount=(2 * s.N + num_recomputed_layers(ctx.config, ctx.model)) * (s.c * linears + linears // 2) // s.N,
                formula="every linear dequantised in forward, backward and recompute",
            ),
        ),
    )  # fmt: skip
