"""What lies beside the tensors of a CUDA process: cuBLAS workspaces (inside the allocator), the allocator's unused
blocks, the CUDA context and NCCL. Host processes: planner/parts/cpu.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.effects import TermSpec
from planner.optimization import PlanContext
from planner.types import INSTANTS, Basis, Instant, Term

MIB = 1024**2

# What the allocator holds beyond live tensors, on one H200.
# Fixed-size segments: reserved less allocated of HF + Liger at 8K/16K/32K/64K (0.98, 1.35, 2.14, 3.79 GiB) is 0.6 GiB
# + 9 % of what comes and goes.
HOLES_BASE_BYTES = 614 * MIB
HOLES_SHARE = 0.09
# Expandable segments (benchmarks/results/2026-11-29-h200-plan-against-measured.csv): 0.18 GiB without recomputation;
# with it 0.67, 1.75 and 3.16 GiB at 8K/32K/64K (d 3584) and 3.58 GiB at 64K (d 4096), which is 0.3 GiB + 13 d T. The
# stock loss adds its fp32 logits once more (4.40, 9.10, 18.50 GiB at 8K/16K/32K), half of that with a trainable head.
HOLES_BASE_BYTES_EXPANDABLE = 170 * MIB
HOLES_RECOMPUTE_BYTES_EXPANDABLE = 130 * MIB
HOLES_RECOMPUTE_PER_TOKEN_EXPANDABLE = 13  # times d
HOLES_LAYER_ENGINE_BYTES_EXPANDABLE = 390 * MIB  # 286 to 516 MiB from 8K to 128K, whatever is kept or offloaded


def allocated_runtime_terms(ctx: PlanContext) -> tuple[TermSpec, ...]:
    """cuBLAS and cuBLASLt workspaces live in torch's allocator from the first matrix product on."""
    capability = ctx.cluster.gpu.compute_capability
    if capability is None:
        return ()
    hopper = capability >= (9, 0)
    size = 64 * MIB if hopper else 8_519_680 + MIB
    return (
        TermSpec(
            key="cublas_workspace", part="runtime", instants=frozenset(INSTANTS) - {"load"}, bytes=size,
            formula="32 MiB cuBLAS + 32 MiB cuBLASLt" if hopper else "8,519,680 B cuBLAS + 1 MiB cuBLASLt",
            basis="measured" if hopper else "assumed", source="torch CUDABlas.cpp, CUBLAS_WORKSPACE_CONFIG defaults",
        ),
    )  # fmt: skip


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
        per_token = HOLES_RECOMPUTE_PER_TOKEN_EXPANDABLE * s.d
        holes += HOLES_RECOMPUTE_BYTES_EXPANDABLE + per_token * s.T
        formula += f" + {HOLES_RECOMPUTE_BYTES_EXPANDABLE // MIB} MiB + 13d * T = 13 * {s.d} * {s.T}"
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


def context_terms(ctx: PlanContext) -> tuple[Term, ...]:
    """What NVML counts for the process and torch's allocator does not know."""
    capability = ctx.cluster.gpu.compute_capability or (8, 0)
    size = 768 * MIB if capability >= (9, 0) else 512 * MIB if capability >= (8, 0) else 352 * MIB
    measured = ctx.cluster.gpu.name == "H200"
    terms = [
        context_term(
            "cuda_context", size, f"{size // MIB} MiB: context, modules and kernels loaded lazily",
            "measured" if measured else "assumed", "NVML used less torch reserved, one H200",
        )
    ]  # fmt: skip
    degrees = ctx.config.parallel
    if degrees.world > 1:
        per_communicator = (544 if degrees.world == 2 else 688) * MIB
        communicators = 1 + (degrees.data > 1 and degrees.sequence > 1) + (degrees.ring > 1 and degrees.ulysses > 1)
        terms.append(
            context_term(
                "nccl", communicators * per_communicator,
                f"{communicators} communicator(s) * {per_communicator // MIB} MiB", "assumed", "nccl#964",
            )
        )  # fmt: skip
    if degrees.ulysses > 1:
        size = (degrees.ulysses - 1) * 447 * MIB
        terms.append(
            context_term(
                "nccl_all_to_all", size, f"{degrees.ulysses - 1} peers * 447 MiB: channels of the first all-to-all",
                "assumed", "nccl#1685: 1.06 to 4.34 GB on 8 H100",
            )
        )  # fmt: skip
    return tuple(terms)


def context_term(key: str, size_bytes: int, formula: str, basis: Basis, source: str) -> Term:
    return Term(
        key=key, part="runtime", instants=frozenset(INSTANTS), bytes=size_bytes, formula=formula, basis=basis,
        source=source,
    )  # fmt: skip
