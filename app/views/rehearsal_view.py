"""A rehearsal as text and as JSON: planned against measured, moment by moment. Called by `longfit rehearse`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.views.format import format_bytes
from planner.measured import MEASURED_INSTANTS, is_comparable
from planner.types import Plan

if TYPE_CHECKING:
    from app.services.rehearse import Rehearsal


def planned_bytes(plan: Plan, measured_instant: str) -> int:
    """The most that the plan allocates in what a worker measures as one moment."""
    return max(plan.worst_gpu.allocated.bytes_at(instant) for instant in MEASURED_INSTANTS[measured_instant])


def rehearsal_dict(rehearsal: Rehearsal) -> dict[str, Any]:
    plan = rehearsal.planned.plan
    return {
        "schema": 1,
        "preset": rehearsal.planned.preset.name,
        "verdict": plan.verdict,
        "instants": [
            {
                "instant": instant, "planned_bytes": planned_bytes(plan, instant),
                "measured_bytes": reading.allocated_bytes, "used_bytes": reading.used_bytes,
            }
            for instant, reading in rehearsal.measured.items()
        ],
        "planned": {
            "allocated_bytes": plan.worst_gpu.allocated.peak_bytes, "used_bytes": plan.worst_gpu.used_bytes,
            "tokens_per_second": plan.tokens_per_second,
        },
        "measured": {
            "allocated_bytes": rehearsal.measured_allocated, "used_bytes": rehearsal.measured_used,
            "tokens_per_second": rehearsal.tokens_per_second,
        },
        "evidence": list(rehearsal.evidence),
        "fallbacks": list(rehearsal.fallbacks),
        "failure": rehearsal.failure,
        "calibration": None if rehearsal.calibration is None else str(rehearsal.calibration),
    }  # fmt: skip


def rehearsal_text(rehearsal: Rehearsal) -> str:
    plan = rehearsal.planned.plan
    lines = [f"{'':12} {'planned':>12} {'measured':>12} {'deviation':>10}"] if rehearsal.measured else []
    terms = [(term.key, term.instants) for term in plan.worst_gpu.allocated.terms]
    lines += [
        _line(instant, planned_bytes(plan, instant), reading.allocated_bytes, compared=is_comparable(instant, terms))
        for instant, reading in rehearsal.measured.items()
    ]
    if rehearsal.failure is None:
        lines += [
            _line("allocated", plan.worst_gpu.allocated.peak_bytes, rehearsal.measured_allocated),
            _line("used", plan.worst_gpu.used_bytes, rehearsal.measured_used),
        ]
    if rehearsal.tokens_per_second is not None:
        planned, measured = plan.tokens_per_second, rehearsal.tokens_per_second
        lines.append(f"{'tokens/s':12} {planned:>12,.0f} {measured:>12,.0f} {_deviation(planned, measured)}")
    lines += [f"active: {claim}" for claim in rehearsal.evidence]
    lines += [f"fallback: {reason}" for reason in rehearsal.fallbacks]
    if rehearsal.failure is None:
        lines.append(f"It runs. Kept in {rehearsal.calibration}.")
    else:
        where = f" ({rehearsal.failure['instant']})" if rehearsal.failure.get("instant") else ""
        lines.append(f"It did not run{where}: {rehearsal.failure['message']}")
    return "\n".join(lines)


def _line(name: str, planned: int, measured: int, *, compared: bool = True) -> str:
    deviation = _deviation(planned, measured) if compared else f"{'n/a':>10}"
    return f"{name:12} {format_bytes(planned):>12} {format_bytes(measured):>12} {deviation}"


def _deviation(planned: float, measured: float) -> str:
    return f"{100 * (measured / planned - 1):>+9.1f}%" if planned else f"{'':>10}"
