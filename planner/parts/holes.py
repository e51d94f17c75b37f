"""Blocks of torch's CUDA allocator that hold nothing at the peak: reserved less allocated. For planner/plan.py."""

from __future__ import annotations

from collections.abc import Mapping

from planner.effects import TermSpec
from planner.optimization import PlanContext
from planner.parts.offload import outputs_leave
from planner.parts.recompute import norm_copies_input
from planner.parts.runtime import MIB, context_term
from planner.types import INSTANTS, Instant, Term

# On one H200.
# Fixed-size segments: reserved less allocated of HF + Liger at 8K/16K/32K/64K (0.98, 1.35, 2.14, 3.79 GiB) is 0.6 GiB
# + 9 % of what comes and goes.
HOLES_BASE_BYTES = 614 * MIB
HOLES_SHARE = 0.09
# Expandable segments (benchmarks/results/2026-11-29-h200-plan-against-measured.csv): 0.18 GiB without recomputation;
# with it 0.67, 1.75 and 3.16 GiB at 8K/32K/64K (d 3584) and 3.58 GiB at 64K (d 4096), which is 0.3 GiB + 13 d T. The
# stock loss adds its fp32 logits once more (4.40, 9.10, 18.50 GiB at 8K/16K/32K), half of that with a trainable head.
HOLES_BASE_BYTES_EXPANDABLE = 170 * MIB
HOLES_RECOMPUTE_BYTES_EXPANDABLE = 130 * MIB
HOLES_RECOMPUTE_PER_TOKEN_EXPANDABLE = 13.0  # times d
# Liger's norms copy no input to float32: 0.45, 0.91, 1.3, 2.7 to 3.3 GB at 8K/32K/64K/128K (transformers + Liger), with
# inputs and attention outputs in host memory 0.27, 0.5 to 0.6, 0.96, 1.49 GB (2026-11-29-h200-modules-engines.csv).
HOLES_RECOMPUTE_PER_TOKEN_LIGER = 5.0
HOLES_RECOMPUTE_PER_TOKEN_OFFLOADED = 2.5
HOLES_LAYER_ENGINE_BYTES_EXPANDABLE = 390 * MIB  # 286 to 516 MiB from 8K to 128K, whatever is kept or offloaded


def reserved_terms(
    ctx: PlanContext, specs: tuple[TermSpec, ...], by_instant: Mapping[Instant, int], *, expandable: bool
) -> tuple[Term, ...]:
    """The allocator's blocks that hold nothing at the peak: reserved less allocated."""
    s = ctx.sizes
    logits = sum(spec.bytes for spec in specs if spec.key == "logits.backward")
    if expandable:
        return _expandable_holes(ctx, logits > 0)
    peak_bytes = max(by_instant.values())
    static = sum(spec.bytes for spec in specs if len(spec.instants) >= len(INSTANTS) - 1)
    transient = max(0, peak_bytes - static)
    # what is kept of one large block at a time does not leave holes between small ones
    holes = min(transient, HOLES_BASE_BYTES + round(HOLES_SHARE * max(0, transient - logits)))
    terms = [
        context_term(
            "fragmentation", holes,
            f"{HOLES_BASE_BYTES // MIB} MiB + {HOLES_SHARE:.0%} of {transient - logits} bytes that come and go",
            "measured", "reserved against allocated on one H200",
        )
    ]  # fmt: skip
    if logits and s.is_half:
        terms.append(
            context_term(
                "cached_logits", 2 * s.V * s.T,
                f"2V * T = 2 * {s.V} * {s.T}: the freed block of the 16-bit logits, too small for fp32 ones",
                "modelled", "reserved against allocated on one H200, stock loss",
            )
        )  # fmt: skip
    return tuple(terms)


def _expandable_holes(ctx: PlanContext, has_whole_logits: bool) -> tuple[Term, ...]:
    s = ctx.sizes
    source = "benchmarks/results, one H200, expandable segments"
    holes, formula = HOLES_BASE_BYTES_EXPANDABLE, f"{HOLES_BASE_BYTES_EXPANDABLE // MIB} MiB"
    if ctx.config.engine == "layer":
        holes = HOLES_LAYER_ENGINE_BYTES_EXPANDABLE
        formula, source = f"{holes // MIB} MiB", "benchmarks/results/2026-11-29-h200-engines.csv"
    elif ctx.config.optimization("gradient_checkpointing") is not None:
        hidden_states = HOLES_RECOMPUTE_PER_TOKEN_EXPANDABLE
        if s.is_half and not norm_copies_input(ctx):
            moves = outputs_leave(ctx.config, ctx.model)
            hidden_states = HOLES_RECOMPUTE_PER_TOKEN_OFFLOADED if moves else HOLES_RECOMPUTE_PER_TOKEN_LIGER
        holes += HOLES_RECOMPUTE_BYTES_EXPANDABLE + round(hidden_states * s.d * s.T)
        formula += f" + {HOLES_RECOMPUTE_BYTES_EXPANDABLE // MIB} MiB + {hidden_states:g}d * T, d {s.d}, T {s.T}"
    terms = [context_term("fragmentation", holes, formula, "measured", source)]
    if has_whole_logits and s.is_half:
        factor = 2 if ctx.config.method == "full" else 4
        terms.append(
            context_term(
                "cached_logits", factor * s.V * s.T,
                f"{factor}V * T = {factor} * {s.V} * {s.T}: pages of the freed logits, not yet taken again",
                "measured", source,
            )
        )  # fmt: skip
    return tuple(terms)
