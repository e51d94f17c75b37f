"""Training processes on the host: every coefficient that a CUDA process does not have, in one place.

What is planned is the resident set of one process; `used - process_baseline` is compared with the measured peak above
the set after imports. Calibrated against core.train.worker on SmolLM2-135M (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.effects import TermSpec
from planner.optimization import PlanContext
from planner.parts.runtime import context_term
from planner.types import DTYPE_BYTES, INSTANTS, Instant, Term

MIB = 1024**2

BASELINE_BYTES = 450 * MIB  # Python, torch, transformers and peft, imported
LIBRARY_BYTES = 48 * MIB  # GEMM packing buffers, thread stacks, code pages touched by the first step
GLOO_BYTES = 24 * MIB  # pairs, and the staging of one gradient reduction
HEAP_HOLES_SHARE = 0.05  # freed blocks below malloc's mmap threshold stay resident
LOAD_COPY_SHARE = 1.0  # checkpoint bytes that are resident beside the parameters while they are filled


def load_terms(ctx: PlanContext) -> tuple[TermSpec, ...]:
    """safetensors maps the file: its pages are resident until the parameters are made from them."""
    size = round(LOAD_COPY_SHARE * DTYPE_BYTES[ctx.config.dtype] * ctx.model.num_parameters)
    return (
        TermSpec(
            key="load.file_pages", part="runtime", instants=frozenset({"load"}), bytes=size,
            formula=f"{LOAD_COPY_SHARE:g} * {DTYPE_BYTES[ctx.config.dtype]} * {ctx.model.num_parameters}",
            basis="assumed", source="safetensors: memory-mapped",
        ),
    )  # fmt: skip


def heap_terms(specs: tuple[TermSpec, ...], by_instant: Mapping[Instant, int]) -> tuple[Term, ...]:
    """The difference between live tensors and the heap's pages, at the peak."""
    static = sum(spec.bytes for spec in specs if len(spec.instants) >= len(INSTANTS) - 1)
    transient = max(0, max(by_instant.values()) - static)
    return (
        context_term(
            "heap_holes", round(HEAP_HOLES_SHARE * transient), f"{HEAP_HOLES_SHARE:.0%} of {transient} bytes",
            "assumed", "glibc malloc",
        ),
    )  # fmt: skip


def process_terms(ctx: PlanContext) -> tuple[Term, ...]:
    terms = [
        context_term(
            "process_baseline", BASELINE_BYTES, f"{BASELINE_BYTES // MIB} MiB: interpreter and libraries after imports",
            "assumed", "not part of the comparison with the measured peak",
        ),
        context_term("libraries", LIBRARY_BYTES, f"{LIBRARY_BYTES // MIB} MiB: GEMM buffers, threads", "assumed", ""),
    ]  # fmt: skip
    if ctx.config.parallel.world > 1:
        terms.append(context_term("gloo", GLOO_BYTES, f"{GLOO_BYTES // MIB} MiB", "assumed", "torch.distributed gloo"))
    return tuple(terms)
