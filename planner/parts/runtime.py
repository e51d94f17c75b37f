"""What lies beside the tensors of a CUDA process: cuBLAS workspaces (inside the allocator), the CUDA context and NCCL.
The allocator's unused blocks: planner/parts/holes.py. Host processes: planner/parts/cpu.py.
"""

from __future__ import annotations

from planner.effects import TermSpec
from planner.optimization import PlanContext
from planner.types import INSTANTS, Basis, Term

MIB = 1024**2


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
