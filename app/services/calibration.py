"""What rehearsals found against their plans, kept in the cache: one JSON line each, a file a GPU.

Written by app/services/rehearse.py, read back by app/services/planning.py for plans on this machine.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.services.locations import cache_dir
from planner.calibration import GROWING, CalibrationRow, Experience, kernels_of
from planner.measured import MEASURED_INSTANTS
from planner.types import ClusterSpec, Environment, GpuPlan, Plan
from planner.validated import Facts, facts_of

if TYPE_CHECKING:
    from app.services.rehearse import Measured

SCHEMA = 3  # lines of an earlier one are passed over


def calibration_file(gpu_name: str) -> Path:
    plain = re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-") or "unknown"
    return cache_dir() / "calibration" / f"{plain}.jsonl"


def store_calibration(gpu_name: str, record: Mapping[str, Any]) -> Path:
    path = calibration_file(gpu_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, sort_keys=True) + "\n")
    return path


def read_calibrations(gpu_name: str) -> tuple[dict[str, Any], ...]:
    """Oldest first; a line that a kill cut short is passed over."""
    try:
        lines = calibration_file(gpu_name).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return ()
    records: list[dict[str, Any]] = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return tuple(records)


def calibration_record(
    plan: Plan, *, measured: Mapping[str, Measured], tokens_per_second: float | None, evidence: tuple[str, ...],
    now: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One line. ``plan`` is the plan without calibration; ``measured`` by moment, as a worker names them."""
    config, gpu, facts = plan.config, plan.worst_gpu, facts_of(plan.config, plan.model)
    return {
        "schema": SCHEMA,
        "time": time.time() if now is None else now,
        "gpu": plan.cluster.gpu.name,
        "driver": driver_version(plan.cluster),
        "torch": plan.environment.packages.get("torch"),
        "packages": dict(plan.environment.packages),
        "kernels": sorted(kernels_of(config)),
        "model": plan.model.name,
        "facts": {
            "family": facts.family, "method": facts.method, "features": sorted(facts.features),
            "tokens_per_rank": facts.tokens_per_rank, "world": facts.world,
        },
        "max_length": config.max_length,
        "config_hash": config.hash(),
        "optimizations": {setting.name: setting.as_dict() for setting in config.optimizations},
        "instants": {
            moment: {
                "planned_allocated_bytes": max(gpu.allocated.bytes_at(i) for i in MEASURED_INSTANTS[moment]),
                "measured_allocated_bytes": reading.allocated_bytes, "measured_used_bytes": reading.used_bytes,
            }
            for moment, reading in measured.items()
        },
        "compared": _compared(gpu, measured),
        "planned_used_bytes": gpu.used_bytes,
        "measured_used_bytes": max(reading.used_bytes for reading in measured.values()),
        "planned_tokens_per_second": plan.tokens_per_second,
        "measured_tokens_per_second": tokens_per_second,
        "evidence": list(evidence),
    }  # fmt: skip


def _compared(gpu: GpuPlan, measured: Mapping[str, Measured]) -> dict[str, int]:
    """At the fullest moment after loading: a rehearsal makes its weights, and has no file to load them from."""
    moments = [moment for moment in measured if moment != "load"]
    instants = [instant for moment in moments for instant in MEASURED_INSTANTS[moment]]
    fullest = max(instants, key=gpu.allocated.bytes_at)
    planned, by_part = gpu.allocated.bytes_at(fullest), gpu.allocated.by_part(fullest)
    return {
        "planned_allocated": planned,
        "planned_growing": sum(by_part.get(part, 0) for part in GROWING),
        "planned_used": planned + gpu.used_bytes - gpu.allocated.peak_bytes,
        "measured_allocated": max(measured[moment].allocated_bytes for moment in moments),
        "measured_used": max(measured[moment].used_bytes for moment in moments),
    }


def experience_for(cluster: ClusterSpec, environment: Environment) -> Experience:
    """The rehearsals on this GPU with the driver and the torch of now; none for imagined hardware."""
    if cluster.source != "detected":
        return Experience()
    records = [record for record in read_calibrations(cluster.gpu.name) if record.get("schema") == SCHEMA]
    if not records:
        return Experience()
    now = (driver_version(cluster), environment.packages.get("torch"))
    return Experience(rows=tuple(_row(record) for record in records if (record["driver"], record["torch"]) == now))


def measured_used(cluster: ClusterSpec) -> dict[str, int]:
    """Hash of a configuration -> used bytes that the latest rehearsal of it read on this GPU."""
    if cluster.source != "detected":
        return {}
    records = read_calibrations(cluster.gpu.name)
    return {str(r["config_hash"]): int(r["measured_used_bytes"]) for r in records if r.get("schema") == SCHEMA}


def driver_version(cluster: ClusterSpec) -> str | None:
    """Of the NVIDIA driver; None for CPU processes."""
    if cluster.gpu.kind == "cpu":
        return None
    from core.run.nvml import Nvml

    nvml = Nvml()
    try:
        return nvml.driver_version()
    finally:
        nvml.close()


def _row(record: Mapping[str, Any]) -> CalibrationRow:
    facts = record["facts"]
    return CalibrationRow(
        date=datetime.fromtimestamp(record["time"], UTC).date().isoformat(),
        kernels=frozenset(record["kernels"]),
        facts=Facts(**{**facts, "features": frozenset(facts["features"])}),
        **record["compared"],
        planned_tokens_per_second=record["planned_tokens_per_second"],
        measured_tokens_per_second=record["measured_tokens_per_second"],
    )
