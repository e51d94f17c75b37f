"""What rehearsals on this machine say against the plan, and the correction that follows: an offset, a slope, a speed.

Offset: bytes beside tensors (context, libraries, the allocator's holes). Slope: of what grows with the length
(checkpoints, activations, logits, exchange); weights, adapters, gradients and states are exact. Rows of the same
kernels count, because kernels bring libraries. Read by app/services/calibration.py; pure arithmetic here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.account import Account
from planner.types import Calibration, GpuSpec, ModelSpec, Part, RunConfig, Term
from planner.validated import Facts, Range, facts_of, range_of
from planner.validated_rows import VALIDATED

GROWING: frozenset[Part] = frozenset({"checkpoints", "activations", "logits", "communication"})
KERNELS = frozenset({"flash_attention", "liger", "qlora", "ulysses", "ring", "fsdp"})  # they load or open something
LEAST_BAND = 0.015  # of used: what DESIGN.md section 11 asks of a plan after rehearsal, at worst
SLOPES = (0.5, 2.0)  # a ratio beyond these is a fault of the row, not of the formula


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRow:
    """One rehearsal: planned as without any calibration, and measured; bytes of the fullest rank at its fullest moment
    after loading."""

    date: str  # ISO day
    kernels: frozenset[str]
    facts: Facts
    planned_allocated: int
    planned_growing: int  # of it, the parts in GROWING
    planned_used: int
    measured_allocated: int
    measured_used: int
    planned_tokens_per_second: float
    measured_tokens_per_second: float | None

    @property
    def offset(self) -> int:
        return (self.measured_used - self.measured_allocated) - (self.planned_used - self.planned_allocated)

    @property
    def slope(self) -> float:
        if self.planned_growing == 0:
            return 1.0
        measured = self.measured_allocated - (self.planned_allocated - self.planned_growing)
        return min(max(measured / self.planned_growing, SLOPES[0]), SLOPES[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """The rehearsals of one machine, and with the committed rows the range that plans were checked in."""

    rows: tuple[CalibrationRow, ...] = ()
    _range: list[Range] = field(default_factory=list, repr=False, compare=False)

    def calibration(self, config: RunConfig) -> Calibration | None:
        return calibration_for(config, self.rows) if self.rows else None

    def unseen(self, config: RunConfig, model: ModelSpec, gpu: GpuSpec) -> tuple[str, ...]:
        """What of a run nobody has measured. CPU processes are not judged by rows of GPUs."""
        if gpu.kind == "cpu":
            return ()
        if not self._range:
            self._range.append(range_of((*VALIDATED, *(row.facts for row in self.rows))))
        vendor = ("AMD GPUs",) if gpu.vendor == "amd" else ()
        return (*vendor, *self._range[0].outside(facts_of(config, model)))


def kernels_of(config: RunConfig) -> frozenset[str]:
    names = frozenset(setting.name for setting in config.optimizations) & KERNELS
    return names | {"nccl"} if config.parallel.world > 1 else names


def calibration_for(config: RunConfig, rows: Sequence[CalibrationRow]) -> Calibration | None:
    """Medians over the rows of this combination's kernels; None without one."""
    kernels = kernels_of(config)
    found = [row for row in rows if row.kernels == kernels]
    if not found:
        return None
    offset, slope = round(median([row.offset for row in found])), median([row.slope for row in found])
    speeds = [
        row.measured_tokens_per_second / row.planned_tokens_per_second
        for row in found
        if row.measured_tokens_per_second is not None
    ]
    left = [abs(row.measured_used / _corrected(row, offset, slope) - 1) for row in found]
    return Calibration(
        num_rows=len(found), date=max(row.date for row in found), offset_bytes=offset, slope=slope,
        speed=median(speeds) if speeds else 1.0, band_share=max(LEAST_BAND, *left),
    )  # fmt: skip


def median(values: Sequence[float]) -> float:
    """Of at least one value. statistics.median takes 10 ms to import, which every plan would pay."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _corrected(row: CalibrationRow, offset: int, slope: float) -> float:
    return row.planned_used + offset + (slope - 1) * row.planned_growing


def with_slope(result: Account, calibration: Calibration) -> Account:
    """The account with growing terms as long as measured."""
    words = calibration_words(calibration, result.ctx.cluster.gpu)
    specs = tuple(
        replace(
            spec, bytes=round(spec.bytes * calibration.slope), basis="measured",
            formula=f"{spec.formula}; x {calibration.slope:.4f}: {words}",
        )
        if spec.part in GROWING
        else spec
        for spec in result.combined.specs
    )  # fmt: skip
    return replace(result, combined=replace(result.combined, specs=specs))


def with_offset(terms: tuple[Term, ...], calibration: Calibration, gpu: GpuSpec) -> tuple[Term, ...]:
    """Context terms, the largest of them as much larger or smaller as measured."""
    if not terms:
        return terms
    largest = max(terms, key=lambda term: term.bytes)
    changed = replace(
        largest, bytes=max(0, largest.bytes + calibration.offset_bytes), basis="measured",
        formula=f"{largest.formula}; {calibration.offset_bytes:+d} bytes: {calibration_words(calibration, gpu)}",
    )  # fmt: skip
    return tuple(changed if term is largest else term for term in terms)


def calibration_words(calibration: Calibration, gpu: GpuSpec) -> str:
    """``calibrated by 3 rows of 2026-11-29 on this GPU``."""
    plural = "s" if calibration.num_rows > 1 else ""
    where = "machine" if gpu.kind == "cpu" else "GPU"
    return f"calibrated by {calibration.num_rows} row{plural} of {calibration.date} on this {where}"
