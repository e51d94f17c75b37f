"""What an optimization declares about memory and time, and the one way in which declarations combine.

A breakdown starts as the plain path (full fine-tuning, nothing recomputed, stock loss, one GPU) and each enabled
optimization states its changes. Combining is order-free: all additions are united first, then dropped keys leave,
then instants are confined, then factors multiply. Two claims of the same kind on one key are an Issue, not a race.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.types import Basis, Instant, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSpec:
    """A term before combination. Keys are dotted; ``layer.`` terms belong to the one layer at work,
    ``other_layers.`` terms to the remaining N-1 whose saved tensors are alive at the same time."""

    key: str
    part: Part
    instants: frozenset[Instant]
    bytes: int
    formula: str
    basis: Basis = "modelled"
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Remove every term whose key equals ``key``, or starts with it when it ends in ``.*``."""

    key: str
    formula: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confine:
    """Keep the matching terms only at these instants."""

    key: str
    instants: frozenset[Instant]
    formula: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Multiply the matching terms by numerator/denominator (exact, rounded up once at the end)."""

    key: str
    numerator: int
    denominator: int
    formula: str
    source: str = ""


WorkKind = Literal["gemm", "gemm_fp32", "attention", "memory", "pcie", "link", "overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one rank in one micro-batch: FLOPs for gemm, gemm_fp32 (float32 products on a GPU that is otherwise in
    16 bit) and attention, bytes for memory, pcie and link, nanoseconds for overhead. ``overlapped`` work runs beside
    compute and costs only what sticks out; it has ``window`` of the compute's time to hide in, as copies for the
    forward have that of the forward."""

    key: str
    kind: WorkKind
    amount: int
    formula: str
    overlapped: bool = False
    window: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The declared changes of one optimization for one context."""

    add: tuple[TermSpec, ...] = ()
    drop: tuple[Drop, ...] = ()
    confine: tuple[Confine, ...] = ()
    scale: tuple[Scale, ...] = ()
    add_work: tuple[Work, ...] = ()
    drop_work: tuple[Drop, ...] = ()
    scale_work: tuple[Scale, ...] = ()
