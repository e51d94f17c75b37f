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

BASELINE_BYTES = 400 * MIB  # Python, torch, transformers and peft, imported
LIBRARY_BYTES = 48 * MIB  # GEMM packing buffers, thread stacks, code pages touched by the first step
GLOO_BYTES = 24 * MIB  # pairs, and the staging of one gradient reduction
HEAP_HOLES_SHARE = 0.05  # freed blocks below malloc's mmap threshold stay resident


def uses_mapped_weights(ctx: PlanContext) -> bool:
    """A checkpoint in the run's own dtype is mapped and used in place: it is resident from the first forward on.
    Until then the page cache decides (planner/measured.py). Experts are not: a checkpoint has them one by one, and
    loading copies them into one parameter."""
    same = ctx.config.dtype == ctx.model.checkpoint_dtype and ctx.model.experts is None
    return ctx.cluster.gpu.kind == "cpu" and same


def load_terms(ctx: PlanContext) -> tuple[TermSpec, ...]:
    """A checkpoint in another dtype is resident beside the parameters that are made of it, to its last page: loading a
    135M model from float32 as bfloat16 held 256 + 513 MiB (docs/log.md)."""
    if uses_mapped_weights(ctx):
        return ()
    element = DTYPE_BYTES[ctx.model.checkpoint_dtype]
    size = element * ctx.model.num_parameters
    return (
        TermSpec(
            key="load.file_pages", part="runtime", instants=frozenset({"load"}), bytes=size,
            formula=f"{element} * {ctx.model.num_parameters}: pages of a {ctx.model.checkpoint_dtype} checkpoint",
            basis="measured", source="safetensors: memory-mapped",
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


def resident_terms(ctx: PlanContext) -> tuple[TermSpec, ...]:
    """What loading and the first step make resident beside tensors. Part of allocated: a host process has no allocator
    to ask, so its measured "allocated" is the resident set above the one after imports (core/train/memory.py)."""
    after_load = frozenset(INSTANTS) - {"load"}
    terms = [
        TermSpec(
            key="libraries", part="runtime", instants=frozenset(INSTANTS), bytes=LIBRARY_BYTES,
            formula=f"{LIBRARY_BYTES // MIB} MiB: GEMM buffers, thread stacks, code pages", basis="assumed",
        )
    ]  # fmt: skip
    if ctx.config.parallel.world > 1:
        terms.append(
            TermSpec(
                key="gloo", part="runtime", instants=after_load, bytes=GLOO_BYTES, formula=f"{GLOO_BYTES // MIB} MiB",
                basis="assumed", source="torch.distributed gloo",
            )
        )  # fmt: skip
    return tuple(terms)


def process_terms() -> tuple[Term, ...]:
    return (
        context_term(
            "process_baseline", BASELINE_BYTES, f"{BASELINE_BYTES // MIB} MiB: interpreter and libraries after imports",
            "assumed", "not part of the comparison with the measured peak",
        ),
    )  # fmt: skip
